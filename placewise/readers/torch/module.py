"""Live PyTorch objects → graphs: modules with example inputs (by torch.export, else by one run), exported programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewise.errors import InputError, MissingExtraError
from placewise.model.graph import Source
from placewise.readers.base import NO_DIMS, ImportedModel
from placewise.readers.torch.assemble import assemble
from placewise.readers.torch.inline import inline_bodies
from placewise.readers.torch.program import graph_of_program, modules_of
from placewise.readers.torch.sizes import is_data_dependent

if TYPE_CHECKING:
    from torch import nn

FORMAT = "torch-module"
RECORDED = "torch-modules"
"""`Source.format` of graphs that were recorded because torch.export failed."""


def trace_module(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
) -> ImportedModel:
    """The raw view of one forward pass of `module`, in its current mode (training or evaluation).

    `args` and `kwargs` are example inputs, of which only shapes and types matter; they are moved to the meta device if
    the module is there. `dims` resizes them: ``{"input_ids:0": 8}`` sets axis 0 of `input_ids`, ``"batch"`` axis 0 of
    all inputs. Nothing is computed unless torch.export fails: then the module runs once, all ops are recorded, the
    first warning reports it, and `Source.format` is `RECORDED`.

    Raises InputError for an invalid module or inputs, and MissingExtraError without PyTorch.
    """
    try:
        from placewise.readers.torch import example, export, record
    except ImportError:
        raise MissingExtraError("reading PyTorch models", "torch") from None
    module = example.unwrap_module(module)
    label = type(module).__name__
    dims = dict(dims or {})
    try:
        of_data = {key: number for key, number in dims.items() if is_data_dependent(key)}
        of_inputs = {key: number for key, number in dims.items() if key not in of_data}
        prepared = example.prepare_example(module, args, {} if kwargs is None else kwargs, of_inputs)
        listing, reason = export.trace_by_export(prepared, of_data)
        if listing is None:
            listing = record.record_calls(prepared, reason)
        if not listing.calls:
            raise InputError("it calls no operation", remedy="give a module that computes something")
    except InputError as error:
        raise error.at(label) from None
    source = Source(label, "", RECORDED if reason else FORMAT, options={"dims": dims}, view="raw")
    return ImportedModel(assemble(inline_bodies(listing), source), warnings=_warnings(reason))


def read_live(model: Any, inputs: Any = None, *, dims: Mapping[str, int] = NO_DIMS) -> ImportedModel | None:
    """The raw view of a module with example `inputs`, or of an exported program; None for other objects.

    `inputs` is a tuple of arguments, a mapping from names to arguments, or the only argument. PyTorch is imported only
    for PyTorch objects. Raises InputError, ModelFileError or GraphError.
    """
    if not any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__):
        return None
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        if inputs is not None:
            raise InputError("an exported program has its inputs", remedy="leave out example_inputs")
        source = Source("", "", "torch-export", options={"dims": dict(dims)}, view="raw")
        return ImportedModel(graph_of_program(model, source=source, dims=dims), modules=modules_of(model))
    if not isinstance(model, torch.nn.Module):
        return None
    if inputs is None:
        remedy = "give example_inputs=(x,), or example_inputs={'x': x}"
        raise InputError(f"the shapes of the inputs of this {type(model).__name__} are not known", remedy=remedy)
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if isinstance(inputs, Mapping):
        imported = trace_module(model, (), inputs, dims=dims)
    else:
        imported = trace_module(model, arguments, dims=dims)
    return replace(imported, modules={path: type(part).__name__ for path, part in model.named_modules()})


def _warnings(reason: str) -> tuple[str, ...]:
    if not reason:
        return ()
    return (
        f"torch.export cannot take this module ({reason}): the graph was recorded from one run, layer by layer; "
        "branches not taken are missing, as are dependencies through Python numbers",
    )
