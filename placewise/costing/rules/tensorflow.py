"""TensorFlow's own ops, for which ONNX has none: gradients, optimizers, recurrent cells and lists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule
from placewise.costing.rules.aten import fill
from placewise.costing.rules.movement import copy, free
from placewise.costing.rules.pointwise import per_input_element, pointwise
from placewise.costing.rules.reduction import over_input


def assign(op: OpInstance) -> Cost:
    """The new value (argument 1) is read, and the variable or list element is written."""
    return op.cost(0, "movement", nbytes=2 * op.inputs[1].nbytes)


def pop_element(op: OpInstance) -> Cost:
    """The last element of a list (result 1) is read and written."""
    return op.cost(0, "movement", nbytes=2 * op.outputs[-1].nbytes)


def strided_slice_gradient(op: OpInstance) -> Cost:
    """Zeros that contain the gradient (the last argument)."""
    return op.cost(0, "movement", nbytes=op.bytes_written + max(value.nbytes for value in op.inputs.values()))


def conv_input_gradient(op: OpInstance, *, channels: int = 1) -> Cost:
    """Every element of the output's gradient (argument 2) is spread over the kernel [space …, in, out] (argument 1).

    As many products as in the convolution; the last `channels` dimensions of the kernel do not multiply them.
    """
    return op.cost(2 * op.size(2) * math.prod(op.shape(1)[:-channels]), "conv")


def conv_filter_gradient(op: OpInstance, *, channels: int = 1) -> Cost:
    """Every element of the output's gradient (argument 2) meets the data under the kernel, which is the result."""
    return op.cost(2 * op.size(2) * math.prod(op.outputs[0].shape[:-channels]), "conv")


def optimizer(op: OpInstance, *, per: int) -> Cost:
    """`per` FLOPs for every element of the gradient; the variable and its moments are read and written."""
    longest = max(value.size for value in op.inputs.values())
    slots = sum(value.nbytes for value in op.inputs.values() if value.size == longest)
    return op.cost(per * longest, "elementwise", nbytes=2 * slots)


def lstm_cell(op: OpInstance, *, data: int, weights: int, per: int = 30) -> Cost:
    """Data [time, batch, in] or [batch, in], and the weights [in + hidden, 4 · hidden] of all gates."""
    rows = math.prod(op.shape(data)[:-1])
    hidden = op.shape(weights)[1] // 4
    return op.cost(rows * (2 * op.size(weights) + per * hidden), "matmul")


def gru_cell(op: OpInstance) -> Cost:
    """X [batch, in], h [batch, hidden], weights of the gates [in + hidden, 2 · hidden] and the state [.., hidden]."""
    batch, hidden = op.shape(1)
    return op.cost(batch * (2 * (op.size(2) + op.size(3)) + 23 * hidden), "matmul")


def cudnn_rnn(op: OpInstance) -> Cost:
    """Data [time, batch, in], states [layers · directions, batch, hidden], all weights and biases in one row."""
    steps = math.prod(op.shape(0)[:2])
    cells, _, hidden = op.shape(1)
    gates = {"lstm": 4, "gru": 3}.get(str(op.attributes.get("rnn_mode", "lstm")), 1)
    per = {4: 30, 3: 23}.get(gates, 4)
    weights = op.size(3) - cells * 2 * gates * hidden
    return op.cost(steps * (2 * weights + per * cells * hidden), "matmul")


_POINTWISE = {
    1: "Square ReluGrad Relu6Grad Lgamma Digamma Erfinv",
    2: "Rsqrt SquaredDifference LeakyReluGrad EluGrad SeluGrad SqrtGrad Xlogy",
    3: "SigmoidGrad TanhGrad InvGrad ReciprocalGrad SoftplusGrad SoftsignGrad",
    4: "RsqrtGrad FakeQuant",
    8: "CropAndResize",
    11: "GeluGrad",
}
_OPTIMIZERS = {
    2: "ApplyGradientDescent",
    4: "ApplyMomentum ApplyKerasMomentum ApplyAdagrad ApplyAdagradV2",
    9: "ApplyRMSProp ApplyFtrl ApplyFtrlV2 ApplyAdaMax",
    12: "ApplyAdam ApplyAdadelta",
}
_FREE = """NoOp Assert IdentityN Switch RefSwitch Merge RefMerge LoopCond VarHandleOp TensorListReserve EmptyTensorList
    TensorArrayV3 TensorArrayGradV3 TensorArrayCloseV3 TensorListElementShape StackV2 BroadcastArgs ConcatOffset
    BroadcastGradientArgs InvertPermutation StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg
    StatelessRandomGetAlg ShardingNoOp IteratorV2 Placeholder"""
_MOVED = "DynamicStitch ParallelDynamicStitch SpaceToBatchND BatchToSpaceND TensorArrayScatterV3 SparseToDense Roll"
_ADDED = "AssignAdd AssignSub AssignAddVariableOp AssignSubVariableOp"
_NORM_GRADIENTS = "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3"

_OWN: Mapping[str, Rule] = {
    **{op: partial(pointwise, per=per) for per, ops in _POINTWISE.items() for op in ops.split()},
    **{
        prefix + op: partial(optimizer, per=per)
        for per, ops in _OPTIMIZERS.items()
        for op in ops.split()
        for prefix in ("", "Resource")
    },
    **dict.fromkeys(_FREE.split(), free),
    **dict.fromkeys(_MOVED.split(), copy),
    "ZerosLike": fill,
    **dict.fromkeys(("Assign", "AssignVariableOp", "TensorListPushBack"), assign),
    **dict.fromkeys(_ADDED.split(), partial(optimizer, per=1)),
    "TensorListPopBack": pop_element,
    "StridedSliceGrad": strided_slice_gradient,
    "Conv2DBackpropInput": conv_input_gradient,
    "Conv3DBackpropInputV2": conv_input_gradient,
    "DepthwiseConv2dNativeBackpropInput": partial(conv_input_gradient, channels=2),
    "Conv2DBackpropFilter": conv_filter_gradient,
    "Conv3DBackpropFilterV2": conv_filter_gradient,
    "DepthwiseConv2dNativeBackpropFilter": partial(conv_filter_gradient, channels=2),
    "MaxPoolGrad": partial(per_input_element, per=1),
    "MaxPool3DGrad": partial(per_input_element, per=1),
    "AvgPoolGrad": partial(pointwise, per=1),
    "AvgPool3DGrad": partial(pointwise, per=1),
    "LRNGrad": partial(pointwise, per=20),
    **dict.fromkeys(_NORM_GRADIENTS.split(), partial(over_input, per=11)),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), partial(over_input, per=7)
    ),
    **dict.fromkeys(("UnsortedSegmentSum", "UnsortedSegmentMax", "SegmentSum"), over_input),
    "LSTMBlockCell": partial(lstm_cell, data=0, weights=3),
    "BlockLSTM": partial(lstm_cell, data=1, weights=4),
    "BlockLSTMV2": partial(lstm_cell, data=1, weights=4),
    "GRUBlockCell": gru_cell,
    **dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), cudnn_rnn),
}

RULES: Mapping[str, Rule] = {f"tf::{op}": rule for op, rule in _OWN.items()}
