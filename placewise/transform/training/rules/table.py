"""The one table of gradient rules: how a kind's gradient is made, and to which arguments it can flow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from placewise.transform.training.rules import linear, movement, pointwise
from placewise.transform.training.rules.fused import EVERYTHING, FUSED, fused
from placewise.transform.training.values import Rule


class Entry(NamedTuple):
    """A rule, and the argument positions that it has gradients for (None: all)."""

    rule: Rule
    wrt: tuple[int, ...] | None


NONE = Entry(lambda call: {}, ())
"""The entry of kinds that no gradient flows through."""

_NONE = """And ArgMax ArgMin Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Ceil
    Constant ConstantOfShape DequantizeLinear DynamicQuantizeLinear Equal EyeLike Floor Greater GreaterOrEqual
    HammingWindow HannWindow Hardmax IsInf IsNaN Less LessOrEqual MelWeightMatrix Multinomial NonMaxSuppression NonZero
    Not OneHot Or QuantizeLinear RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Round Shape Sign
    Size StringConcat Unique Xor"""
_COMPOSED: Mapping[str, Entry] = {
    **dict.fromkeys(
        ("MatMul", "com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul"), Entry(linear.matmul, (0, 1))
    ),
    "Gemm": Entry(linear.gemm, (0, 1, 2)),
    **dict.fromkeys(("Conv", "ConvTranspose"), Entry(linear.conv, (0, 1, 2))),
    "Einsum": Entry(linear.einsum, None),
    **dict.fromkeys(("Add", "Sum", "com.microsoft::BiasAdd"), Entry(pointwise.passed, None)),
    **dict.fromkeys(("Identity", "aten::clone"), Entry(pointwise.passed, (0,))),
    "CacheUpdate": Entry(movement.cached, (0, 1)),
    "Sub": Entry(pointwise.sub, (0, 1)),
    "Mul": Entry(pointwise.mul, (0, 1)),
    "Div": Entry(pointwise.div, (0, 1)),
    "Pow": Entry(pointwise.power, (0, 1)),
    "Neg": Entry(pointwise.negated, (0,)),
    "Where": Entry(pointwise.where, (1, 2)),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), Entry(movement.reshaped, (0,))),
    "Transpose": Entry(movement.transposed, (0,)),
    **dict.fromkeys(("Cast", "CastLike"), Entry(movement.cast, (0,))),
    "Expand": Entry(movement.expanded, (0,)),
    "Concat": Entry(movement.concatenated, None),
    "Split": Entry(movement.split, (0,)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), Entry(movement.blocks_to_depth, (0,))),
}

RULES: Mapping[str, Entry] = {
    **{kind: Entry(partial(fused, keeps=keeps), keeps.wrt) for kind, keeps in FUSED.items()},
    **_COMPOSED,
    **dict.fromkeys(_NONE.split(), NONE),
}

_GENERIC = Entry(partial(fused, keeps=EVERYTHING), EVERYTHING.wrt)


def entry_of(kind: str) -> Entry:
    """The entry of a kind; of one without a rule, one op that may read everything and be a gradient of everything."""
    return RULES.get(kind, _GENERIC)
