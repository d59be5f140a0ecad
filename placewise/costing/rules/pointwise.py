"""Ops that treat every element by itself: a fixed number of FLOPs per output element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.case import Case, Cost, Rule


def pointwise(case: Case, *, per: int) -> Cost:
    """`per` FLOPs for every element of the first output."""
    return case.cost(per * case.outputs[0].size, "elementwise")


def joined(case: Case, *, more: int = 0) -> Cost:
    """One FLOP per output element and argument after the first, and `more`."""
    return pointwise(case, per=max(len(case.inputs) - 1, 0) + more)


def shrunk_to(case: Case, *, per: int) -> Cost:
    """`per` FLOPs for every element of the first argument."""
    return case.cost(per * case.size(0), "elementwise")


def batch_normalization(case: Case) -> Cost:
    """Scale and shift, prepared per channel; in training also mean and variance."""
    return pointwise(case, per=8 if case.number("training_mode", 0) else 2)


_FLOPS = {
    1: """Abs Acos Acosh Add And Asin Asinh Atan Atanh Bernoulli BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
       Ceil Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Mod Mul Neg Not
       Or Pow RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal Relu Round Sign Sin Sinh
       Sqrt Sub Tan Tanh ThresholdedRelu Where Xor""",
    2: "Clip DequantizeLinear HammingWindow HannWindow LeakyRelu PRelu Shrink com.microsoft::DequantizeLinear",
    3: "Elu Softplus Softsign RotaryEmbedding com.microsoft::RotaryEmbedding",
    4: "BlackmanWindow Celu HardSigmoid MelWeightMatrix QuantizeLinear Selu Sigmoid com.microsoft::QuantizeLinear",
    5: "Gelu HardSwish Mish Swish com.microsoft::Gelu com.microsoft::QuickGelu",
    6: "DynamicQuantizeLinear SwiGLU com.microsoft::BiasGelu",
    7: "com.microsoft::QLinearAdd com.microsoft::QLinearMul com.microsoft::QLinearLeakyRelu",
    8: "com.microsoft::FastGelu com.microsoft::QLinearSigmoid",
}

RULES: Mapping[str, Rule] = {
    **{kind: partial(pointwise, per=per) for per, kinds in _FLOPS.items() for kind in kinds.split()},
    **dict.fromkeys(("Sum", "Max", "Min"), joined),
    "Mean": partial(joined, more=1),
    "BatchNormalization": batch_normalization,
    "com.microsoft::BiasAdd": partial(pointwise, per=2),
    "com.microsoft::BiasSplitGelu": partial(shrunk_to, per=4),
}
