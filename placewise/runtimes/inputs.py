"""Example inputs of a model: drawn anew for every sample, or given by the user and checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise._util.safe_open import open_regular
from placewise.errors import InputError
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph

Arrays = Mapping[str, npt.NDArray[Any]]
"""Arrays by the name of the model's input or output."""

_LARGEST = 2
"""Whole numbers are drawn below it: 0 and 1 are tokens of every vocabulary and values of every mask."""


def input_tensors(graph: Graph) -> tuple[int, ...]:
    """The tensors that the model is given: those without a producer, that some op reads or that are outputs.

    Raw graphs of IR have an op of the kind Input where others have none.
    """
    read = np.zeros(graph.n_tensors, np.bool_)
    read[graph.edges.value] = True
    producer = graph.tensors.producer
    given = producer < 0
    given[~given] = graph.ops.kind.equals("Input")[producer[~given]]
    wanted = given & (read | graph.tensors.output)
    return tuple(np.flatnonzero(wanted).tolist())


def fresh_inputs(graph: Graph, seed: int, given: Arrays | None = None) -> dict[str, npt.NDArray[Any]]:
    """Inputs for one sample: normal floats, whole numbers of 0 and 1, both from `seed`; what is `given` stays.

    Raises InputError for an open shape or an element type that numpy does not have, and for given arrays of a wrong
    name, shape or type.
    """
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", remedy="give a whole number from 0")
    rng = np.random.default_rng(seed)
    named = {graph.tensors.name[tensor]: tensor for tensor in input_tensors(graph)}
    for name in given or {}:
        if name not in named:
            raise InputError(f"the model has no input {name!r}", remedy=f"its inputs are {', '.join(named) or 'none'}")
    return {
        name: _checked(graph, tensor, (given or {})[name]) if name in (given or {}) else _drawn(graph, tensor, rng)
        for name, tensor in named.items()
    }


def load_inputs(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a .npz file, by name. Raises InputError for a file that is none, or holds objects."""
    try:
        with open_regular(path) as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    except Exception:  # whatever numpy's reader of headers, zipfile and zlib raise
        remedy = "save the inputs by name with numpy.savez"
        raise InputError("is no .npz file of arrays", where=str(path), remedy=remedy) from None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of an element type. Raises InputError where there is none."""
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        found = {"float8_e4m3": "float8_e4m3fn"}.get(name, name)
        if hasattr(ml_dtypes, found):
            name = getattr(ml_dtypes, found)
    try:
        made: np.dtype[Any] = np.dtype(name)
        return made
    except TypeError:
        raise InputError(f"inputs of type {name!r} cannot be made", remedy="give the model in another type") from None


def _drawn(graph: Graph, tensor: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    shape, dtype = _shape(graph, tensor), numpy_dtype(DTYPES[int(graph.tensors.dtype[tensor])])
    if dtype.kind in "iub":
        return rng.integers(0, _LARGEST, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _checked(graph: Graph, tensor: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array, shape = np.asarray(array), _shape(graph, tensor)
    dtype, name = numpy_dtype(DTYPES[int(graph.tensors.dtype[tensor])]), graph.tensors.name[tensor]
    if array.shape != shape:
        raise InputError(f"the input {name!r} has shape {array.shape}, and the plan is for {shape}")
    if array.dtype != dtype:
        raise InputError(f"the input {name!r} is of type {array.dtype}, and the model takes {dtype}")
    return array


def _shape(graph: Graph, tensor: int) -> tuple[int, ...]:
    shape = tuple(map(int, graph.tensors.shape[tensor]))
    if min(shape, default=0) < 0:
        raise InputError(
            f"the shape of the input {graph.tensors.name[tensor]!r} is open", remedy="give its dimensions with --dim"
        )
    return shape
