"""Live PyTorch objects: a module with example inputs, or an exported program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from placewise.errors import InputError
from placewise.model.graph import Source
from placewise.readers.base import ImportedModel
from placewise.readers.torch.module import trace_module
from placewise.readers.torch.program import graph_of_program, modules_of

_NO_DIMS: Mapping[str, int] = MappingProxyType({})


def read_live(model: Any, inputs: Any = None, *, dims: Mapping[str, int] = _NO_DIMS) -> ImportedModel | None:
    """The raw view of a module, run once on `inputs`, or of an exported program; None if `model` is neither.

    `inputs` are a tuple of arguments, a mapping of arguments by name, or the only argument. PyTorch is imported only
    if the model is of PyTorch. Raises InputError, ModelFileError or GraphError.
    """
    if not any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__):
        return None
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        if inputs is not None:
            raise InputError("an exported program has its inputs", remedy="leave out inputs")
        source = Source("", "", "torch-export", options={"dims": dict(dims)}, view="raw")
        return ImportedModel(graph_of_program(model, source=source, dims=dims), modules=modules_of(model))
    if not isinstance(model, torch.nn.Module):
        return None
    if inputs is None:
        remedy = "give its example inputs: inputs=(x,), or inputs={'x': x}"
        raise InputError(f"a {type(model).__name__} says nothing of the shapes it works on", remedy=remedy)
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if isinstance(inputs, Mapping):
        reading = trace_module(model, (), inputs, dims=dims)
    else:
        reading = trace_module(model, arguments, dims=dims)
    return replace(reading, modules={path: type(part).__name__ for path, part in model.named_modules()})
