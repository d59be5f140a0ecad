"""Elementwise ops, normalizations, reductions and losses are computed where their arguments are split."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.rules import aten, contrib, pointwise, tensorflow
from placewise.costing.sharding.strategies import (
    FREE,
    SUMMAND,
    WHOLE,
    Answer,
    Exchange,
    Rule,
    ShardingStrategy,
    SplitOp,
    follow,
)
from placewise.model.tables import RESHAPES


def elementwise(op: SplitOp) -> list[Answer]:
    """Arguments are broadcast from the back, and all that have the split dimension are split in the same way."""
    if not op.results:
        return []
    result = op.results[0]
    for at, form in op.forms.items():
        place = form + len(result) - len(op.shapes[at])
        if form >= 0 and place >= 0 and op.shapes[at][form] == result[place] > 1:
            return [follow(op, _align(op, place, len(result)), _alike(op, place))]
    return []


def _align(op: SplitOp, place: int, rank: int) -> dict[int, int]:
    """How each argument is read if dimension `place` of a result with `rank` dimensions is split."""
    reads = {}
    for at, shape in op.shapes.items():
        own = place - (rank - len(shape))
        if own >= 0 and shape[own] > 1:
            reads[at] = own
    return reads


def _alike(op: SplitOp, place: int) -> tuple[int, ...]:
    """All results of the first one's shape are split along `place`."""
    return tuple(place if shape == op.results[0] else WHOLE for shape in op.results)


def by_channel(op: SplitOp, *, batch: bool = True, groups: str = "") -> list[Answer]:
    """Argument 0 is [batch, channels, …], the others have a value per channel; statistics are those of a channel.

    `groups` names the attribute that counts groups of channels with statistics of their own.
    """
    form, shape = op.forms[0], op.shapes[0]
    if form == 0 and batch and not op.number("training_mode"):
        return [follow(op, {0: 0}, _alike(op, 0))]
    channel = len(shape) - 1 if op.number("channels_last") else 1
    count = op.number(groups, 1) if groups else shape[channel] if len(shape) > channel else 0
    if form != channel or not op.divides(count):
        return []
    vectors = {at: 0 for at, other in op.shapes.items() if at and other == (shape[channel],)}
    makes = tuple(channel if other == shape else 0 if other == (shape[channel],) else WHOLE for other in op.results)
    return [follow(op, {0: channel, **vectors}, makes)]


def along_axis(op: SplitOp, *, default: int = -1, to_end: bool = False) -> list[Answer]:
    """A softmax or normalization over one axis (`to_end`: and all that follow): the others may be split."""
    split = next(((at, form) for at, form in op.forms.items() if form >= 0 and op.shapes[at] == op.shapes[0]), None)
    if split is None or not op.results:
        return []
    rank, place = len(op.shapes[0]), split[1]
    shape = op.attributes.get("normalized_shape")
    first = rank - len(shape) if shape is not None else op.axis(default, rank)
    if place >= first if to_end else place == first:
        return []
    reads = _align(op, place, rank)
    makes = tuple(
        place if len(other) == rank and other[place] == op.shapes[0][place] else WHOLE for other in op.results
    )
    return [follow(op, reads, makes)]


def reduce(op: SplitOp, *, linear: bool = False) -> list[Answer]:
    """Dimensions that stay may be split; sums over a split one are summands.

    A summand of a mean is the device's sum divided by the whole length.
    """
    place = op.leading_split()
    axes = None if place is None or not op.results else _find_axes(op)
    if place is None or axes is None:
        return []
    if place in axes:
        return [follow(op, {0: place}, (SUMMAND,) * len(op.results))] if linear and not op.tokens else []
    kept = len(op.results[0]) == len(op.shapes[0])
    target = place if kept else place - sum(axis < place for axis in axes)
    return [follow(op, {0: place}, (target,) * len(op.results))]


