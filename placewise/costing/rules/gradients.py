"""Ops of training graphs: ``gradient::Kind``, the loss and the optimizer's updates.

A gradient op reads the gradients of its forward op's m results, then, from position m on, the saved ones of the n
arguments, then the saved results; `layout` = (m, n), and `wrt` lists the arguments whose gradients it computes. This
suffices to apply the cost rule of the forward op.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule
from placewise.costing.rules import aten, attention, linear, llm, movement, openvino, recurrent, reduction
from placewise.costing.rules.movement import copy, free

PREFIX = "gradient::"


def pointwise(op: OpInstance, *, per: int) -> Cost:
    """`per` FLOPs for every element of the incoming or outgoing gradient, whichever is larger."""
    return op.cost(per * _elements(op), "elementwise")


def reduce(op: OpInstance, *, per: int) -> Cost:
    """The same for ops that sum: normalizations, softmax, reductions."""
    return op.cost(per * _elements(op), "reduction")


def pool(op: OpInstance, *, per: int = 1) -> Cost:
    """Pooling: `per` FLOPs for every element under every window."""
    return op.cost(per * math.prod(op.attributes["kernel_shape"]) * op.size(0), "reduction")


def scatter(op: OpInstance) -> Cost:
    """Zeros of the argument's full size, dense, to which the incoming values are added."""
    return op.cost(op.size(0), "movement")


def update_in_place(op: OpInstance) -> Cost:
    """Of values written in place: their gradient is read and written, the rest passes unchanged."""
    return op.cost(0, "movement", nbytes=2 * min(value.nbytes for value in op.outputs))


def convolution(op: OpInstance, *, rule: Rule) -> Cost:
    """For the input or the kernel as much as forward; for the bias a sum."""
    if tuple(op.attributes["wrt"]) == (2,):
        return op.cost(op.size(0), "reduction")
    return scale_forward(op, rule=rule, factor=1)


def scale_forward(op: OpInstance, *, rule: Rule, factor: float, known: bool = True) -> Cost:
    """`factor` times the FLOPs of the forward op, in its class; what that reads again and again is read as often."""
    forward = _forward(op)
    cost = rule(forward)
    op_class = "movement" if cost.op_class == "free" else cost.op_class
    again = max(cost.nbytes - forward.bytes_moved, 0)
    return Cost(factor * cost.flops, op.bytes_moved + again, op_class, cost.dtype, known)


def update_weights(op: OpInstance, *, per: int) -> Cost:
    """`per` FLOPs per element: reads the gradient, reads and writes the weight and the optimizer's state."""
    size = op.size(1)
    kept = op.number("kept", 0) * size
    nbytes = op.inputs[0].nbytes + 2 * op.inputs[1].nbytes + 2 * kept
    return op.cost(per * size, "elementwise", nbytes=nbytes)


def loss(op: OpInstance) -> Cost:
    """Six FLOPs per element, as softmax with cross-entropy."""
    return op.cost(6 * sum(value.size for value in op.inputs.values()), "reduction")


def loss_gradient(op: OpInstance) -> Cost:
    """Probability minus target, divided by the batch."""
    return op.cost(2 * sum(value.size for value in op.outputs), "elementwise")


def _elements(op: OpInstance) -> int:
    first = next((value.size for _, value in sorted(op.inputs.items())), 0)
    return max(first, max((value.size for value in op.outputs), default=0))


def _forward(op: OpInstance) -> OpInstance:
    """Reconstruct the forward op from its gradient op; gradients stand in for missing values."""
    m, n = (int(count) for count in op.attributes["layout"])
    arguments = {at - m: value for at, value in op.inputs.items() if m <= at < m + n}
    gradients = {int(at): value for at, value in zip(op.attributes["wrt"], op.outputs, strict=True)}
    results = tuple(op.inputs[at] for at in range(m) if at in op.inputs)
    return OpInstance(op.kind.removeprefix(PREFIX), op.attributes, {**gradients, **arguments}, results)


def assume_gradients(forward: Mapping[str, Rule]) -> Mapping[str, Rule]:
    """Rules for gradients of all other kinds: twice the forward op's FLOPs, marked as assumed."""
    return {PREFIX + kind: partial(scale_forward, rule=rule, factor=2, known=False) for kind, rule in forward.items()}


