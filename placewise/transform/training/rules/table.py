"""The table of gradient rules: how to compute a kind's gradient, and which arguments it reaches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from placewise.model.tables import RESHAPES
from placewise.transform.training.rules import linear, movement, pointwise
from placewise.transform.training.rules.fused import EVERYTHING, FUSED, fused_gradient
from placewise.transform.training.values import Rule


class GradientRule(NamedTuple):
    """A rule, and the argument positions that it differentiates (None: all)."""

    rule: Rule
    wrt: tuple[int, ...] | None


NONE = GradientRule(lambda op: {}, ())
"""For kinds that no gradient passes."""

_NONE = """And ArgMax ArgMin Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Ceil
    Constant ConstantOfShape DequantizeLinear DynamicQuantizeLinear Equal EyeLike Floor Greater GreaterOrEqual
    HammingWindow HannWindow Hardmax IsInf IsNaN Less LessOrEqual MelWeightMatrix Multinomial NonMaxSuppression NonZero
    Not OneHot Or QuantizeLinear RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Round Shape Sign
    Size StringConcat Unique Xor"""
_COMPOSED: Mapping[str, GradientRule] = {
    **dict.fromkeys(
        ("MatMul", "com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul"), GradientRule(linear.matmul, (0, 1))
    ),
    "Gemm": GradientRule(linear.gemm, (0, 1, 2)),
    **dict.fromkeys(("Conv", "ConvTranspose"), GradientRule(linear.conv, (0, 1, 2))),
    "Einsum": GradientRule(linear.einsum, None),
    **dict.fromkeys(("Add", "Sum", "com.microsoft::BiasAdd"), GradientRule(pointwise.pass_through, None)),
    **dict.fromkeys(("Identity", "aten::clone"), GradientRule(pointwise.pass_through, (0,))),
    "CacheUpdate": GradientRule(movement.update_cache, (0, 1)),
    "Sub": GradientRule(pointwise.sub, (0, 1)),
    "Mul": GradientRule(pointwise.mul, (0, 1)),
    "Div": GradientRule(pointwise.div, (0, 1)),
    "Pow": GradientRule(pointwise.power, (0, 1)),
    "Neg": GradientRule(pointwise.negate, (0,)),
    "Where": GradientRule(pointwise.where, (1, 2)),
    **dict.fromkeys(RESHAPES, GradientRule(movement.reshape, (0,))),
    "Transpose": GradientRule(movement.transpose, (0,)),
    **dict.fromkeys(("Cast", "CastLike"), GradientRule(movement.cast, (0,))),
    "Expand": GradientRule(movement.expand, (0,)),
    "Concat": GradientRule(movement.concat, None),
    "Split": GradientRule(movement.split, (0,)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), GradientRule(movement.blocks_to_depth, (0,))),
}

RULES: Mapping[str, GradientRule] = {
    **{kind: GradientRule(partial(fused_gradient, keeps=keeps), keeps.wrt) for kind, keeps in FUSED.items()},
    **_COMPOSED,
    **dict.fromkeys(_NONE.split(), NONE),
}

_GENERIC = GradientRule(partial(fused_gradient, keeps=EVERYTHING), EVERYTHING.wrt)


def find_rule(kind: str) -> GradientRule:
    """The rule of a kind; without one, an op that may read everything and differentiate everything."""
    return RULES.get(kind, _GENERIC)