def _find_axes(op: SplitOp) -> list[int] | None:
    """The dimensions that a reduction removes or makes 1 long, None if neither attributes nor shapes tell."""
    rank, result = len(op.shapes[0]), op.results[0]
    named = op.attributes.get("axes", op.attributes.get("dim", op.attributes.get("axis")))
    if named is not None and named != ():
        axes = named if isinstance(named, (tuple, list)) else (named,)
        return sorted(int(axis) % max(rank, 1) for axis in axes)
    if len(result) == rank:
        axes = [k for k in range(rank) if result[k] == 1 != op.shapes[0][k]]
        same = all(result[k] == op.shapes[0][k] for k in range(rank) if k not in axes)
        return axes if same else None
    return list(range(rank)) if not result else None


def pool(op: SplitOp) -> list[Answer]:
    """Windows over space: batch and channels may be split."""
    form, shape = op.forms[0], op.shapes[0]
    channel = len(shape) - 1 if op.number("channels_last") or "Nhwc" in op.kind else 1
    if form not in (0, channel):
        return []
    return [follow(op, {0: form}, _alike(op, form))]


def quantize(op: SplitOp) -> list[Answer]:
    """Scales and zero points are numbers, or have a value per index of an axis."""
    form = op.forms.get(0, WHOLE)
    if form < 0 or not op.results:
        return []
    axis = op.axis(1, len(op.shapes[0]))
    vectors = {at: 0 for at, shape in op.shapes.items() if at and len(shape) == 1 and shape[0] > 1 and form == axis}
    return [follow(op, {0: form, **vectors}, _alike(op, form))]


def loss(op: SplitOp, *, classes: int = -1) -> list[Answer]:
    """A softmax with cross-entropy over a split vocabulary exchanges three numbers per row instead of all scores.

    Megatron-LM, section 3: the largest score, the score of the label, and the sum of exponentials, each an all-reduce
    of 32-bit numbers. Where rows are split, the sums of all devices are added up.
    """
    split = [(at, form) for at, form in op.forms.items() if form >= 0]
    if not split:
        return []
    at, place = split[0]
    rank = len(op.shapes[at])
    if place == classes % rank:
        rows = tuple(Exchange("all-reduce", where, bytes_per_row=4.0) for where, _ in split for _ in range(3))
        reads = {where: form for where, form in split if form == classes % len(op.shapes[where])}
        makes = tuple(place if shape == op.shapes[at] else WHOLE for shape in op.results)
        return [follow(op, reads, makes, exchanges=rows)]
    length = op.shapes[at][place]
    if any(shape for shape in op.results):
        return []
    reads = {where: place for where, shape in op.shapes.items() if len(shape) > place and shape[place] == length}
    return [follow(op, reads, (SUMMAND,) * len(op.results))]


_COPIES = """Cast CastLike Dropout Identity aten::clone aten::copy_ aten::copy aten::fill aten::fill_ aten::zero
    aten::detach_copy aten::alias_copy aten::masked_scatter BitCast"""
_NOT_BROADCAST = """Range RandomNormal RandomUniform HammingWindow HannWindow BlackmanWindow MelWeightMatrix SwiGLU
    DequantizeLinear QuantizeLinear com.microsoft::DequantizeLinear com.microsoft::QuantizeLinear BatchNormalization
    com.microsoft::BiasSplitGelu RotaryEmbedding com.microsoft::RotaryEmbedding DynamicQuantizeLinear aten::glu
    com.microsoft::Range com.microsoft::CropAndResize com.microsoft::ComplexMul com.microsoft::ComplexMulConj
    com.microsoft::MRotaryEmbedding com.microsoft::GemmaRotaryEmbedding com.microsoft::BitmaskDropout tf::AvgPoolGrad
    com.microsoft::BitmaskBiasDropout com.microsoft::MurmurHash3 tf::CropAndResize aten::isin aten::bucketize
    aten::searchsorted aten::complex aten::polar com.microsoft::LinearAttentionGate aten::log_sigmoid_forward
    tf::AvgPool3DGrad tf::LRNGrad"""
"""Kinds that are priced per element and do not broadcast their arguments from the back."""
_ELEMENTWISE = sorted(
    kind
    for family in (pointwise, aten, contrib, tensorflow)
    for kind, rule in family.RULES.items()
    if getattr(rule, "func", rule) in (pointwise.pointwise, pointwise.variadic) and kind not in _NOT_BROADCAST.split()
)
_LAYERNORM = """LayerNormalization RMSNormalization SimplifiedLayerNormalization com.microsoft::LayerNormalization
    com.microsoft::SimplifiedLayerNormalization com.microsoft::SkipLayerNormalization
    com.microsoft::SkipSimplifiedLayerNormalization"""
