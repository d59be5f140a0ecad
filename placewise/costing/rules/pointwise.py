"""Elementwise ops: a fixed number of FLOPs per output element."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule


def pointwise(op: OpInstance, *, per: int) -> Cost:
    """`per` FLOPs for every element of the first output."""
    return op.cost(per * op.outputs[0].size, "elementwise")


def variadic(op: OpInstance, *, more: int = 0) -> Cost:
    """One FLOP per output element and argument after the first, and `more`."""
    return pointwise(op, per=max(len(op.inputs) - 1, 0) + more)


def per_input_element(op: OpInstance, *, per: int) -> Cost:
    """`per` FLOPs for every element of the first argument."""
    return op.cost(per * op.size(0), "elementwise")


def batch_normalization(op: OpInstance) -> Cost:
    """Scale and shift, prepared per channel; in training also mean and variance."""
    return pointwise(op, per=8 if op.number("training_mode", 0) else 2)


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
    **dict.fromkeys(("Sum", "Max", "Min"), variadic),
    "Mean": partial(variadic, more=1),
    "BatchNormalization": batch_normalization,
    "com.microsoft::BiasAdd": partial(pointwise, per=2),
    "com.microsoft::BiasSplitGelu": partial(per_input_element, per=4),
}
