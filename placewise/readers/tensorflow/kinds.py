"""TensorFlow's ops in terms of ONNX: kind, argument order and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placewise.readers.tensorflow import lists
from placewise.readers.tensorflow.abstract_values import NodeCall
from placewise.readers.tensorflow.shapes_layers import spatial_axes

DOMAIN = "tf::"
LONGEST_LIST = 64

_SAME = {
    "Abs": "Abs", "Acos": "Acos", "Acosh": "Acosh", "Asin": "Asin", "Asinh": "Asinh", "Atan": "Atan", "Atanh": "Atanh",
    "Ceil": "Ceil", "Cos": "Cos", "Cosh": "Cosh", "Elu": "Elu", "Erf": "Erf", "Erfc": "Erf", "Exp": "Exp",
    "Expm1": "Exp", "Floor": "Floor", "Inv": "Reciprocal", "LeakyRelu": "LeakyRelu", "Log": "Log", "Log1p": "Log",
    "LogSoftmax": "LogSoftmax", "Neg": "Neg", "Reciprocal": "Reciprocal", "Relu": "Relu", "Relu6": "Clip",
    "Rint": "Round", "Round": "Round", "Rsqrt": "tf::Rsqrt", "Selu": "Selu", "Sigmoid": "Sigmoid", "Sign": "Sign",
    "Sin": "Sin", "Sinh": "Sinh", "Softmax": "Softmax", "Softplus": "Softplus", "Softsign": "Softsign",
    "Sqrt": "Sqrt", "Square": "tf::Square", "Tan": "Tan", "Tanh": "Tanh", "LogicalNot": "Not", "Invert": "BitwiseNot",
    "IsNan": "IsNaN", "IsInf": "IsInf", "IsFinite": "IsInf", "Cast": "Cast", "ClipByValue": "Clip",
    "Identity": "Identity", "RefIdentity": "Identity", "Snapshot": "Identity", "StopGradient": "Identity",
    "PreventGradient": "Identity", "CheckNumerics": "Identity", "EnsureShape": "Identity",
    "PlaceholderWithDefault": "Identity", "Enter": "Identity", "DeepCopy": "Identity",
    "OptimizationBarrier": "Identity",
    "ZerosLike": "tf::ZerosLike", "OnesLike": "tf::ZerosLike", "BiasAdd": "Add", "BiasAddV1": "Add",
    "Cumsum": "CumSum", "Cumprod": "CumProd", "LRN": "LRN", "Reverse": "ReverseSequence",
    "ReverseV2": "ReverseSequence", "ReverseSequence": "ReverseSequence", "MatrixBandPart": "Trilu",
    "BitCast": "Identity", "Gelu": "Gelu",
    "FakeQuantWithMinMaxVars": "tf::FakeQuant", "FakeQuantWithMinMaxArgs": "tf::FakeQuant",
    "FakeQuantWithMinMaxVarsPerChannel": "tf::FakeQuant", "BatchNormWithGlobalNormalization": "BatchNormalization",
    "Lgamma": "tf::Lgamma", "Digamma": "tf::Digamma", "Erfinv": "tf::Erfinv", "Ndtri": "tf::Erfinv", "Roll": "tf::Roll",
    "TensorScatterUpdate": "ScatterND", "TensorScatterAdd": "ScatterND",
}  # fmt: skip
"""Ops whose result has as many elements as their first argument."""

_BROADCAST = {
    "Add": "Add", "AddV2": "Add", "Sub": "Sub", "Mul": "Mul", "MulNoNan": "Mul", "Div": "Div", "RealDiv": "Div",
    "DivNoNan": "Div", "FloorDiv": "Div", "TruncateDiv": "Div", "Mod": "Mod", "FloorMod": "Mod", "TruncateMod": "Mod",
    "Maximum": "Max", "Minimum": "Min", "Pow": "Pow", "SquaredDifference": "tf::SquaredDifference", "Atan2": "Atan",
    "BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr", "BitwiseXor": "BitwiseXor", "LeftShift": "BitShift",
    "RightShift": "BitShift", "Xlogy": "tf::Xlogy", "Xdivy": "tf::Xlogy",
}  # fmt: skip
_COMPARISONS = {
    "Equal": "Equal", "NotEqual": "Equal", "Greater": "Greater", "GreaterEqual": "GreaterOrEqual", "Less": "Less",
    "LessEqual": "LessOrEqual", "LogicalAnd": "And", "LogicalOr": "Or",
}  # fmt: skip
_GRADIENTS = """ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SigmoidGrad TanhGrad SoftplusGrad SoftsignGrad
    RsqrtGrad SqrtGrad InvGrad ReciprocalGrad GeluGrad MaxPoolGrad MaxPool3DGrad LRNGrad"""
"""Gradients with as many elements as their first argument."""

POINTWISE: Mapping[str, str] = {**_SAME, **{op: DOMAIN + op for op in _GRADIENTS.split()}}
BROADCAST: Mapping[str, str] = _BROADCAST
COMPARISONS: Mapping[str, str] = _COMPARISONS

_OTHERS = {
    "AddN": "Sum", "AccumulateNV2": "Sum", "Reshape": "Reshape", "Squeeze": "Squeeze", "ExpandDims": "Unsqueeze",
    "Transpose": "Transpose", "ConjugateTranspose": "Transpose", "Concat": "Concat", "ConcatV2": "Concat",
    "Pack": "Concat", "Unpack": "Split", "Split": "Split", "SplitV": "Split", "Slice": "Slice", "StridedSlice": "Slice",
    "Gather": "Gather", "GatherV2": "Gather", "ResourceGather": "Gather", "GatherNd": "GatherND",
    "ScatterNd": "ScatterND", "Tile": "Tile", "Pad": "Pad", "PadV2": "Pad", "MirrorPad": "Pad", "Fill": "Expand",
    "BroadcastTo": "Expand", "OneHot": "OneHot", "Range": "Range", "LinSpace": "Range", "Shape": "Shape",
    "ShapeN": "Shape", "VariableShape": "Shape", "Size": "Size", "Rank": "Size", "TopKV2": "TopK",
    "TopK": "TopK", "Where": "NonZero",
    "Select": "Where", "SelectV2": "Where", "SpaceToDepth": "SpaceToDepth", "DepthToSpace": "DepthToSpace",
    "ArgMax": "ArgMax", "ArgMin": "ArgMin", "Unique": "Unique", "UniqueV2": "Unique",
    "MatMul": "MatMul", "SparseMatMul": "MatMul", "BatchMatMul": "MatMul", "BatchMatMulV2": "MatMul",
    "BatchMatMulV3": "MatMul", "_FusedMatMul": "com.microsoft::FusedGemm", "Einsum": "Einsum", "XlaEinsum": "Einsum",
    "Conv2D": "Conv", "Conv3D": "Conv", "DepthwiseConv2dNative": "Conv", "_FusedConv2D": "com.microsoft::FusedConv",
    "_FusedDepthwiseConv2dNative": "com.microsoft::FusedConv",
    "MaxPool": "MaxPool", "MaxPool3D": "MaxPool", "MaxPoolWithArgmax": "MaxPool", "AvgPool": "AveragePool",
    "AvgPool3D": "AveragePool", "FusedBatchNorm": "BatchNormalization", "FusedBatchNormV2": "BatchNormalization",
    "FusedBatchNormV3": "BatchNormalization", "_FusedBatchNormEx": "BatchNormalization",
    "All": "ReduceMin", "Any": "ReduceMax", "Max": "ReduceMax", "Mean": "ReduceMean", "Min": "ReduceMin",
    "Prod": "ReduceProd", "Sum": "ReduceSum", "EuclideanNorm": "ReduceL2", "L2Loss": "ReduceSumSquare",
    "BiasAddGrad": "ReduceSum", "RandomUniform": "RandomUniform", "RandomUniformInt": "RandomUniform",
    "StatelessRandomUniform": "RandomUniform", "StatelessRandomUniformV2": "RandomUniform",
    "RandomStandardNormal": "RandomNormal", "TruncatedNormal": "RandomNormal", "StatelessRandomNormal": "RandomNormal",
    "StatelessRandomNormalV2": "RandomNormal", "StatelessTruncatedNormalV2": "RandomNormal",
    "ResizeBilinear": "Resize", "ResizeNearestNeighbor": "Resize", "ResizeBicubic": "Resize",
    "Multinomial": "Multinomial", "ReadVariableOp": "Identity", "If": "If", "StatelessIf": "If", "Case": "If",
    "StatelessCase": "If", "While": "Loop", "StatelessWhile": "Loop",
}  # fmt: skip

KINDS: Mapping[str, str] = {**POINTWISE, **BROADCAST, **COMPARISONS, **_OTHERS, **lists.KINDS}
"""TensorFlow op → kind; ops that are missing here become ``tf::Op``."""

_ORDERS = {
    "Split": (1, 0), "Fill": (1, 0), "BatchNormWithGlobalNormalization": (0, 4, 3, 1, 2), **lists.ORDERS,
}  # fmt: skip
"""Where ONNX orders arguments differently: the index of the first argument, the second, …"""
_CONV_KERNELS = {"Conv3D": "DHWIO", "DepthwiseConv2dNative": "HWGO", "_FusedDepthwiseConv2dNative": "HWGO"}


def kind_of(op: str) -> str:
    """``MatMul`` if ONNX has the op, else ``tf::Op``."""
    return KINDS.get(op, DOMAIN + op)


def position_of(op: str, place: int) -> int:
    """The argument position in ONNX of input `place` of an op. Concat has its axis first."""
    if op == "Concat":
        return place - 1 if place else 1 << 20
    order = _ORDERS.get(op, ())
    return order.index(place) if place < len(order) else place


def attributes_of(call: NodeCall) -> dict[str, Any]:
    """The node's attributes as plain values, those that ONNX rules expect, and the original op name and device."""
    node, kind = call.node, kind_of(call.node.op)
    attributes = {name: _to_plain(value) for name, value in node.attr.items() if _is_kept(name, value)}
    if kind not in (node.op, DOMAIN + node.op):
        attributes["op"] = node.op
    if node.device:
        attributes["device"] = node.device
    return attributes | _onnx_attributes(call, kind)


