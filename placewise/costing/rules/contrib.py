"""Ops that ONNX Runtime adds to the standard, except for variants of products and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule
from placewise.costing.rules.aten import pairwise_distances
from placewise.costing.rules.llm import share_used
from placewise.costing.rules.movement import copy, free, gather, grid_sample, resize
from placewise.costing.rules.openvino import inverse
from placewise.costing.rules.pointwise import pointwise
from placewise.costing.rules.recurrent import recurrent
from placewise.costing.rules.reduction import embed, normalization, over_input, pool


def experts(op: OpInstance, *, weights: tuple[int, ...]) -> Cost:
    """Tokens [.., width] and router [tokens, experts]; `weights` are [experts, rows, columns], possibly of few bits.

    A token uses k of E experts; under uniform routing, E · (1 − (1 − k/E)^tokens) experts are in use and read.
    """
    width, (tokens, count), per_token = op.shape(0)[-1], op.shape(1), op.number("k", 1)
    matrices = [op.inputs[position] for position in weights if position in op.inputs]
    bits = op.number("fc2_expert_weight_bits", 0) or op.number("expert_weight_bits", 4)
    entries = 8 // bits if "QMoE" in op.kind and matrices[0].dtype in ("uint8", "int8") else 1
    inner = matrices[1].shape[2] * entries
    rows = tokens * per_token
    products = (
        2
        * rows
        * (width * sum(value.shape[1] for value in (matrices[0], *matrices[2:])) + inner * matrices[1].shape[1])
    )
    used = share_used(per_token, count, tokens)
    others = sum(value.nbytes for value in op.inputs.values()) - sum(value.nbytes for value in matrices)
    nbytes = others + op.bytes_written + used * sum(value.nbytes for value in matrices)
    return op.cost(products + rows * (6 * inner + 2 * width) + 5 * tokens * count, "matmul", nbytes=nbytes)


def fourier(op: OpInstance) -> Cost:
    """A transform of a real signal of length n: half of 5 n log2(n); complex values have a last dimension of two."""
    real = min((op.shape(0), op.outputs[0].shape), key=len)
    return op.cost(5 / 2 * math.prod(real) * math.log2(max(real[-1], 2)), "reduction")


def hyper_connection(op: OpInstance) -> Cost:
    """Streams […, C, H] with a gate each, and C × C products of them if there is a matrix (argument 3)."""
    branches = op.shape(3)[-1] if 3 in op.inputs else 0
    return op.cost((2 * branches + 2) * op.size(0), "elementwise")


def word_convolution(op: OpInstance) -> Cost:
    """A convolution [filters, 1, window, width] over the characters of words [batch, length, characters]."""
    batch, length, characters = op.shape(0)
    places = max(characters - op.shape(1)[2] + 1, 1)
    return op.cost(2 * batch * length * places * op.size(1), "conv")


_POINTWISE = {
    1: "MulInteger Range",
    2: "BitmaskDropout DequantizeWithOrder GatedAdd",
    3: "BiasDropout BitmaskBiasDropout ComplexMul ComplexMulConj MRotaryEmbedding",
    4: "QLinearWhere QuantizeWithOrder",
    6: "GemmaRotaryEmbedding ScaledSiLU",
    8: "CropAndResize LinearAttentionGate MurmurHash3",
    9: "QOrderedGelu",
}
_NORMALIZATIONS = {"BranchwiseRMSNorm": 4, "SkipGroupNorm": 8, "GatedRMSNorm": 10, "QOrderedLayerNormalization": 11}
_COPIED = "NGramRepeatBlock RelativePositionBias RemovePadding RestorePadding SampleOp Trilu UnfoldTensor"
_OWN: Mapping[str, Rule] = {
    **{kind: partial(pointwise, per=per) for per, kinds in _POINTWISE.items() for kind in kinds.split()},
    **{kind: partial(normalization, per=per) for kind, per in _NORMALIZATIONS.items()},
    **dict.fromkeys(_COPIED.split(), copy),
    "AttnLSTM": partial(recurrent, per=30),
    "CDist": pairwise_distances,
    "EngramGate": partial(over_input, per=14),
    "ExpandDims": free,
    "GatherND": gather,
    "GridSample": grid_sample,
    "HyperConnectionPostMix": hyper_connection,
    "HyperConnectionPreMix": hyper_connection,
    "Inverse": inverse,
    "Irfft": fourier,
    "IsAllFinite": over_input,
    "MaxpoolWithMask": pool,
    "MoE": partial(experts, weights=(2, 4, 6)),
    "NhwcMaxPool": pool,
    "QEmbedLayerNormalization": embed,
    "QLinearReduceMean": partial(over_input, per=2),
    "QMoE": partial(experts, weights=(2, 5, 8)),
    "ReduceSumInteger": over_input,
    "Rfft": fourier,
    "TorchEmbedding": gather,
    "Unique": over_input,
    "WordConvEmbedding": word_convolution,
}
_NCHWC: Mapping[str, Rule] = {
    "AveragePool": pool,
    "GlobalAveragePool": over_input,
    "GlobalMaxPool": over_input,
    "MaxPool": pool,
    "ReorderInput": copy,
    "ReorderOutput": copy,
    "Upsample": resize,
}

RULES: Mapping[str, Rule] = {
    **{f"com.microsoft::{kind}": rule for kind, rule in _OWN.items()},
    **{f"com.microsoft.nchwc::{kind}": rule for kind, rule in _NCHWC.items()},
}
