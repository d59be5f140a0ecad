"""Ops of OpenVINO that ONNX lacks.

From the operation specifications in the OpenVINO documentation (docs.openvino.ai, "Available Operation Sets").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule
from placewise.costing.rules.movement import copy, free, gather
from placewise.costing.rules.pointwise import pointwise
from placewise.costing.rules.reduction import over_input, sort


def cell(op: OpInstance, *, weights: int, per: int) -> Cost:
    """One step of a recurrent layer: X and the state times the matrices at `weights` and the next position."""
    batch, hidden = op.outputs[0].shape
    flops = 2 * batch * (op.size(weights) + op.size(weights + 1)) + per * batch * hidden
    return op.cost(flops, "matmul")


def attention(op: OpInstance) -> Cost:
    """Q [… , queries, width], K [… , keys, width] and V [… , keys, value width], with any leading dimensions."""
    *front, queries, width = op.shape(0)
    keys, value_width = op.shape(2)[-2:]
    return op.cost(math.prod(front) * queries * keys * (2 * width + 2 * value_width + 5), "attention")


def paged_attention(op: OpInstance) -> Cost:
    """Q, K and V as [tokens, heads · width]; the past, whose length is known only at run time, is not counted."""
    tokens, packed = op.shape(0)
    flops = tokens * tokens * (2 * packed + 2 * op.outputs[0].shape[-1])
    nbytes = sum(op.inputs[position].nbytes for position in range(3)) + op.bytes_written
    return Cost(flops, nbytes, "attention", known=False)


def inverse(op: OpInstance) -> Cost:
    """Gauss–Jordan elimination on [n, n]: 2 n³."""
    return op.cost(2 * op.size(0) * op.shape(0)[-1], "matmul")


def binary_convolution(op: OpInstance) -> Cost:
    """A convolution of single bits, counted as int8."""
    return op.cost(2 * math.prod(op.shape(1)[1:]) * op.outputs[0].size, "conv", dtype="int8")


def embedding_bag(op: OpInstance) -> Cost:
    """Rows of a table, summed by bag: only the rows in argument 1 are read."""
    table, rows = op.inputs[0], op.size(1)
    width = table.size // max(table.shape[0], 1)
    indices = sum(value.nbytes for position, value in op.inputs.items() if position)
    row_bytes = table.nbytes // max(table.shape[0], 1)
    return op.cost(rows * width, "reduction", nbytes=rows * row_bytes + indices + op.bytes_written)


def fourier(op: OpInstance) -> Cost:
    """5 N log2(N) over all elements, an upper bound: the axes of the transform are not in the shapes."""
    size = max(op.size(0), op.outputs[0].size)
    return op.cost(5 * size / 2 * math.log2(max(size, 2)), "reduction")


def short_fourier(op: OpInstance) -> Cost:
    """5 n log2(n) for every frame of the window's length n, and the window's products."""
    length, result = op.size(1), op.outputs[0]
    frames = result.size // max(2 * (length // 2 + 1), 1)
    return op.cost(frames * (length + 5 * length * math.log2(max(length, 2))), "reduction")


def stored(op: OpInstance) -> Cost:
    """A value kept for the next call: read once and written once."""
    return op.cost(0, "movement", nbytes=2 * op.bytes_read)


_OPS = "openvino::"
_BAGS = "EmbeddingBagOffsets EmbeddingBagOffsetsSum EmbeddingBagPacked EmbeddingBagPackedSum EmbeddingSegmentsSum"
_COPIED = "BatchToSpace ConvertPromoteTypes ReorgYolo Reverse Roll ShuffleChannels SpaceToBatch"

_RULES: Mapping[str, Rule] = {
    "IsFinite": partial(pointwise, per=1),
    "NotEqual": partial(pointwise, per=1),
    "SquaredDifference": partial(pointwise, per=2),
    "GRN": partial(pointwise, per=4),
    "FakeConvert": partial(pointwise, per=4),
    "FakeQuantize": partial(pointwise, per=7),
    "ReduceLogicalAnd": over_input,
    "ReduceLogicalOr": over_input,
    "AdaptiveAvgPool": over_input,
    "AdaptiveMaxPool": over_input,
    "Bucketize": sort,
    "SearchSorted": sort,
    "LSTMCell": partial(cell, weights=3, per=30),
    "GRUCell": partial(cell, weights=2, per=23),
    "RNNCell": partial(cell, weights=2, per=4),
    "ScaledDotProductAttention": attention,
    "PagedAttentionExtension": paged_attention,
    "Inverse": inverse,
    "BinaryConvolution": binary_convolution,
    **dict.fromkeys(_BAGS.split(), embedding_bag),
    **dict.fromkeys(("DFT", "IDFT", "RDFT", "IRDFT"), fourier),
    "STFT": short_fourier,
    "ReadValue": free,
    "Assign": stored,
    "GatherTree": gather,
    **dict.fromkeys(_COPIED.split(), copy),
}

RULES: Mapping[str, Rule] = {"Input": free, "Output": free, **{_OPS + kind: rule for kind, rule in _RULES.items()}}
"""Kind → rule; Input and Output occur in any format."""
