"""Gradients that are one op, ``gradient::Kind``: what each keeps of the forward op, and what it is a gradient of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from placewise.transform.training.values import Call, Gradients, Value, positions_of

PREFIX = "gradient::"


class Keeps(NamedTuple):
    """Argument positions and results that a gradient reads (None: all), and arguments that it is a gradient of."""

    inputs: tuple[int, ...] | None = ()
    outputs: tuple[int, ...] | None = ()
    wrt: tuple[int, ...] | None = (0,)


EVERYTHING = Keeps(inputs=None, wrt=None)
"""What is taken of a kind without a rule: it may need all arguments, and be a gradient of all."""


def fused(call: Call, keeps: Keeps) -> Gradients:
    """One op that makes the gradients of all wanted arguments."""
    return dict(zip(call.wants, gradient_op(call, keeps, call.wants), strict=True))


def gradient_op(call: Call, keeps: Keeps, wrt: tuple[int, ...]) -> list[Value]:
    """Add ``gradient::Kind`` for the arguments `wrt`."""
    m, n = len(call.outputs), max(call.inputs, default=-1) + 1
    arguments = dict(call.given)
    arguments |= {m + at: call.inputs[at] for at in positions_of(keeps.inputs, n) if at in call.inputs}
    arguments |= {m + n + at: call.outputs[at] for at in positions_of(keeps.outputs, m) if at < m}
    attributes = {**call.attributes, "layout": (m, n), "wrt": wrt}
    return call.emit(PREFIX + call.kind, arguments, [call.inputs[at] for at in wrt], attributes)


_INDEXED = Keeps(inputs=(1, 2, 3, 4))
_ACTIVATION, _BY_RESULT = Keeps(inputs=(0,)), Keeps(outputs=(0,))
_NORMALIZED = Keeps(inputs=(0, 1), wrt=(0, 1, 2))
_RECURRENT = Keeps(inputs=None, outputs=None, wrt=(0, 1, 2, 3, 5, 6, 7))

_SAME = {
    _BY_RESULT: "Relu Sigmoid Tanh Exp Sqrt Reciprocal Elu Softmax LogSoftmax aten::rsqrt aten::expm1 tf::Rsqrt",
    _ACTIVATION: """Abs Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Erf Gelu GlobalMaxPool HardSigmoid HardSwish
        LeakyRelu Log MaxPool MeanVarianceNormalization Mish Selu Shrink Sin Sinh Softplus Softsign Swish Tan
        ThresholdedRelu aten::square aten::log_sigmoid aten::glu com.microsoft::Gelu com.microsoft::FastGelu
        com.microsoft::QuickGelu aten::var aten::std""",
    Keeps(): "AveragePool GlobalAveragePool Col2Im Upsample aten::roll aten::flip",
    _INDEXED: """Slice Gather GatherElements GatherND Pad Tile CumSum Trilu ReverseSequence Compress Resize
        ReduceSum ReduceMean CenterCropPad RotaryEmbedding com.microsoft::RotaryEmbedding MaxUnpool""",
    Keeps(inputs=(0, 1)): "Pow ReduceL1 ReduceSumSquare",
    Keeps(inputs=(0, 1), outputs=(0,)): "ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSum ReduceLogSumExp",
    Keeps(inputs=(0,), outputs=(0,)): "LRN LpNormalization LpPool GlobalLpPool",
    Keeps(inputs=None, wrt=None): "Max Min Mean",
    Keeps(inputs=(0, 1, 2)): "Clip SoftmaxCrossEntropyLoss",
    Keeps(inputs=(1, 2)): "NegativeLogLikelihoodLoss",
    Keeps(inputs=(1,), outputs=(1,)): "Dropout",
    Keeps(outputs=(1,)): "TopK",
    Keeps(inputs=(0, 1), wrt=(0, 1)): """PRelu GridSample com.microsoft::BiasGelu openvino::SquaredDifference
        tf::SquaredDifference""",
    Keeps(inputs=(2,), wrt=(0, 1)): "TensorScatter",
    Keeps(inputs=(1,), wrt=None): "ScatterElements ScatterND Scatter",
    _NORMALIZED: """LayerNormalization GroupNormalization InstanceNormalization RMSNormalization BatchNormalization
        SimplifiedLayerNormalization com.microsoft::LayerNormalization com.microsoft::SimplifiedLayerNormalization
        com.microsoft::GroupNorm""",
    Keeps(inputs=None, wrt=(0, 1, 2, 3, 4)): """com.microsoft::SkipLayerNormalization
        com.microsoft::SkipSimplifiedLayerNormalization""",
    Keeps(inputs=None, outputs=(0,), wrt=(0, 1, 2, 3, 4, 5)): "Attention aten::scaled_dot_product_attention",
    Keeps(inputs=None, outputs=(0,), wrt=(0, 1, 2, 3)): "com.microsoft::MultiHeadAttention",
    Keeps(inputs=None, outputs=(0,), wrt=(0, 1, 2)): """com.microsoft::Attention com.microsoft::GroupQueryAttention
        ai.onnx.preview::FlexAttention""",
    _RECURRENT: "LSTM GRU RNN",
}  # fmt: skip

FUSED: Mapping[str, Keeps] = {kind: keeps for keeps, kinds in _SAME.items() for kind in kinds.split()}
"""Kind → what its one gradient op keeps."""
