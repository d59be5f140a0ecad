"""Cast a graph as a runtime does when it loads a model in another precision: floats, or the weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from placewise.errors import InputError
from placewise.model.columns import Bools, Bytes8, Longs
from placewise.model.dtypes import BITS, dtype_code
from placewise.model.graph import Graph
from placewise.model.tables import Attributes, Interned


class Precision(NamedTuple):
    """The element type of floats; where matrices of weights are quantized, theirs, and a block's entries and bytes."""

    floats: str
    matrices: str = ""
    block: int = 1
    block_bytes: int = 0


PRECISIONS: Mapping[str, Precision] = {
    "fp64": Precision("float64"),
    "fp32": Precision("float32"),
    "tf32": Precision("float32"),
    "fp16": Precision("float16"),
    "bf16": Precision("bfloat16"),
    "fp8": Precision("float16", "float8_e4m3", 1, 1),
    "int8": Precision("float16", "int8", 32, 34),
    "int4": Precision("float16", "int4", 32, 18),
}
"""By user-facing name. Blocks of int8 and int4 are those of llama.cpp's Q8_0 and Q4_0: 32 numbers and a float16 scale;
the scales of fp8, one per tensor, are not counted."""

STEP = "precision:"
"""Prefix of this transform's name in a source, followed by the precision."""

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_KEPT: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2), "Upsample": (1,), "NonMaxSuppression": (0, 1, 3, 4)}
"""Kinds and positions of arguments that exist in float32 only (ONNX, operator schemas)."""


def cast_floats(graph: Graph, name: str) -> Graph:
    """Return `graph` with the floats of a precision of `PRECISIONS`: inputs, weights, results and arithmetic.

    Bytes follow. Integers, booleans, complex numbers, floats of 8 bits and less, and arguments that ops take in float32
    only stay. The graph itself is returned if nothing changes. Raises InputError if it has no floats.
    """
    if not (_are_floats(graph.tensors.dtype).any() or _are_floats(graph.weights.dtype).any()):
        raise InputError(
            f"no tensor of the model is known to be of floats: --precision {name} would change nothing",
            remedy="leave it out",
        )
    code = dtype_code(PRECISIONS[name].floats)
    read_by_kept = _mark_kept(graph, weights=False), _mark_kept(graph, weights=True)
    tensors = _cast_values(graph.tensors.dtype, graph.tensors.bytes, read_by_kept[0], code)
    weights = _cast_values(graph.weights.dtype, graph.weights.bytes, read_by_kept[1], code)
    ops = np.where(_are_floats(graph.ops.dtype), np.int8(code), graph.ops.dtype)
    attributes = tuple(_cast_bodies(value, PRECISIONS[name].floats) for value in graph.ops.attributes.values)
    if (
        np.array_equal(tensors[0], graph.tensors.dtype)
        and np.array_equal(weights[0], graph.weights.dtype)
        and np.array_equal(ops, graph.ops.dtype)
        and attributes == graph.ops.attributes.values
    ):
        return graph
    state = _scale(graph.ops.state_bytes, graph.ops.dtype, ops)
    cast = replace(
        graph,
        ops=replace(
            graph.ops, dtype=ops, state_bytes=state, attributes=Interned(attributes, graph.ops.attributes.codes)
        ),
        tensors=replace(graph.tensors, dtype=tensors[0], bytes=tensors[1]),
        weights=replace(graph.weights, dtype=weights[0], bytes=weights[1]),
    )
    return _note_step(cast, name)


