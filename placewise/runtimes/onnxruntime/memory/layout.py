"""The blocked layout of ONNX Runtime's convolutions on CPUs: padded channels, and copies between the layouts.

Channels lie in blocks of as many floats as a vector register holds. Convolutions and pools run in this layout if their
channels allow it, elementwise kernels if all that they read is blocked. A tensor that changes its layout is copied.
As in onnxruntime/core/optimizer/nchwc_transformer.cc.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

from placewise.model.graph import Graph
from placewise.runtimes.onnxruntime.memory.session import Session, SessionKernel, SessionValue

BLOCK = 16
"""Floats in an AVX-512 register; other processors have 8 or 4 and pad less."""
_ALIGNED = 4
_POOLS = frozenset({"MaxPool", "AveragePool"})
_GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
_ELEMENTWISE = frozenset({"Relu", "Sigmoid", "Tanh", "QuickGelu"})
_COMBINING = frozenset({"Add", "Sum", "Mul"})


def block_layouts(graph: Graph, session: Session) -> Session:
    """The session with blocked tensors padded and with copies between the layouts."""
    blocked, chosen = _find_blocked(graph, session)
    values = {row: _pad_channels(value) if row in blocked else value for row, value in session.values.items()}
    unblocked = (kernel for kernel in session.kernels if kernel not in chosen)
    read_plain = session.outputs.union(*(kernel.reads for kernel in unblocked))
    plain, inside = dict[int, int](), dict[int, int]()  # the copy of each value in the other layout
    numbers, kernels = count(max(session.values, default=0) + 1), list[SessionKernel]()

    def add_copy(value: int, copy: SessionValue, rank: tuple[int, int]) -> int:
        number = next(numbers)
        values[number] = copy
        kernels.append(SessionKernel(-1, "Reorder", [value], [number], rank=rank))
        return number

    for position, kernel in enumerate(session.kernels):
        rank = (2, position) if kernel in chosen else kernel.rank
        for value in kernel.reads if kernel in chosen else ():
            if value not in blocked and value not in inside and not _reads_plain(kernel, values[value]):
                inside[value] = add_copy(value, _pad_channels(values[value]), rank)
        kernels.append(_redirect_reads(kernel, inside if kernel in chosen else plain, rank))
        for value in kernel.makes:
            if value in blocked and value in read_plain:
                plain[value] = add_copy(value, session.values[value], (3, position))
    return Session(kernels, values, session.inputs, {plain.get(value, value) for value in session.outputs})


def _redirect_reads(kernel: SessionKernel, copies: dict[int, int], rank: tuple[int, int]) -> SessionKernel:
    """The kernel, reading copies in its own layout."""
    reads, overwrites = ([copies.get(value, value) for value in row] for row in (kernel.reads, kernel.overwrites))
    return replace(kernel, reads=reads, overwrites=tuple(overwrites), rank=rank)


def _find_blocked(graph: Graph, session: Session) -> tuple[set[int], set[SessionKernel]]:
    """The values that are made in the blocked layout, and the kernels that make them."""
    values, blocked, chosen = session.values, set[int](), set[SessionKernel]()
    for kernel in session.kernels:
        inside = blocked.issuperset(kernel.reads)
        if _is_over_images(values, kernel) and _runs_in_blocks(graph, kernel, values, inside=inside):
            blocked.update(kernel.makes)
            chosen.add(kernel)
    return blocked, chosen


def _runs_in_blocks(graph: Graph, kernel: SessionKernel, values: dict[int, SessionValue], *, inside: bool) -> bool:
    """Whether a kernel over images runs in the blocked layout; `inside`: all that it reads is blocked."""
    aligned = all(_channels(values[value]) % BLOCK == 0 for value in kernel.reads)
    if kernel.kind == "Conv":
        return _conv_runs_in_blocks(graph, kernel)
    if kernel.kind in _POOLS:
        return aligned and len(kernel.makes) == 1 and graph.ops.dtype_name(kernel.op) == "float32"
    if kernel.kind in _GLOBAL_POOLS:
        return inside and aligned
    if kernel.kind == "Concat":
        return inside and aligned and graph.ops.attributes[kernel.op].get("axis") == 1
    if kernel.kind in _COMBINING:
        return inside and len(kernel.reads) > 1 and len({values[value].shape for value in kernel.reads}) == 1
    return inside and kernel.kind in _ELEMENTWISE


def _conv_runs_in_blocks(graph: Graph, kernel: SessionKernel) -> bool:
    """Whether a convolution runs in the blocked layout: float32, images, known weights, aligned channels."""
    weights = graph.weights_of(kernel.op).tolist()
    shape = graph.weights.shape[weights[0]] if weights else ()
    if len(shape) != 4 or graph.ops.dtype_name(kernel.op) != "float32":
        return False
    group = int(graph.ops.attributes[kernel.op].get("group", 1))
    if group == 1:
        return shape[1] < BLOCK or shape[1] % _ALIGNED == 0
    if shape[1] == 1 and shape[0] == group:
        return shape[0] % _ALIGNED == 0
    return group > 1 and shape[1] % BLOCK == 0 and shape[0] % (group * BLOCK) == 0


def _reads_plain(kernel: SessionKernel, value: SessionValue) -> bool:
    """Whether a convolution reads a value in the plain layout: images of few channels, as first layers do."""
    return kernel.kind == "Conv" and _channels(value) < BLOCK


def _is_over_images(values: dict[int, SessionValue], kernel: SessionKernel) -> bool:
    shapes = [values[value].shape for value in (*kernel.reads, *kernel.makes)]
    return bool(kernel.reads) and all(shape is not None and len(shape) == 4 for shape in shapes)


def _channels(value: SessionValue) -> int:
    return value.shape[1] if value.shape is not None else 0


def _pad_channels(value: SessionValue) -> SessionValue:
    if value.shape is None:
        return value
    batch, channels, *sides = value.shape
    shape = (batch, -(-channels // BLOCK) * BLOCK, *sides)
    return SessionValue(math.prod(shape) * value.itemsize, shape, value.itemsize)
