"""Gradients as one op, ``gradient::Kind``: the values that each saves from the forward op, and its targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from placewise.transform.training.values import ForwardOp, Gradients, GraphValue, positions_of

PREFIX = "gradient::"


class SavedValues(NamedTuple):
    """Positions of arguments and results that a gradient reads (None: all), and of arguments that it differentiates."""

    inputs: tuple[int, ...] | None = ()
    outputs: tuple[int, ...] | None = ()
    wrt: tuple[int, ...] | None = (0,)


EVERYTHING = SavedValues(inputs=None, wrt=None)
"""For kinds without a rule: the gradient may need all arguments, and differentiate all."""


def fused_gradient(op: ForwardOp, keeps: SavedValues) -> Gradients:
    """Add one op that computes the gradients of all wanted arguments."""
    return dict(zip(op.wants, gradient_op(op, keeps, op.wants), strict=True))


def gradient_op(op: ForwardOp, keeps: SavedValues, wrt: tuple[int, ...]) -> list[GraphValue]:
    """Add ``gradient::Kind`` for the arguments `wrt`."""
    m, n = len(op.outputs), max(op.inputs, default=-1) + 1
    arguments = dict(op.given)
    arguments |= {m + at: op.inputs[at] for at in positions_of(keeps.inputs, n) if at in op.inputs}
    arguments |= {m + n + at: op.outputs[at] for at in positions_of(keeps.outputs, m) if at < m}
    attributes = {**op.attributes, "layout": (m, n), "wrt": wrt}
    return op.emit(PREFIX + op.kind, arguments, [op.inputs[at] for at in wrt], attributes)


_INDEXED = SavedValues(inputs=(1, 2, 3, 4))
_ACTIVATION, _BY_RESULT = SavedValues(inputs=(0,)), SavedValues(outputs=(0,))
_NORMALIZED = SavedValues(inputs=(0, 1), wrt=(0, 1, 2))
_RECURRENT = SavedValues(inputs=None, outputs=None, wrt=(0, 1, 2, 3, 5, 6, 7))

_SAME = {
    _BY_RESULT: "Relu Sigmoid Tanh Exp Sqrt Reciprocal Elu Softmax LogSoftmax aten::rsqrt aten::expm1 tf::Rsqrt",
    _ACTIVATION: """Abs Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Erf Gelu GlobalMaxPool HardSigmoid HardSwish
        LeakyRelu Log MaxPool MeanVarianceNormalization Mish Selu Shrink Sin Sinh Softplus Softsign Swish Tan
        ThresholdedRelu aten::square aten::log_sigmoid aten::glu com.microsoft::Gelu com.microsoft::FastGelu
        com.microsoft::QuickGelu aten::var aten::std""",
    SavedValues(): "AveragePool GlobalAveragePool Col2Im Upsample aten::roll aten::flip",
    _INDEXED: """Slice Gather GatherElements GatherND Pad Tile CumSum Trilu ReverseSequence Compress Resize
        ReduceSum ReduceMean CenterCropPad RotaryEmbedding com.microsoft::RotaryEmbedding MaxUnpool""",
    SavedValues(inputs=(0, 1)): "Pow ReduceL1 ReduceSumSquare",
    SavedValues(inputs=(0, 1), outputs=(0,)): "ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSum ReduceLogSumExp",
    SavedValues(inputs=(0,), outputs=(0,)): "LRN LpNormalization LpPool GlobalLpPool",
    SavedValues(inputs=None, wrt=None): "Max Min Mean",
    SavedValues(inputs=(0, 1, 2)): "Clip SoftmaxCrossEntropyLoss",
    SavedValues(inputs=(1, 2)): "NegativeLogLikelihoodLoss",
    SavedValues(inputs=(1,), outputs=(1,)): "Dropout",
    SavedValues(outputs=(1,)): "TopK",
    SavedValues(inputs=(0, 1), wrt=(0, 1)): """PRelu GridSample com.microsoft::BiasGelu openvino::SquaredDifference
        tf::SquaredDifference""",
    SavedValues(inputs=(2,), wrt=(0, 1)): "TensorScatter",
    SavedValues(inputs=(1,), wrt=None): "ScatterElements ScatterND Scatter",
    _NORMALIZED: """LayerNormalization GroupNormalization InstanceNormalization RMSNormalization BatchNormalization
        SimplifiedLayerNormalization com.microsoft::LayerNormalization com.microsoft::SimplifiedLayerNormalization
        com.microsoft::GroupNorm""",
    SavedValues(inputs=None, wrt=(0, 1, 2, 3, 4)): """com.microsoft::SkipLayerNormalization
        com.microsoft::SkipSimplifiedLayerNormalization""",
    SavedValues(inputs=None, outputs=(0,), wrt=(0, 1, 2, 3, 4, 5)): "Attention aten::scaled_dot_product_attention",
    SavedValues(inputs=None, outputs=(0,), wrt=(0, 1, 2, 3)): "com.microsoft::MultiHeadAttention",
    SavedValues(inputs=None, outputs=(0,), wrt=(0, 1, 2)): """com.microsoft::Attention
        com.microsoft::GroupQueryAttention ai.onnx.preview::FlexAttention""",
    _RECURRENT: "LSTM GRU RNN",
}  # fmt: skip

FUSED: Mapping[str, SavedValues] = {kind: keeps for keeps, kinds in _SAME.items() for kind in kinds.split()}
"""Kind → the values that its gradient op saves."""
