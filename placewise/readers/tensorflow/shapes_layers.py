"""Types of the results of matrix products, convolutions, pooling, reductions and recurrent cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewise.readers.tensorflow.abstract_values import (
    NodeCall,
    Rule,
    ShapeConflict,
    Type,
    Unknown,
    axis_of,
    broadcast,
)
from placewise.readers.tensorflow.types import Shape


def matmul(call: NodeCall) -> list[Type]:
    """MatMul and its batched variants; either side may be transposed."""
    left, right = call.dims(0), call.dims(1)
    transposed = [
        any(call.node.flag(f"{word}_{side}") for word in ("transpose", "adj")) for side in ("a", "b", "x", "y")
    ]
    if min(len(left), len(right)) < 2:
        raise ShapeConflict("a matrix has two dimensions or more")
    rows, inner = left[:-3:-1] if transposed[0] or transposed[2] else left[-2:]
    meets, columns = right[:-3:-1] if transposed[1] or transposed[3] else right[-2:]
    if inner != meets and min(inner, meets) >= 0:
        raise ShapeConflict(f"rows of {inner} meet columns of {meets}")
    dtype = call.node.dtype("Tout", call.node.dtype("T", call.node.dtype("Ta", call.args[0].dtype)))
    return [Type(dtype, (*broadcast(left[:-2], right[:-2]), rows, columns))]


def einsum(call: NodeCall) -> list[Type]:
    left, arrow, right = call.node.text("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(call.args):
        raise Unknown
    sizes: dict[str, int] = {}
    dots: Shape = ()
    for place, term in enumerate(terms):
        shape = call.dims(place)
        before, ellipsis, after = term.partition("...")
        hidden = shape[len(before) : len(shape) - len(after)] if ellipsis else ()
        dots = broadcast(dots, hidden)
        known = (*shape[: len(before)], *shape[len(shape) - len(after) :]) if ellipsis else shape
        for label, size in zip(before + after, known, strict=True):
            if min(size, sizes.get(label, -1)) > 1 and size != sizes[label]:
                raise ShapeConflict(f"{label!r} is {sizes[label]} and {size}")
            sizes[label] = max(sizes.get(label, 1), size) if size >= 0 else sizes.get(label, -1)
    before, ellipsis, after = right.partition("...")
    return [Type(call.dtype(), (*(sizes[x] for x in before), *(dots if ellipsis else ()), *(sizes[x] for x in after)))]


def spatial_axes(layout: str, rank: int) -> tuple[int, ...]:
    """The axes of the data that a window slides over."""
    return tuple(range(2, rank)) if layout.startswith("NC") else tuple(range(1, rank - 1))


def _slide_window(call: NodeCall, shape: Shape, window: Shape, name: str = "padding") -> dict[int, int]:
    """Sizes, by axis, after sliding a window over `shape` (SAME: ceil(size / stride); VALID: whole windows only)."""
    layout = call.node.text("data_format", "NHWC")
    axes = spatial_axes(layout, len(shape))
    strides = call.node.ints("strides", (1,) * len(shape))
    dilations = call.node.ints("dilations") or (1,) * len(shape)
    padding, pads = call.node.text(name, "VALID"), call.node.ints("explicit_paddings")
    _check_steps("strides", strides, len(shape))
    _check_steps("dilations", dilations, len(shape))
    sizes = {}
    for axis, extent in zip(axes, window, strict=True):
        covered = (extent - 1) * dilations[axis] + 1
        around = pads[2 * axis] + pads[2 * axis + 1] if padding == "EXPLICIT" else 0
        if shape[axis] < 0 or extent < 0:
            sizes[axis] = -1
        elif padding == "SAME":
            sizes[axis] = -(-shape[axis] // strides[axis])
        elif covered > shape[axis] + around:
            raise ShapeConflict(f"a window of {covered} does not fit into {shape[axis] + around}")
        else:
            sizes[axis] = (shape[axis] + around - covered) // strides[axis] + 1
    return sizes


def _check_steps(name: str, steps: Sequence[int], rank: int) -> None:
    if len(steps) != rank or min(steps, default=1) < 1:
        raise ShapeConflict(f"{name!r} is {', '.join(map(str, steps[:8])) or 'empty'}, not {rank} numbers from 1")


def convolution(call: NodeCall) -> list[Type]:
    """Conv2D, Conv3D and depthwise: kernels are [spatial …, in, out], depthwise [spatial …, in, multiplier]."""
    shape, kernel = list(call.dims(0)), call.dims(1)
    layout = call.node.text("data_format", "NHWC")
    depthwise = "Depthwise" in call.node.op
    channels = kernel[-2] * kernel[-1] if depthwise else kernel[-1]
    for axis, size in _slide_window(call, tuple(shape), kernel[:-2]).items():
        shape[axis] = size
    at = 1 if layout.startswith("NC") else -1
    data_channels, kernel_channels = shape[at], kernel[-2]
    if min(data_channels, kernel_channels) >= 0 and (
        data_channels != kernel_channels if depthwise else kernel_channels == 0 or data_channels % kernel_channels
    ):
        raise ShapeConflict(f"a kernel for {kernel_channels} channels meets {data_channels}")
    shape[at] = channels
    return [Type(call.dtype(), tuple(shape))]


def pool(call: NodeCall) -> list[Type]:
    shape, window = list(call.dims(0)), call.node.ints("ksize")
    axes = spatial_axes(call.node.text("data_format", "NHWC"), len(shape))
    for axis, size in _slide_window(call, tuple(shape), tuple(window[axis] for axis in axes)).items():
        shape[axis] = size
    first = Type(call.dtype(), tuple(shape))
    return (
        [first, Type(call.node.dtype("Targmax", "int64"), first.shape)] if call.node.op.endswith("Argmax") else [first]
    )


def size_from_argument(position: int) -> Rule:
    """The shape is the value of an argument: gradients of convolutions with respect to data or filter."""
    return lambda call: [Type(call.dtype(), call.numbers(position))]


def reduction(call: NodeCall) -> list[Type]:
    shape = call.dims(0)
    axes = {axis_of(axis, len(shape)) for axis in call.numbers(1)}
    keep = call.node.flag("keep_dims") or call.node.flag("keepdims")
    left = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
    return [Type(call.dtype(), tuple(left))]


def arg_extreme(call: NodeCall) -> list[Type]:
    shape = call.dims(0)
    axis = axis_of(call.number(1), len(shape))
    return [Type(call.node.dtype("output_type", "int64"), shape[:axis] + shape[axis + 1 :])]


def batch_norm(call: NodeCall) -> list[Type]:
    """The data, and per channel the mean, the variance and what the gradient reuses."""
    per_channel = Type(call.node.dtype("U", call.args[1].dtype), call.dims(1))
    more = [Type(per_channel.dtype, (0,))] if call.node.op in ("FusedBatchNormV3", "_FusedBatchNormEx") else []
    return [Type(call.dtype(), call.dims(0)), *[per_channel] * 4, *more]


def batch_norm_gradient(call: NodeCall) -> list[Type]:
    per_channel = Type(call.node.dtype("U", call.args[2].dtype), call.dims(2))
    return [Type(call.dtype(), call.dims(0)), per_channel, per_channel, *[Type(per_channel.dtype, (0,))] * 2]


def bias_gradient(call: NodeCall) -> list[Type]:
    axis = 1 if call.node.text("data_format", "NHWC").startswith("NC") else -1
    return [Type(call.dtype(), (call.dims(0)[axis],))]


def cross_entropy(call: NodeCall) -> list[Type]:
    shape = call.dims(0)
    return [Type(call.dtype(), shape[:-1]), Type(call.dtype(), shape)]


def block_lstm(call: NodeCall) -> list[Type]:
    """Seven values of [time, batch, hidden]."""
    return [Type(call.dtype(1), (call.dims(1)[0], *call.dims(2)))] * 7


def cudnn_rnn(call: NodeCall) -> list[Type]:
    """[time, batch, directions · hidden], both states, and a reserve of unknown size, which counts as empty."""
    data, state = call.dims(0), call.dims(1)
    both = 2 if call.node.text("direction", "unidirectional") == "bidirectional" else 1
    memory = call.dims(2) if call.node.text("rnn_mode", "lstm") == "lstm" else (0,)
    results = ((data[0], data[1], both * state[2]), state, memory, (0,))
    return [*(Type(call.dtype(), shape) for shape in results), Type("int8", (0,))]


def resize(call: NodeCall) -> list[Type]:
    batch, _, _, channels = call.dims(0)
    dtype = call.dtype() if call.node.op == "ResizeNearestNeighbor" else "float32"
    return [Type(dtype, (batch, *call.numbers(1), channels))]


_REDUCTIONS = "All Any EuclideanNorm Max Mean Min Prod Sum"
_PRODUCTS = "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 SparseMatMul _FusedMatMul"
_DATA_GRADIENTS = "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput"
_FILTER_GRADIENTS = "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter"
_CONVOLUTIONS = "Conv2D Conv3D DepthwiseConv2dNative _FusedConv2D _FusedDepthwiseConv2dNative"
_POOLS = "AvgPool AvgPool3D MaxPool MaxPool3D MaxPoolWithArgmax"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_PRODUCTS.split(), matmul),
    "Einsum": einsum,
    "XlaEinsum": einsum,
    **dict.fromkeys(_CONVOLUTIONS.split(), convolution),
    **dict.fromkeys(_POOLS.split(), pool),
    **dict.fromkeys(_REDUCTIONS.split(), reduction),
    **dict.fromkeys(_DATA_GRADIENTS.split(), size_from_argument(0)),
    **dict.fromkeys(_FILTER_GRADIENTS.split(), size_from_argument(1)),
    "AvgPoolGrad": lambda call: [Type(call.dtype(1), call.numbers(0))],
    "AvgPool3DGrad": lambda call: [Type(call.dtype(1), call.numbers(0))],
    "StridedSliceGrad": lambda call: [Type(call.dtype(4), call.numbers(0))],
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extreme),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "_FusedBatchNormEx"), batch_norm),
    **dict.fromkeys(("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), batch_norm_gradient),
    "BiasAddGrad": bias_gradient,
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), cross_entropy),
    "BlockLSTM": block_lstm,
    "BlockLSTMV2": block_lstm,
    **dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), cudnn_rnn),
    **dict.fromkeys(("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"), resize),
    "L2Loss": lambda call: [Type(call.dtype(), ())],
    "GRUBlockCell": lambda call: [Type(call.dtype(), call.dims(1))] * 4,
    "Multinomial": lambda call: [Type(call.node.dtype("output_dtype", "int64"), (call.dims(0)[0], call.number(1)))],
    "LSTMBlockCell": lambda call: [Type(call.dtype(), call.dims(1))] * 7,
    "CropAndResize": lambda call: [Type("float32", (call.dims(1)[0], *call.numbers(3), call.dims(0)[3]))],
}
