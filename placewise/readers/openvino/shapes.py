"""Shape inference for the dimensions that an IR file leaves open.

Only shapes and attributes are used: values are in the .bin file, which is not opened. Other dimensions stay open. The
rules follow the operation specifications in the OpenVINO documentation (docs.openvino.ai).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placewise.readers.openvino.attributes import attributes_of
from placewise.readers.openvino.net import NetLayer

Dims = tuple[int, ...]
Attributes = Mapping[str, Any]
Rule = Callable[[NetLayer, Sequence[Dims], Sequence[Dims]], Sequence[Dims]]
"""(layer, its input shapes, its input shapes in the file) → output shapes, as far as they follow."""


class ShapeMismatch(Exception):
    """The inputs of a layer contradict each other or the output shapes in the file."""


def infer_outputs(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> list[Dims]:
    """The output shapes: those in the file, with open dimensions inferred. Raises ShapeMismatch."""
    outputs, rule = [port.dims for port in layer.outputs], _RULES.get(layer.type)
    if rule is None:
        return outputs
    try:
        follows = [*rule(layer, inputs, declared)]
    except (LookupError, ValueError, TypeError, ArithmeticError):  # invalid inputs
        raise ShapeMismatch from None
    return [*(_fill_open(*pair) for pair in zip(outputs, follows, strict=False)), *outputs[len(follows) :]]


def _fill_open(stated: Dims, follows: Dims) -> Dims:
    if len(stated) != len(follows) or any(min(a, b) >= 0 and a != b for a, b in zip(stated, follows, strict=True)):
        raise ShapeMismatch
    return tuple(new if old < 0 else old for old, new in zip(stated, follows, strict=True))


def _broadcast(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    """The broadcast of all inputs; a known dimension above 1 replaces an open one."""
    if layer.data.get("auto_broadcast") == "pdpd":
        return [inputs[0]]
    rank = max(map(len, inputs))
    columns = [*zip(*((1,) * (rank - len(dims)) + dims for dims in inputs), strict=True)]
    if any(len({dim for dim in column if dim >= 0 and dim != 1}) > 1 for column in columns):
        raise ShapeMismatch
    return [tuple(max(column) if max(column) > 1 or min(column) > 0 else -1 for column in columns)]


def _matmul(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    attributes, (left, right) = attributes_of(layer), inputs[:2]
    if min(len(left), len(right)) < 2:
        return []
    rows = left[-1] if attributes.get("transA") else left[-2]
    columns = right[-2] if attributes.get("transB") else right[-1]
    inner = left[-2] if attributes.get("transA") else left[-1], right[-1] if attributes.get("transB") else right[-2]
    if min(inner) >= 0 and inner[0] != inner[1]:
        raise ShapeMismatch
    return [(*_broadcast(layer, (left[:-2], right[:-2]), declared)[0], rows, columns)]


def _slide_window(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    """Convolutions and pooling: the batch stays; one element per window position."""
    attributes, stated, data = attributes_of(layer), layer.outputs[0].dims, inputs[0]
    kernel = attributes.get("kernel_shape") or inputs[1][len(inputs[1]) - len(data) + 2 :]
    axes = range(len(data) - 2)
    space = [_count_windows(data[axis + 2], kernel[axis], axis, attributes) for axis in axes]
    channels = math.prod(inputs[1][: len(inputs[1]) - len(data) + 1]) if layer.type in _CONVOLUTIONS else data[1]
    inferred = zip(stated[1:], (channels, *space), strict=True)
    return [(data[0], *(old if old >= 0 else new for old, new in inferred))] * len(layer.outputs)


def _count_windows(length: int, kernel: int, axis: int, attributes: Attributes) -> int:
    ones = (1,) * (axis + 1)
    stride, dilation = (int(attributes.get(key, ones)[axis]) for key in ("strides", "dilations"))
    automatic, rounding = (str(attributes.get(key, "")) for key in ("auto_pad", "rounding_type"))
    if length < 0 or stride < 1:
        return -1
    if automatic.startswith("same"):
        return -(-length // stride)
    pads = attributes.get("pads", ()) if automatic in ("", "explicit", "notset") else ()
    first, last = (int(pads[axis]), int(pads[axis + len(pads) // 2])) if pads else (0, 0)
    steps = length + first + last - dilation * (kernel - 1) - 1
    count = (-(-steps // stride) if rounding.startswith("ceil") else steps // stride) + 1
    if rounding == "ceil_torch" and (count - 1) * stride >= length + first:
        count -= 1
    return max(count, 0)


def _batch_only(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    """The batch stays; the other dimensions depend on values."""
    return [(inputs[0][0], *port.dims[1:]) for port in layer.outputs]


def _concat(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    axis = attributes_of(layer).get("axis", 0) % len(inputs[0])
    along = [dims[axis] for dims in inputs]
    rest = _broadcast(layer, [(*dims[:axis], 1, *dims[axis + 1 :]) for dims in inputs], declared)[0]
    return [(*rest[:axis], -1 if min(along) < 0 else sum(along), *rest[axis + 1 :])]


def _reshape(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    """A view: the other dimensions determine one open dimension."""
    stated, known = layer.outputs[0].dims, math.prod(dim for dim in layer.outputs[0].dims if dim > 0)
    size, is_open = math.prod(inputs[0]), stated.count(-1)
    if min(inputs[0], default=1) < 1 or 0 in stated or is_open > 1:
        return []
    if size % known or (not is_open and size != known):
        raise ShapeMismatch
    return [tuple(size // known if dim < 0 else dim for dim in stated)]


def _transpose(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    """Open dimensions take the remaining sizes if these are all equal."""
    stated = layer.outputs[0].dims
    left = Counter(inputs[0]) - Counter(dim for dim in stated if dim >= 0)
    return [tuple(next(iter(left)) if dim < 0 else dim for dim in stated)] if len(left) == 1 else []


def _keep_open_order(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    """The open dimensions of the only input that has some are open in the output, in the same order."""
    open_inputs = [row for row, dims in enumerate(declared) if -1 in dims]
    if len(open_inputs) != 1:
        return []
    row = open_inputs[0]
    filled = [inputs[row][axis] for axis, dim in enumerate(declared[row]) if dim < 0]
    shapes = []
    for port in layer.outputs:
        values = iter(filled)
        fits = port.dims.count(-1) == len(filled)
        shapes.append(tuple(next(values) if dim < 0 and fits else dim for dim in port.dims))
    return shapes


def _slice(layer: NetLayer, inputs: Sequence[Dims], declared: Sequence[Dims]) -> Sequence[Dims]:
    """A slice of the first input: open dimensions stay if the slice is along another dimension."""
    shapes = []
    for port in layer.outputs:
        pairs = [*zip(port.dims, declared[0], strict=False)]
        elsewhere = len(port.dims) == len(declared[0]) and any(a != b and min(a, b) >= 0 for a, b in pairs)
        open_alike = all(a >= 0 or b < 0 for a, b in pairs)
        kept = zip(inputs[0], port.dims, strict=False)
        shapes.append(tuple(new if old < 0 else old for new, old in kept) if elsewhere and open_alike else port.dims)
    return shapes


_BROADCAST = """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceiling Clamp
    Convert ConvertLike Cos Cosh Divide Elu Equal Erf Exp Floor FloorMod Gelu Greater GreaterEqual HSigmoid HSwish
    IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mish Mod
    Multiply Negative NotEqual Power ReLU Round Select Sigmoid Sign Sin Sinh SoftPlus SoftSign Sqrt SquaredDifference
    Subtract Tan Tanh"""
_LIKE_FIRST = """BatchNormInference CumSum FakeQuantize GroupNormalization HardSigmoid LRN LogSoftmax MVN NormalizeL2
    PReLU RMS Result ReverseSequence Roll ScatterElementsUpdate ScatterNDUpdate ScatterUpdate Selu SoftMax Softmax
    Swish"""
_VIEWS = "Reshape Squeeze Unsqueeze"
_REDUCTIONS = """Gather ReduceL1 ReduceL2 ReduceLogicalAnd ReduceLogicalOr ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum"""
_BY_DATA = """CTCGreedyDecoder CTCGreedyDecoderSeqLen ExperimentalDetectronDetectionOutput MatrixNms MulticlassNms
    NMSRotated NonMaxSuppression NonZero StringTensorUnpack Unique"""
BY_DATA = frozenset(_BY_DATA.split())
"""Layer types whose output shapes depend on values."""
_SLICES = "Slice Split StridedSlice VariadicSplit"
_CONVOLUTIONS = ("Convolution", "GroupConvolution")
_BATCHES = "ConvolutionBackpropData GroupConvolutionBackpropData Interpolate AdaptiveAvgPool AdaptiveMaxPool"
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_BROADCAST.split(), _broadcast),
    **dict.fromkeys(_LIKE_FIRST.split(), lambda layer, inputs, declared: [inputs[0]]),
    **dict.fromkeys(_VIEWS.split(), _reshape),
    **dict.fromkeys(_REDUCTIONS.split(), _keep_open_order),
    **dict.fromkeys(_SLICES.split(), _slice),
    **dict.fromkeys(("AvgPool", "MaxPool", *_CONVOLUTIONS), _slide_window),
    **dict.fromkeys(_BATCHES.split(), _batch_only),
    "MatMul": _matmul,
    "Concat": _concat,
    "Transpose": _transpose,
    "ScaledDotProductAttention": lambda layer, inputs, declared: [(*inputs[0][:-1], inputs[2][-1])],
}
