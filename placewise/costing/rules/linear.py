"""Matrix products and convolutions: two FLOPs per multiply-add."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from placewise.costing.case import Case, Cost, Rule, Value


def matmul(case: Case, *, right: int = 1, dtype: str = "", after: int = 0) -> Cost:
    """[…, M, K] · […, K, N], each perhaps transposed; `after` FLOPs follow on every element.

    Raises ValueError if argument `right` does not fit the first; −1 says that it is packed in a shape of its own.
    """
    left, result = case.shape(0), case.outputs[0].size
    inner = left[0 if case.number("transBatchA", 0) else -2] if case.number("transA", 0) else left[-1]
    if right in case.inputs and not (case.number("transBatchA", 0) or case.number("transBatchB", 0)):
        _check_factors(case, inner, case.inputs[right])
    return case.cost((2 * inner + after) * result, "matmul", dtype=dtype)


def _check_factors(case: Case, inner: int, other: Value) -> None:
    """The lengths that are summed are one, and the batches broadcast; unknown ones fit, and so do packed factors."""
    is_packed = "float" in case.inputs[0].dtype and "int" in other.dtype
    if is_packed or not other.dims:
        return
    summed = other.dims[-1 if case.number("transB", 0) or len(other.dims) == 1 else -2]
    batches = zip(reversed(case.shape(0)[:-2]), reversed(other.dims[:-2]), strict=False)
    if summed not in (inner, -1) or any(a != b and 1 not in (a, b) and b != -1 for a, b in batches):
        raise ValueError("the factors do not fit")


def packed_matmul(case: Case) -> Cost:
    """[…, K] · [K, N] with a matrix of few bits whose sizes stand in the attributes."""
    return case.cost(2 * case.size(0) * case.number("N", 0), "matmul")


def stored_matmul(case: Case) -> Cost:
    """[…, K] · a matrix in a form of its own, whose N is the width of the result."""
    return case.cost(2 * case.size(0) * case.outputs[0].shape[-1], "matmul")


def packed_matmuls(case: Case, *, widths: Mapping[str, int], before: int = 4, after: int = 0) -> Cost:
    """Products of one normalized input with matrices whose widths stand in attributes, each so many times.

    `before` FLOPs for every element of the input (the normalization), `after` for every column.
    """
    columns = sum(count * case.number(name, 0) for name, count in widths.items())
    size, rows = case.size(0), case.size(0) // max(case.shape(0)[-1], 1)
    return case.cost(2 * size * columns + before * size + after * rows * columns, "matmul")


def conv(case: Case, *, kernel: int = 1, dtype: str = "", after: int = 0) -> Cost:
    """Every output element sums over the kernel [out, in / groups, …], argument `kernel`."""
    _check_channels(case, kernel, "OI")
    products = _products(case, kernel, "OI", without="GO")
    return case.cost((2 * products + after) * case.outputs[0].size, "conv", dtype=dtype)


def nhwc_conv(case: Case) -> Cost:
    """A kernel [out, height, width, in / groups]."""
    return conv(replace(case, attributes={**case.attributes, "kernel_layout": "OHWI"}))


def causal_conv(case: Case) -> Cost:
    """A kernel [channels, 1, …] of its own for every channel, wherever the channels are."""
    return case.cost(2 * case.size(0) * math.prod(case.shape(1)[2:]), "conv")


def depthwise_conv(case: Case) -> Cost:
    """A kernel [channels, 1, length] of its own for every channel."""
    channels = case.shape(1)[0]
    return conv(replace(case, attributes={**case.attributes, "group": channels}))


def conv_transpose(case: Case) -> Cost:
    """Every input element is spread over the kernel [in, out / groups, …]."""
    _check_channels(case, 1, "IO")
    return case.cost(2 * case.size(0) * _products(case, 1, "IO", without="GI"), "conv")


def _products(case: Case, kernel: int, layout: str, *, without: str) -> int:
    """Elements of a kernel that one element meets: all but those along the dimensions called `without`.

    The attribute `kernel_layout` names the dimensions (G groups, O out, I in, H, W, …); those behind are space.
    """
    shape = case.shape(kernel)
    return math.prod(
        length for name, length in zip(_names(case, kernel, layout), shape, strict=True) if name not in without
    )


def _names(case: Case, kernel: int, layout: str) -> str:
    return str(case.attributes.get("kernel_layout", layout)).ljust(len(case.shape(kernel)))


def _check_channels(case: Case, kernel: int, layout: str) -> None:
    """Raise ValueError unless the data, [batch, channels, …] or [batch, …, channels], have the channels that are read.

    Data may lack the batch. Kernels whose layout begins with space, TensorFlow's, do not say how many groups there are.
    """
    names, dims = _names(case, kernel, layout), case.inputs[0].dims
    sizes = dict(zip(names, case.shape(kernel), strict=True))
    space = sum(name not in "GOI" for name in names)
    if len(dims) - space not in (1, 2):
        return
    space_first = names[0] not in "GOI"
    last = space_first and not str(case.attributes.get("data_format", "NHWC")).startswith("NC")
    last = last or "Nhwc" in case.kind or bool(case.number("channels_last", 0))
    channels = dims[-1 if last else -1 - space]
    reads = sizes.get("I", 1) * sizes.get("G", 1) * (case.number("group", 1) if layout == "OI" else 1)
    if channels != -1 and (channels % reads if space_first and "I" in sizes else channels != reads):
        raise ValueError("the kernel does not fit")


def deform_conv(case: Case) -> Cost:
    """A convolution whose samples are interpolated, each from four neighbours with seven FLOPs."""
    batch, channels, *_ = case.shape(0)
    samples = batch * channels * math.prod(case.shape(1)[2:]) * math.prod(case.outputs[0].shape[2:])
    flops = 2 * case.outputs[0].size * math.prod(case.shape(1)[1:]) + 7 * samples
    return case.cost(flops, "conv")


def einsum(case: Case) -> Cost:
    """Operands are joined from left to right; a label is summed out once nothing later needs it."""
    terms, result = _labels(case)
    sizes = {
        label: size
        for position, term in enumerate(terms)
        for label, size in zip(term, case.shape(position), strict=True)
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
    return case.cost(flops, "matmul" if product else "elementwise" if flops else "movement")


def _labels(case: Case) -> tuple[list[str], str]:
    """Labels of operands and result, one character per dimension; an ellipsis becomes private characters."""
    left, arrow, result = str(case.attributes["equation"]).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        result = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    longest = max(
        (len(case.shape(position)) - len(term) + 3 for position, term in enumerate(terms) if "..." in term), default=0
    )
    hidden = "".join(chr(0xE000 + number) for number in range(longest))
    spread = [
        term.replace("...", hidden[longest - (len(case.shape(position)) - len(term) + 3) :])
        for position, term in enumerate(terms)
    ]
    return spread, result.replace("...", hidden)


def determinant(case: Case) -> Cost:
    """LU decomposition of [n, n]: 2 n³ / 3."""
    return case.cost(2 * case.size(0) * case.shape(0)[-1] / 3, "matmul")


int8_matmul = partial(matmul, dtype="int8")
int8_conv = partial(conv, dtype="int8")

RULES: Mapping[str, Rule] = {
    "MatMul": matmul,
    "Gemm": matmul,
    "MatMulInteger": int8_matmul,
    "QLinearMatMul": partial(matmul, right=3, dtype="int8", after=4),
    "Einsum": einsum,
    "Det": determinant,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "ConvInteger": int8_conv,
    "QLinearConv": partial(conv, kernel=3, dtype="int8", after=4),
    "DeformConv": deform_conv,
    "CausalConvWithState": depthwise_conv,
    "com.microsoft::FusedMatMul": matmul,
    "com.microsoft::TransposeMatMul": matmul,
    "com.microsoft::FusedMatMulActivation": partial(matmul, after=1),
    "com.microsoft::FusedGemm": partial(matmul, after=1),
    "com.microsoft::GemmFastGelu": partial(matmul, after=8),
    "com.microsoft::MatMulInteger16": matmul,
    "com.microsoft::MatMulIntegerToFloat": partial(matmul, dtype="int8", after=2),
    "com.microsoft::DynamicQuantizeMatMul": partial(matmul, dtype="int8", after=2),
    "com.microsoft::QGemm": partial(matmul, right=3, dtype="int8", after=4),
    "com.microsoft::MatMulNBits": packed_matmul,
    "com.microsoft::MatMulBnb4": packed_matmul,
    "com.microsoft::MatMulNBitsMlp": partial(packed_matmuls, widths={"N": 2}, after=3),
    "com.microsoft::MatMulNBitsQkv": partial(packed_matmuls, widths={"Nq": 1, "Nkv": 2}),
    "com.microsoft::MatMulBlockQuantizedFp4Weight": stored_matmul,
    "com.microsoft::MatMulBlockQuantizedFp8Weight": stored_matmul,
    "com.microsoft::MatMulFpQ4": stored_matmul,
    "com.microsoft::GemmFloat8": matmul,
    "com.microsoft::SparseToDenseMatMul": matmul,
    "com.microsoft::QOrderedMatMul": partial(matmul, right=2, dtype="int8", after=4),
    "com.microsoft::ConvTransposeWithDynamicPads": conv_transpose,
    "com.microsoft::CausalConvWithState": causal_conv,
    "com.microsoft::VarlenCausalConvWithState": causal_conv,
    "com.microsoft::NhwcConv": nhwc_conv,
    "com.microsoft.nchwc::Conv": partial(conv, after=1),
    "com.microsoft::FusedConv": partial(conv, after=1),
    "com.microsoft::NhwcFusedConv": partial(conv, after=1),
    "com.microsoft::QLinearConv": partial(conv, kernel=3, dtype="int8", after=4),
}