def _onnx_attributes(call: NodeCall, kind: str) -> dict[str, Any]:
    node = call.node
    if kind in ("MatMul", "com.microsoft::FusedGemm"):
        flags = {"transA": ("transpose_a", "adj_x"), "transB": ("transpose_b", "adj_y")}
        return {name: 1 for name, words in flags.items() if any(node.flag(word) for word in words)}
    if kind in ("Conv", "com.microsoft::FusedConv"):
        return {"kernel_layout": _CONV_KERNELS.get(node.op, "HWIO")}
    if kind in ("MaxPool", "AveragePool"):
        window = node.ints("ksize")
        axes = spatial_axes(node.text("data_format", "NHWC"), len(window))
        return {"kernel_shape": tuple(window[axis] for axis in axes)}
    if kind == "BatchNormalization":
        always = "is_training" not in node.attr and node.op.startswith("Fused")
        return {"training_mode": int(always or node.flag("is_training"))}
    if kind == "Transpose" and len(call.args) > 1 and call.args[1].data is not None:
        return {"perm": call.numbers(1)}
    if kind == "LRN":
        return {"size": 2 * node.whole("depth_radius", 5) + 1}
    if kind == "Resize":
        return {"mode": {"ResizeBilinear": "linear", "ResizeBicubic": "cubic"}.get(node.op, "nearest")}
    return {}


