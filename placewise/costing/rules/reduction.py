"""Ops that combine many elements: reductions, normalizations, softmax, pooling, sorting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule


def over_input(op: OpInstance, *, per: int = 1) -> Cost:
    """`per` FLOPs for every element of the first argument."""
    return op.cost(per * op.size(0), "reduction")


def normalization(op: OpInstance, *, per: int, summed: int = 0) -> Cost:
    """`per` FLOPs per element; `summed` more if a skip connection (and its bias) are added first."""
    return op.cost((per + summed) * op.outputs[0].size, "reduction")


def embed(op: OpInstance) -> Cost:
    """Word, position and segment rows, looked up, summed and normalized: only these rows are read."""
    rows = 3 * op.outputs[0].nbytes
    return op.cost(9 * op.outputs[0].size, "reduction", nbytes=op.inputs[0].nbytes + rows + op.bytes_written)


def local_response(op: OpInstance) -> Cost:
    """A square, a window's sum, and a power, product, sum and division per element."""
    return op.cost((op.number("size", 1) + 5) * op.size(0), "reduction")


def pool(op: OpInstance, *, per: int = 1) -> Cost:
    """`per` FLOPs for every element under the window of every output element."""
    window = math.prod(op.attributes["kernel_shape"])
    return op.cost(per * window * op.outputs[0].size, "reduction")


def roi_pool(op: OpInstance) -> Cost:
    """Regions of unknown extent: at most the whole map per region."""
    regions = op.shape(1)[0]
    return op.cost(regions * math.prod(op.shape(0)[1:]), "reduction")


def roi_align(op: OpInstance) -> Cost:
    """`sampling_ratio`² samples per output element (2² if it adapts), each from four neighbours."""
    samples = op.number("sampling_ratio", 0) or 2
    return op.cost(8 * samples**2 * op.outputs[0].size, "reduction")


def top_k(op: OpInstance) -> Cost:
    """A heap of k: log2(k) + 1 comparisons per element."""
    axis = op.number("axis", -1)
    kept = op.outputs[0].shape[axis] if op.outputs[0].shape else 1
    return op.cost(op.size(0) * (math.log2(max(kept, 1)) + 1), "reduction")


def sort(op: OpInstance) -> Cost:
    """N log2(n) comparisons."""
    size = op.size(0)
    return op.cost(size * math.log2(max(size, 2)), "reduction")


def fourier(op: OpInstance) -> Cost:
    """5 n log2(n) for every transform of length n along `axis` (the last but one, of real and imaginary parts)."""
    shape = op.outputs[0].shape
    length = max(op.shape(0)[op.number("axis", -2)], shape[op.number("axis", -2)])
    transforms = math.prod(shape) // max(2 * shape[op.number("axis", -2)], 1)
    return op.cost(5 * transforms * length * math.log2(max(length, 2)), "reduction")


def short_fourier(op: OpInstance) -> Cost:
    """5 n log2(n) for every frame; n is the window's length or follows from one-sided output."""
    batch, frames, bins, _ = op.outputs[0].shape
    length = op.size(2) or (2 * (bins - 1) if op.number("onesided", 1) else bins)
    return op.cost(batch * frames * (length + 5 * length * math.log2(max(length, 2))), "reduction")


def non_max_suppression(op: OpInstance) -> Cost:
    """Every pair of boxes of a class may be compared: 12 FLOPs per overlap."""
    batch, classes, boxes = op.shape(1)
    return op.cost(6 * batch * classes * boxes * boxes, "reduction")


_FLOPS = {
    1: """ArgMax ArgMin CumProd CumSum Hardmax NonZero GlobalAveragePool GlobalMaxPool Multinomial
       ReduceLogSum ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Col2Im NegativeLogLikelihoodLoss""",
    2: "GlobalLpPool ReduceL1 ReduceL2 ReduceSumSquare",
    4: "ReduceLogSumExp LpNormalization",
    5: "LogSoftmax MeanVarianceNormalization Softmax com.microsoft::QLinearSoftmax com.microsoft::BiasSoftmax",
    6: "SoftmaxCrossEntropyLoss",
}
_NORMALIZATIONS = {
    "LayerNormalization": (7, 0), "GroupNormalization": (7, 0), "InstanceNormalization": (7, 0),
    "RMSNormalization": (4, 0), "SimplifiedLayerNormalization": (4, 0),
    "com.microsoft::LayerNormalization": (7, 0), "com.microsoft::GroupNorm": (7, 0),
    "com.microsoft::SimplifiedLayerNormalization": (4, 0),
    "com.microsoft::SkipLayerNormalization": (7, 2), "com.microsoft::SkipSimplifiedLayerNormalization": (4, 1),
}  # fmt: skip

RULES: Mapping[str, Rule] = {
    **{kind: partial(over_input, per=per) for per, kinds in _FLOPS.items() for kind in kinds.split()},
    **{kind: partial(normalization, per=per, summed=more) for kind, (per, more) in _NORMALIZATIONS.items()},
    "com.microsoft::EmbedLayerNormalization": embed,
    "LRN": local_response,
    "MaxPool": pool,
    "AveragePool": pool,
    "LpPool": partial(pool, per=2),
    "com.microsoft::QLinearAveragePool": pool,
    "com.microsoft::QLinearGlobalAveragePool": over_input,
    "MaxRoiPool": roi_pool,
    "RoiAlign": roi_align,
    "TopK": top_k,
    "Unique": sort,
    "DFT": fourier,
    "STFT": short_fourier,
    "NonMaxSuppression": non_max_suppression,
}