_POINTWISE = {
    1: """aten::expm1 aten::square
       Abs Clip Dropout Exp Log Max Mean Min Pad ReduceMean ReduceSum Relu Slice ThresholdedRelu TopK Trilu Where""",
    2: """openvino::SquaredDifference tf::SquaredDifference
       HardSigmoid LeakyRelu PRelu ReduceL1 ReduceMax ReduceMin ReduceSumSquare Sin Cos Sqrt Shrink CumSum""",
    3: """aten::rsqrt tf::Rsqrt aten::glu
       Asin Acos Asinh Acosh Atan Atanh Elu Celu Selu Pow Reciprocal ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd
       RotaryEmbedding Sigmoid Sinh Cosh Softsign Tanh com.microsoft::RotaryEmbedding""",
    5: "aten::log_sigmoid Erf HardSwish Softplus Tan",
    9: "Mish Swish",
    11: "Gelu com.microsoft::Gelu com.microsoft::QuickGelu com.microsoft::BiasGelu",
    16: "com.microsoft::FastGelu",
}
_REDUCED = {
    3: "aten::var aten::std NegativeLogLikelihoodLoss",
    4: "Softmax LogSoftmax",
    8: "SoftmaxCrossEntropyLoss",
    12: "RMSNormalization SimplifiedLayerNormalization com.microsoft::SimplifiedLayerNormalization LpNormalization",
    14: """BatchNormalization GroupNormalization InstanceNormalization LayerNormalization MeanVarianceNormalization
       com.microsoft::GroupNorm com.microsoft::LayerNormalization com.microsoft::SkipLayerNormalization""",
}
"""Means and deviations are recomputed from the input: half of a normalization's backward work."""
_COPIED = "aten::flip aten::roll ConcatFromSequence CenterCropPad"
_SCATTERED = "Compress Gather GatherElements GatherND MaxUnpool ReverseSequence Tile"
_ATTENTION = (
    "aten::scaled_dot_product_attention", "openvino::ScaledDotProductAttention",
    "Attention", "ai.onnx.preview::FlexAttention", "com.microsoft::Attention",
    "com.microsoft::MultiHeadAttention", "com.microsoft::GroupQueryAttention",
)  # fmt: skip
_TWICE = """LSTM GRU RNN LRN Experts Expert Dispatch Combine aten::lstm aten::gru aten::rnn_tanh aten::rnn_relu
    aten::lstm_cell aten::gru_cell aten::rnn_tanh_cell aten::rnn_relu_cell aten::addbmm aten::bilinear
    openvino::LSTMCell openvino::GRUCell openvino::RNNCell"""
"""Sums of products, with a gradient for each factor."""
_ONCE = "Resize Upsample"
"""Sums of neighbours, distributed over them again."""
_FORWARD = {
    kind: rule
    for family in (attention, movement, recurrent, reduction, llm, aten, openvino)
    for kind, rule in family.RULES.items()
}
FLASH = 2.5
"""Fused attention keeps no scores: five products backward for two forward (Dao 2023, FlashAttention-2, section 3.1)."""

RULES: Mapping[str, Rule] = {
    **{PREFIX + kind: partial(pointwise, per=per) for per, kinds in _POINTWISE.items() for kind in kinds.split()},
    **{PREFIX + kind: partial(reduce, per=per) for per, kinds in _REDUCED.items() for kind in kinds.split()},
    **{PREFIX + kind: copy for kind in _COPIED.split()},
    **{PREFIX + kind: scatter for kind in _SCATTERED.split()},
    **{PREFIX + kind: partial(scale_forward, rule=_FORWARD[kind], factor=FLASH) for kind in _ATTENTION},
    **{PREFIX + kind: partial(scale_forward, rule=_FORWARD[kind], factor=2) for kind in _TWICE.split()},
    **{PREFIX + kind: partial(scale_forward, rule=_FORWARD[kind], factor=1) for kind in _ONCE.split()},
    PREFIX + "TensorScatter": update_in_place,
    PREFIX + "Conv": partial(convolution, rule=linear.conv),
    PREFIX + "ConvTranspose": partial(convolution, rule=linear.conv_transpose),
    PREFIX + "MaxPool": partial(pool, per=2),
    PREFIX + "AveragePool": pool,
    PREFIX + "LpPool": partial(pool, per=3),
    PREFIX + "GlobalAveragePool": partial(pointwise, per=1),
    PREFIX + "GlobalMaxPool": partial(pointwise, per=2),
    PREFIX + "Loss": loss_gradient,
    "Loss": loss,
    "optimizer::SGD": partial(update_weights, per=2),
    "optimizer::Momentum": partial(update_weights, per=4),
    "optimizer::Adam": partial(update_weights, per=14),
    "optimizer::Renew": free,  # written over the old weight on arrival: only its transfer takes time,
}
