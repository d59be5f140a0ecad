"""Ops that combine many elements into one: reductions, normalizations, softmax, pooling, sorting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.case import Case, Cost, Rule


def over_input(case: Case, *, per: int = 1) -> Cost:
    """`per` FLOPs for every element of the first argument."""
    return case.cost(per * case.size(0), "reduction")


def normalization(case: Case, *, per: int, summed: int = 0) -> Cost:
    """`per` FLOPs per element; `summed` more where a skip connection (and its bias) are added first."""
    return case.cost((per + summed) * case.outputs[0].size, "reduction")


def embedding(case: Case) -> Cost:
    """Word, position and segment rows looked up, summed and normalized: only those rows are read."""
    rows = 3 * case.outputs[0].nbytes
    return case.cost(9 * case.outputs[0].size, "reduction", nbytes=case.inputs[0].nbytes + rows + case.written)


def local_response(case: Case) -> Cost:
    """A square, a window's sum, and a power, product, sum and division per element."""
    return case.cost((case.number("size", 1) + 5) * case.size(0), "reduction")


def pool(case: Case, *, per: int = 1) -> Cost:
    """`per` FLOPs for every element under the window of every output element."""
    window = math.prod(case.attributes["kernel_shape"])
    return case.cost(per * window * case.outputs[0].size, "reduction")


def roi_pool(case: Case) -> Cost:
    """Regions of unknown extent: at most the whole map for each region."""
    regions = case.shape(1)[0]
    return case.cost(regions * math.prod(case.shape(0)[1:]), "reduction")


def roi_align(case: Case) -> Cost:
    """`sampling_ratio`² samples per output element (2² where it adapts), each from four neighbours."""
    samples = case.number("sampling_ratio", 0) or 2
    return case.cost(8 * samples**2 * case.outputs[0].size, "reduction")


def top_k(case: Case) -> Cost:
    """A heap of k: log2(k) + 1 comparisons per element."""
    axis = case.number("axis", -1)
    kept = case.outputs[0].shape[axis] if case.outputs[0].shape else 1
    return case.cost(case.size(0) * (math.log2(max(kept, 1)) + 1), "reduction")


def sort(case: Case) -> Cost:
    """N log2(n) comparisons."""
    size = case.size(0)
    return case.cost(size * math.log2(max(size, 2)), "reduction")


def fourier(case: Case) -> Cost:
    """5 n log2(n) for every transform of length n along `axis` (the last but one, of real and imaginary parts)."""
    shape = case.outputs[0].shape
    length = max(case.shape(0)[case.number("axis", -2)], shape[case.number("axis", -2)])
    transforms = math.prod(shape) // max(2 * shape[case.number("axis", -2)], 1)
    return case.cost(5 * transforms * length * math.log2(max(length, 2)), "reduction")


def short_fourier(case: Case) -> Cost:
    """5 n log2(n) for every frame; n is the window's length or what one-sided output says."""
    batch, frames, bins, _ = case.outputs[0].shape
    length = case.size(2) or (2 * (bins - 1) if case.number("onesided", 1) else bins)
    return case.cost(batch * frames * (length + 5 * length * math.log2(max(length, 2))), "reduction")


def suppression(case: Case) -> Cost:
    """Every pair of boxes of a class may be compared: 12 FLOPs for each overlap."""
    batch, classes, boxes = case.shape(1)
    return case.cost(6 * batch * classes * boxes * boxes, "reduction")


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
    "com.microsoft::EmbedLayerNormalization": embedding,
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
    "NonMaxSuppression": suppression,
}
