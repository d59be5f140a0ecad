"""Matrix products and convolutions: two FLOPs per multiply-add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, OpValue, Rule


def matmul(op: OpInstance, *, right: int = 1, dtype: str = "", after: int = 0) -> Cost:
    """[…, M, K] · […, K, N], each possibly transposed; `after` FLOPs per element follow.

    Raises ValueError if argument `right` does not fit the first; −1 means that it is packed.
    """
    left, result = op.shape(0), op.outputs[0].size
    inner = left[0 if op.number("transBatchA", 0) else -2] if op.number("transA", 0) else left[-1]
    if right in op.inputs and not (op.number("transBatchA", 0) or op.number("transBatchB", 0)):
        _check_factors(op, inner, op.inputs[right])
    return op.cost((2 * inner + after) * result, "matmul", dtype=dtype)


def _check_factors(op: OpInstance, inner: int, other: OpValue) -> None:
    """Contracted lengths must be equal and batches must broadcast; unknown sizes and packed factors always fit."""
    is_packed = "float" in op.inputs[0].dtype and "int" in other.dtype
    if is_packed or not other.dims:
        return
    summed = other.dims[-1 if op.number("transB", 0) or len(other.dims) == 1 else -2]
    batches = zip(reversed(op.shape(0)[:-2]), reversed(other.dims[:-2]), strict=False)
    if summed not in (inner, -1) or any(a != b and 1 not in (a, b) and b != -1 for a, b in batches):
        raise ValueError("the factors do not fit")


def packed_matmul(op: OpInstance) -> Cost:
    """[…, K] · [K, N] with a matrix of few bits whose sizes are attributes."""
    return op.cost(2 * op.size(0) * op.number("N", 0), "matmul")


def stored_matmul(op: OpInstance) -> Cost:
    """[…, K] · a matrix in a custom format, whose N is the width of the result."""
    return op.cost(2 * op.size(0) * op.outputs[0].shape[-1], "matmul")


def packed_matmuls(op: OpInstance, *, widths: Mapping[str, int], before: int = 4, after: int = 0) -> Cost:
    """Products of one normalized input with matrices whose widths are attributes, each with its count.

    `before` FLOPs per element of the input (the normalization), `after` per column.
    """
    columns = sum(count * op.number(name, 0) for name, count in widths.items())
    size, rows = op.size(0), op.size(0) // max(op.shape(0)[-1], 1)
    return op.cost(2 * size * columns + before * size + after * rows * columns, "matmul")


def conv(op: OpInstance, *, kernel: int = 1, dtype: str = "", after: int = 0) -> Cost:
    """Every output element sums over the kernel [out, in / groups, …], argument `kernel`."""
    _check_channels(op, kernel, "OI")
    products = _products(op, kernel, "OI", without="GO")
    return op.cost((2 * products + after) * op.outputs[0].size, "conv", dtype=dtype)


def nhwc_conv(op: OpInstance) -> Cost:
    """A kernel [out, height, width, in / groups]."""
    return conv(replace(op, attributes={**op.attributes, "kernel_layout": "OHWI"}))


def causal_conv(op: OpInstance) -> Cost:
    """A separate kernel [channels, 1, …] for every channel, wherever the channels are."""
    return op.cost(2 * op.size(0) * math.prod(op.shape(1)[2:]), "conv")


def depthwise_conv(op: OpInstance) -> Cost:
    """A separate kernel [channels, 1, length] for every channel."""
    channels = op.shape(1)[0]
    return conv(replace(op, attributes={**op.attributes, "group": channels}))


def conv_transpose(op: OpInstance) -> Cost:
    """Every input element is spread over the kernel [in, out / groups, …]."""
    _check_channels(op, 1, "IO")
    return op.cost(2 * op.size(0) * _products(op, 1, "IO", without="GI"), "conv")


def _products(op: OpInstance, kernel: int, layout: str, *, without: str) -> int:
    """Kernel elements that one element meets: all but those along the dimensions `without`.

    The attribute `kernel_layout` names the dimensions (G groups, O out, I in, H, W, …); the rest is space.
    """
    shape = op.shape(kernel)
    return math.prod(
        length for name, length in zip(_names(op, kernel, layout), shape, strict=True) if name not in without
    )


def _names(op: OpInstance, kernel: int, layout: str) -> str:
    return str(op.attributes.get("kernel_layout", layout)).ljust(len(op.shape(kernel)))


def _check_channels(op: OpInstance, kernel: int, layout: str) -> None:
    """Raise ValueError unless the data, [batch, channels, …] or [batch, …, channels], have the channels that the op
    reads.

    The batch may be missing. Kernels whose layout begins with space, TensorFlow's, do not imply the number of groups.
    """
    names, dims = _names(op, kernel, layout), op.inputs[0].dims
    sizes = dict(zip(names, op.shape(kernel), strict=True))
    space = sum(name not in "GOI" for name in names)
    if len(dims) - space not in (1, 2):
        return
    space_first = names[0] not in "GOI"
    last = space_first and not str(op.attributes.get("data_format", "NHWC")).startswith("NC")
    last = last or "Nhwc" in op.kind or bool(op.number("channels_last", 0))
    channels = dims[-1 if last else -1 - space]
    reads = sizes.get("I", 1) * sizes.get("G", 1) * (op.number("group", 1) if layout == "OI" else 1)
    if channels != -1 and (channels % reads if space_first and "I" in sizes else channels != reads):
        raise ValueError("the kernel does not fit")


def deform_conv(op: OpInstance) -> Cost:
    """A convolution whose samples are interpolated from four neighbours with seven FLOPs each."""
    batch, channels, *_ = op.shape(0)
    samples = batch * channels * math.prod(op.shape(1)[2:]) * math.prod(op.outputs[0].shape[2:])
    flops = 2 * op.outputs[0].size * math.prod(op.shape(1)[1:]) + 7 * samples
    return op.cost(flops, "conv")


def einsum(op: OpInstance) -> Cost:
    """Operands are contracted from left to right; a label is summed once no later operand needs it."""
    shapes = [op.shape(position) for position in range(len(op.inputs))]
    terms, result = label_einsum(str(op.attributes["equation"]), shapes)
    sizes = {
        label: size
        for position, term in enumerate(terms)
        for label, size in zip(term, op.shape(position), strict=True)
        if size != 1
    }
    present, flops, product = set(terms[0]), 0, False
    for position, term in enumerate(terms[1:], start=1):
        every = present | set(term)
        present = every & set("".join((*terms[position + 1 :], result)))
        summed = any(sizes.get(label, 1) > 1 for label in every - present)
        product |= summed
        flops += (1 + summed) * math.prod(sizes.get(label, 1) for label in every)
    if present - set(result):
        flops += math.prod(sizes.get(label, 1) for label in present)
    return op.cost(flops, "matmul" if product else "elementwise" if flops else "movement")


def label_einsum(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Labels of operands and result, one character per dimension; private characters replace an ellipsis."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        result = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    ranks = [len(shape) for shape in shapes]
    longest = max((ranks[k] - len(term) + 3 for k, term in enumerate(terms) if "..." in term), default=0)
    hidden = "".join(chr(0xE000 + number) for number in range(longest))
    spread = [term.replace("...", hidden[longest - (ranks[k] - len(term) + 3) :]) for k, term in enumerate(terms)]
    return spread, result.replace("...", hidden)


def determinant(op: OpInstance) -> Cost:
    """LU decomposition of [n, n]: 2 n³ / 3."""
    return op.cost(2 * op.size(0) * op.shape(0)[-1] / 3, "matmul")


_MATMUL = """MatMul Gemm com.microsoft::FusedMatMul com.microsoft::TransposeMatMul com.microsoft::MatMulInteger16
    com.microsoft::GemmFloat8 com.microsoft::SparseToDenseMatMul"""
_PACKED = "com.microsoft::MatMulNBits com.microsoft::MatMulBnb4"
_STORED = """com.microsoft::MatMulBlockQuantizedFp4Weight com.microsoft::MatMulBlockQuantizedFp8Weight
    com.microsoft::MatMulFpQ4"""
_FUSED_MATMUL = "com.microsoft::FusedMatMulActivation com.microsoft::FusedGemm"
_FUSED_CONV = "com.microsoft.nchwc::Conv com.microsoft::FusedConv com.microsoft::NhwcFusedConv"
_SCALED_MATMUL = "com.microsoft::MatMulIntegerToFloat com.microsoft::DynamicQuantizeMatMul"
_QUANTIZED_MATMUL = "QLinearMatMul com.microsoft::QGemm"
_QUANTIZED_CONV = "QLinearConv com.microsoft::QLinearConv"
_CAUSAL_CONV = "com.microsoft::CausalConvWithState com.microsoft::VarlenCausalConvWithState"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_MATMUL.split(), matmul),
    **dict.fromkeys(_PACKED.split(), packed_matmul),
    **dict.fromkeys(_STORED.split(), stored_matmul),
    **dict.fromkeys(_FUSED_MATMUL.split(), partial(matmul, after=1)),
    **dict.fromkeys(_SCALED_MATMUL.split(), partial(matmul, dtype="int8", after=2)),
    **dict.fromkeys(_QUANTIZED_MATMUL.split(), partial(matmul, right=3, dtype="int8", after=4)),
    **dict.fromkeys(_FUSED_CONV.split(), partial(conv, after=1)),
    **dict.fromkeys(_QUANTIZED_CONV.split(), partial(conv, kernel=3, dtype="int8", after=4)),
    **dict.fromkeys(_CAUSAL_CONV.split(), causal_conv),
    **dict.fromkeys(("ConvTranspose", "com.microsoft::ConvTransposeWithDynamicPads"), conv_transpose),
    "MatMulInteger": partial(matmul, dtype="int8"),
    "com.microsoft::GemmFastGelu": partial(matmul, after=8),
    "com.microsoft::QOrderedMatMul": partial(matmul, right=2, dtype="int8", after=4),
    "com.microsoft::MatMulNBitsMlp": partial(packed_matmuls, widths={"N": 2}, after=3),
    "com.microsoft::MatMulNBitsQkv": partial(packed_matmuls, widths={"Nq": 1, "Nkv": 2}),
    "Einsum": einsum,
    "Det": determinant,
    "Conv": conv,
    "ConvInteger": partial(conv, dtype="int8"),
    "DeformConv": deform_conv,
    "CausalConvWithState": depthwise_conv,
    "com.microsoft::NhwcConv": nhwc_conv,
}