_SOFTMAX = "Softmax LogSoftmax Hardmax LpNormalization com.microsoft::BiasSoftmax"
_REDUCED = """ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare ArgMax
    ArgMin aten::var aten::std aten::count_nonzero"""
_POOLS = """MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool com.microsoft::NhwcMaxPool LRN
    com.microsoft::QLinearAveragePool com.microsoft::QLinearGlobalAveragePool"""

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_COPIES.split(), elementwise),
    **dict.fromkeys(_LAYERNORM.split(), partial(along_axis, to_end=True)),
    **dict.fromkeys(_SOFTMAX.split(), along_axis),
    **dict.fromkeys(_REDUCED.split(), reduce),
    **dict.fromkeys(("ReduceSum", "ReduceMean"), partial(reduce, linear=True)),
    **dict.fromkeys(_POOLS.split(), pool),
    **dict.fromkeys(
        ("DequantizeLinear", "QuantizeLinear", "com.microsoft::DequantizeLinear", "com.microsoft::QuantizeLinear"),
        quantize,
    ),
    "BatchNormalization": by_channel,
    "InstanceNormalization": by_channel,
    "GroupNormalization": partial(by_channel, groups="num_groups"),
    "com.microsoft::GroupNorm": partial(by_channel, groups="groups"),
    "Loss": loss,
    "SoftmaxCrossEntropyLoss": partial(loss, classes=1),
}


def add(op: SplitOp) -> ShardingStrategy | None:
    """A sum of summands is a summand."""
    if len(op.shapes) < 2 or any(form != SUMMAND for form in op.forms.values()):
        return None
    return _keep_summand(op)


def scale(op: SplitOp) -> ShardingStrategy | None:
    """A summand times something that all devices have is a summand."""
    summands = [at for at, form in op.forms.items() if form == SUMMAND]
    if len(summands) != 1 or (op.kind == "Div" and summands != [0]):
        return None
    others = [form for at, form in op.forms.items() if at != summands[0]]
    return _keep_summand(op) if all(form in (WHOLE, FREE) for form in others) else None


def combine(op: SplitOp) -> ShardingStrategy | None:
    """A weighted sum of what experts make, where some of that is summands and nothing is split."""
    return _keep_summand(op) if all(form < 0 for form in op.forms.values()) else None


def view(op: SplitOp) -> ShardingStrategy | None:
    """Views and sums of one summand are summands."""
    return _keep_summand(op) if op.forms.get(0) == SUMMAND else None


def _keep_summand(op: SplitOp) -> ShardingStrategy:
    summands = {at: SUMMAND for at, form in op.forms.items() if form == SUMMAND}
    return ShardingStrategy("whole", summands, (SUMMAND,) * len(op.results), 1.0)


LINEAR = {
    **dict.fromkeys(("Add", "Sub", "Sum"), add),
    **dict.fromkeys(("Mul", "Div"), scale),
    **dict.fromkeys((*RESHAPES, "Transpose", "Identity", "Neg", "Slice", "Split", "Expand"), view),
    "Concat": add,
    "Combine": combine,
}
"""Kinds that may be computed on summands, which are then added up later, and fewer of them."""

_KEPT_FREE = """Reshape Flatten Squeeze Unsqueeze Transpose Identity Cast Slice Split Concat Expand DequantizeLinear
    com.microsoft::DequantizeLinear Add Sub Mul Div Neg Greater Less LessOrEqual GreaterOrEqual Equal And Or Not Where
    Log Min Max Floor Cos Sin Exp Abs Trilu BitwiseNot BitwiseAnd BitwiseOr Pow aten::copy_ aten::fill_ aten::fill
    aten::zero"""
KEEP_FREE = frozenset(_KEPT_FREE.split())
"""Kinds whose results every device can make in part, if it can make each part of their arguments."""
