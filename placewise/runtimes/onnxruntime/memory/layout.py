"""The blocked layout of ONNX Runtime's convolutions on CPUs: what it pads, and the copies in front of it and behind it.

Channels lie in blocks of as many floats as a vector register holds. Convolutions and pools run in it where channels
allow it, element by element what reads their results only; where a tensor goes from one layout to the other, a copy is
made. As in onnxruntime/core/optimizer/nchwc_transformer.cc.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

from placewise.model.graph import Graph
from placewise.runtimes.onnxruntime.memory.kernels import Kernel, Session, Value

BLOCK = 16
"""Floats in a register of AVX-512; other processors have 8 or 4 and pad less."""
_ALIGNED = 4
_POOLS = frozenset({"MaxPool", "AveragePool"})
_GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
_THROUGH = frozenset({"Relu", "Sigmoid", "Tanh", "QuickGelu"})
_TOGETHER = frozenset({"Add", "Sum", "Mul"})


def with_layouts(graph: Graph, session: Session, block: int = BLOCK) -> Session:
    """The session with its tensors padded where they are blocked, and with the copies between layouts."""
    blocked, chosen = _blocked(graph, session, block)
    values = {row: _padded(value, block) if row in blocked else value for row, value in session.values.items()}
    unblocked = (kernel for kernel in session.kernels if kernel not in chosen)
    wanted_plain = session.kept.union(*(kernel.reads for kernel in unblocked))
    plain, inside = dict[int, int](), dict[int, int]()  # what a value is in the other layout
    numbers, kernels = count(max(session.values, default=0) + 1), list[Kernel]()

    def copied(value: int, copy: Value, rank: tuple[int, int]) -> int:
        number = next(numbers)
        values[number] = copy
        kernels.append(Kernel(-1, "Reorder", [value], [number], rank=rank))
        return number

    for turn, kernel in enumerate(session.kernels):
        rank = (2, turn) if kernel in chosen else kernel.rank
        for value in kernel.reads if kernel in chosen else ():
            if value not in blocked and value not in inside and not _as_it_is(kernel, values[value], block):
                inside[value] = copied(value, _padded(values[value], block), rank)
        kernels.append(_reading(kernel, inside if kernel in chosen else plain, rank))
        for value in kernel.makes:
            if value in blocked and value in wanted_plain:
                plain[value] = copied(value, session.values[value], (3, turn))
    return Session(kernels, values, session.given, {plain.get(value, value) for value in session.kept})


def _reading(kernel: Kernel, copies: dict[int, int], rank: tuple[int, int]) -> Kernel:
    """The kernel with what it reads in the layout that it wants."""
    reads, over = ([copies.get(value, value) for value in row] for row in (kernel.reads, kernel.over))
    return replace(kernel, reads=reads, over=tuple(over), rank=rank)


def _blocked(graph: Graph, session: Session, block: int) -> tuple[set[int], set[Kernel]]:
    """The values that are made in blocks, and the kernels that make them."""
    values, blocked, chosen = session.values, set[int](), set[Kernel]()
    for kernel in session.kernels:
        inside = blocked.issuperset(kernel.reads)
        if _images(values, kernel) and _runs_in_blocks(graph, kernel, values, block, inside=inside):
            blocked.update(kernel.makes)
            chosen.add(kernel)
    return blocked, chosen


def _runs_in_blocks(graph: Graph, kernel: Kernel, values: dict[int, Value], block: int, *, inside: bool) -> bool:
    """Whether a kernel over images runs in blocks; `inside` says that all that it reads is in blocks."""
    aligned = all(_channels(values[value]) % block == 0 for value in kernel.reads)
    if kernel.kind == "Conv":
        return _convolves(graph, kernel, block)
    if kernel.kind in _POOLS:
        return aligned and len(kernel.makes) == 1 and graph.ops.dtype_name(kernel.op) == "float32"
    if kernel.kind in _GLOBAL_POOLS:
        return inside and aligned
    if kernel.kind == "Concat":
        return inside and aligned and graph.ops.attributes[kernel.op].get("axis") == 1
    if kernel.kind in _TOGETHER:
        return inside and len(kernel.reads) > 1 and len({values[value].shape for value in kernel.reads}) == 1
    return inside and kernel.kind in _THROUGH


def _convolves(graph: Graph, kernel: Kernel, block: int) -> bool:
    """Whether a convolution runs in blocks: float32, over images, with weights that are known, channels aligned."""
    weights = graph.weights_of(kernel.op).tolist()
    shape = graph.weights.shape[weights[0]] if weights else ()
    if len(shape) != 4 or graph.ops.dtype_name(kernel.op) != "float32":
        return False
    group = int(graph.ops.attributes[kernel.op].get("group", 1))
    if group == 1:
        return shape[1] < block or shape[1] % _ALIGNED == 0
    if shape[1] == 1 and shape[0] == group:
        return shape[0] % _ALIGNED == 0
    return group > 1 and shape[1] % block == 0 and shape[0] % (group * block) == 0


def _as_it_is(kernel: Kernel, value: Value, block: int) -> bool:
    """Whether a convolution takes what it reads in the plain layout: images of few channels, as the first ones have."""
    return kernel.kind == "Conv" and _channels(value) < block


def _images(values: dict[int, Value], kernel: Kernel) -> bool:
    shapes = [values[value].shape for value in (*kernel.reads, *kernel.makes)]
    return bool(kernel.reads) and all(shape is not None and len(shape) == 4 for shape in shapes)


def _channels(value: Value) -> int:
    return value.shape[1] if value.shape is not None else 0


def _padded(value: Value, block: int) -> Value:
    if value.shape is None:
        return value
    batch, channels, *sides = value.shape
    shape = (batch, -(-channels // block) * block, *sides)
    return Value(math.prod(shape) * value.item, shape, value.item)