def quantize_weights(graph: Graph, name: str) -> Graph:
    """Return `graph` with its matrices of weights in the stored type of a precision that has one.

    Matrices are weights of floats with at least two dimensions longer than 1, as llama.cpp chooses them; constants are
    none. For fp8, tables that are looked up stay as they are, with all that share their storage, as in vLLM. Raises
    InputError if the graph is quantized already, or has no matrix.
    """
    precision = PRECISIONS[name]
    kinds = graph.ops.kind.values
    if any(kind.endswith("DequantizeLinear") or "FakeQuantize" in kind for kind in kinds):
        raise InputError(
            f"the model is quantized already, and is priced as it is: --precision {name} would change nothing",
            remedy="leave it out, or give --precision fp16 for the floats that are left",
        )
    weights = graph.weights
    long = np.array([sum(size > 1 for size in weights.shape[row]) for row in range(len(weights))], np.int64)
    chosen = _are_floats(weights.dtype) & (long >= 2) & weights.trainable & (weights.bytes > 0)
    if precision.matrices.startswith("float"):
        lookups = graph.ops.kind.equals("Gather")[graph.weight_edges.consumer]
        chosen &= ~np.isin(weights.storage, weights.storage[graph.weight_edges.value[lookups]])
    if not chosen.any():
        if (weights.dtype == dtype_code(precision.matrices)).any():
            return graph
        raise InputError(
            f"no weight of the model is a matrix of floats: --precision {name} would change nothing",
            remedy="leave it out, or give --precision fp16",
        )
    entries = weights.bytes * 8 // np.maximum(BITS[weights.dtype], 1)
    nbytes = np.where(chosen, -(-entries // precision.block) * precision.block_bytes, weights.bytes)
    dtype = np.where(chosen, np.int8(dtype_code(precision.matrices)), weights.dtype)
    return _note_step(replace(graph, weights=replace(weights, dtype=dtype, bytes=nbytes)), name)


def precision_of(graph: Graph) -> str:
    """The precision that a graph was cast to by these transforms; "" if it is as its file has it."""
    steps = () if graph.source is None else graph.source.transforms
    return next((step.removeprefix(STEP) for step in reversed(steps) if step.startswith(STEP)), "")


def _note_step(graph: Graph, name: str) -> Graph:
    source = graph.source
    if source is None or f"{STEP}{name}" in source.transforms:
        return graph
    return graph.with_source(replace(source, transforms=(*source.transforms, f"{STEP}{name}")))


def _are_floats(dtype: Bytes8) -> Bools:
    return np.isin(dtype, [dtype_code(name) for name in _FLOATS])


def _mark_kept(graph: Graph, *, weights: bool) -> Bools:
    """The values that are read only where an op takes float32 alone."""
    edges, count = (graph.weight_edges, len(graph.weights)) if weights else (graph.edges, graph.n_tensors)
    at_kept = np.zeros(len(edges), np.bool_)
    for kind, positions in _KEPT.items():
        at_kept |= graph.ops.kind.equals(kind)[edges.consumer] & np.isin(edges.position, positions)
    kept = np.zeros(count, np.bool_)
    kept[edges.value[at_kept]] = True
    kept[edges.value[~at_kept]] = False
    return kept


def _cast_values(dtype: Bytes8, nbytes: Longs, kept: Bools, code: int) -> tuple[Bytes8, Longs]:
    new = np.where(_are_floats(dtype) & ~kept, np.int8(code), dtype)
    return new, _scale(nbytes, dtype, new)


def _scale(nbytes: Longs, before: Bytes8, after: Bytes8) -> Longs:
    """Bytes of as many entries of another type; unknown bytes (−1) stay unknown."""
    scaled = nbytes * BITS[after] // np.maximum(BITS[before], 1)
    return np.where((before == after) | (nbytes < 0), nbytes, scaled)


def _cast_bodies(attributes: Attributes, dtype: str) -> Attributes:
    """Attributes with the element types in the bodies of control flow cast."""
    if "bodies" not in attributes:
        return attributes
    bodies = tuple(
        {**body, "ops": tuple(_cast_inner(inner, dtype) for inner in body["ops"])} for body in attributes["bodies"]
    )
    return {**attributes, "bodies": bodies}


def _cast_inner(inner: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    def cast(name: str) -> str:
        return dtype if name in _FLOATS else name

    return {
        **inner,
        "attributes": _cast_bodies(inner["attributes"], dtype),
        "dtype": cast(inner["dtype"]),
        "inputs": tuple((position, dims, cast(name)) for position, dims, name in inner["inputs"]),
        "outputs": tuple((dims, cast(name)) for dims, name in inner["outputs"]),
    }
