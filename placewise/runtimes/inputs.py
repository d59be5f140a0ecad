"""Inputs of a model: random for every sample, or given by the user and checked."""

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
"""Integers are drawn below this: 0 and 1 are tokens of every vocabulary and values of every mask."""


def input_tensors(graph: Graph) -> tuple[int, ...]:
    """The input tensors of the model: those without a producer that an op reads or that are outputs.

    In raw graphs of OpenVINO IR their producer is an op of the kind Input.
    """
    read = np.zeros(graph.n_tensors, np.bool_)
    read[graph.edges.value] = True
    producer = graph.tensors.producer
    is_input = producer < 0
    is_input[~is_input] = graph.ops.kind.equals("Input")[producer[~is_input]]
    return tuple(np.flatnonzero(is_input & (read | graph.tensors.output)).tolist())


def fresh_inputs(graph: Graph, seed: int, given: Arrays | None = None) -> dict[str, npt.NDArray[Any]]:
    """Inputs for one sample: the `given` arrays, and for the others normal floats and integers of 0 and 1 from `seed`.

    Raises InputError for a negative seed, an open shape, an element type without a numpy type, and for given arrays of
    a wrong name, shape or type.
    """
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", remedy="give a whole number from 0")
    rng = np.random.default_rng(seed)
    named = {graph.tensors.name[tensor]: tensor for tensor in input_tensors(graph)}
    for name in given or ():
        if name not in named:
            raise InputError(f"the model has no input {name!r}", remedy=f"its inputs are {', '.join(named) or 'none'}")
    given = given or {}
    return {
        name: _check_array(graph, tensor, given[name]) if name in given else _draw_array(graph, tensor, rng)
        for name, tensor in named.items()
    }


def load_inputs(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a .npz file by name. Raises InputError for another kind of file, and for one that holds objects."""
    try:
        with open_regular(path) as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    except Exception:  # numpy, zipfile and zlib raise many types
        remedy = "save the inputs by name with numpy.savez"
        raise InputError("is no .npz file of arrays", where=str(path), remedy=remedy) from None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of an element type. Raises InputError if there is none."""
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        alias = {"float8_e4m3": "float8_e4m3fn"}.get(name, name)
        name = getattr(ml_dtypes, alias, name)
    try:
        return np.dtype(name)
    except TypeError:
        raise InputError(f"inputs of type {name!r} cannot be made", remedy="give the model in another type") from None


def _draw_array(graph: Graph, tensor: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    shape, dtype = _shape(graph, tensor), numpy_dtype(DTYPES[int(graph.tensors.dtype[tensor])])
    if dtype.kind in "iub":
        return rng.integers(0, _LARGEST, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _check_array(graph: Graph, tensor: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
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
