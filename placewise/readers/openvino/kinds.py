"""Types of IR layers → kinds of ops, with ONNX's input positions.

From the operation sets opset1 to opset16 of the OpenVINO documentation (docs.openvino.ai, "Operation Sets in
OpenVINO") and the operators of ONNX. A type without an ONNX equivalent becomes ``openvino::Type``.
"""

from __future__ import annotations

from collections.abc import Mapping

from placewise.readers.openvino.net import NetLayer

INPUT, OUTPUT, CONSTANT = "Parameter", "Result", "Const"
"""The layer types of inputs, outputs and weights."""

_SAME = """Abs Acos Acosh Add Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Col2Im Concat Cos Cosh
    CumSum DepthToSpace Einsum Elu Equal Erf Exp Floor Gather GatherElements GatherND Gelu Greater GridSample
    GroupNormalization HardSigmoid If IsInf IsNaN LRN Less Log LogSoftmax Loop MatMul MaxPool Mish Mod Multinomial
    NonMaxSuppression NonZero OneHot Pad RandomUniform Range ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum Reshape ReverseSequence Round Selu Sigmoid Sign Sin Sinh Slice Softmax SpaceToDepth Split
    Sqrt Squeeze Swish Tan Tanh Tile TopK Transpose Unique Unsqueeze Xor"""
_RENAMED: Mapping[str, str] = {
    INPUT: "Input", OUTPUT: "Output", CONSTANT: "Constant", "Convert": "Cast", "ConvertLike": "CastLike",
    "Ceiling": "Ceil", "Negative": "Neg", "ReLU": "Relu", "HSigmoid": "HardSigmoid", "HSwish": "HardSwish",
    "SoftMax": "Softmax", "SoftPlus": "Softplus", "SoftSign": "Softsign", "PReLU": "PRelu", "Clamp": "Clip",
    "LogicalNot": "Not", "LogicalAnd": "And", "LogicalOr": "Or", "LogicalXor": "Xor", "Subtract": "Sub",
    "Multiply": "Mul", "Divide": "Div", "Power": "Pow", "Maximum": "Max", "Minimum": "Min", "FloorMod": "Mod",
    "LessEqual": "LessOrEqual", "GreaterEqual": "GreaterOrEqual", "BitwiseLeftShift": "BitShift",
    "BitwiseRightShift": "BitShift", "Select": "Where", "Convolution": "Conv", "GroupConvolution": "Conv",
    "ConvolutionBackpropData": "ConvTranspose", "GroupConvolutionBackpropData": "ConvTranspose",
    "DeformableConvolution": "DeformConv", "AvgPool": "AveragePool", "ROIPooling": "MaxRoiPool",
    "ROIAlign": "RoiAlign", "ROIAlignRotated": "RoiAlign", "BatchNormInference": "BatchNormalization",
    "MVN": "MeanVarianceNormalization", "NormalizeL2": "LpNormalization", "RMS": "RMSNormalization",
    "RMSNorm": "RMSNormalization", "RoPE": "RotaryEmbedding", "ShapeOf": "Shape", "Broadcast": "Expand",
    "Eye": "EyeLike", "Interpolate": "Resize", "StridedSlice": "Slice", "VariadicSplit": "Split",
    "ScatterElementsUpdate": "ScatterElements", "ScatterNDUpdate": "ScatterND", "ScatterUpdate": "ScatterElements",
    "LSTMSequence": "LSTM", "GRUSequence": "GRU", "RNNSequence": "RNN", "TensorIterator": "Loop",
}  # fmt: skip
KINDS: Mapping[str, str] = {**{name: name for name in _SAME.split()}, **_RENAMED}

_POSITIONS: Mapping[str, tuple[int, ...]] = {
    "DeformableConvolution": (0, 2, 1, 4),  # data, offsets, filters, mask
    "LSTMSequence": (0, 5, 6, 4, 1, 2, 3),  # X, states, lengths, W, R, B
    "GRUSequence": (0, 5, 4, 1, 2, 3),
    "RNNSequence": (0, 5, 4, 1, 2, 3),
    "ScaledDotProductAttention": (0, 1, 2, 3, 7),  # ONNX has the past after the mask; its scale is an attribute
}
_OLD_BATCH_NORM = (1, 2, 0, 3, 4)


def kind_of(layer: NetLayer) -> str:
    """``MatMul`` if ONNX has the op, else ``openvino::FakeQuantize``."""
    if layer.type == "ScaledDotProductAttention":  # ONNX's Attention has no other ranks
        ranks = {len(port.dims) for port in layer.inputs[:3]}
        return "Attention" if ranks in ({3}, {4}) else f"openvino::{layer.type}"
    return KINDS.get(layer.type, f"openvino::{layer.type}")


def position_of(layer: NetLayer, place: int) -> int:
    """The position in ONNX of the input at `place`."""
    order = _POSITIONS.get(layer.type, ())
    if layer.type == "BatchNormInference" and layer.version in ("", "opset1", "opset2", "opset3", "opset4"):
        order = _OLD_BATCH_NORM
    return order[place] if place < len(order) else place