def _is_kept(name: str, value: Any) -> bool:
    """Whether to keep an attribute: not if it repeats shapes and types of the graph, or holds values."""
    which = value.WhichOneof("value")
    return name[:1] != "_" and which not in (None, "type", "shape", "tensor", "placeholder")


def _to_plain(value: Any) -> Any:
    which = value.WhichOneof("value")
    if which == "list":
        items = next((list(getattr(value.list, kind)) for kind in "sifb" if len(getattr(value.list, kind))), [])
        if len(items) > LONGEST_LIST:
            return {"length": len(items)}
        return tuple(item.decode(errors="replace") if isinstance(item, bytes) else item for item in items)
    if which == "func":
        return str(value.func.name)
    if which == "f":
        return _float(value.f)
    plain = getattr(value, which)
    return plain.decode(errors="replace") if isinstance(plain, bytes) else plain


def _float(value: float) -> float | str:
    """Round to the shortest number that is equal in single precision; infinities and NaN become text, for JSON."""
    return float(f"{value:.7g}") if abs(value) < float("inf") else str(value)


def is_backward_kind(op: str) -> bool:
    """Whether only gradients and optimizers use this op."""
    if op.startswith(("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply")):
        return True
    return op.endswith(("Grad", "GradV2", "GradV3", "BackpropFilter", "BackpropFilterV2"))
