"""Matrix products and convolutions: two FLOPs per multiply-add."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.case import Case, Cost, Rule


def matmul(case: Case, *, dtype: str = "", after: int = 0) -> Cost:
    """[…, M, K] · […, K, N], the first perhaps transposed; `after` FLOPs follow on every element."""
    left, result = case.shape(0), case.outputs[0].size
    inner = left[-2] if case.number("transA", 0) else left[-1]
    return case.cost((2 * inner + after) * result, "matmul", dtype=dtype)


def packed_matmul(case: Case) -> Cost:
    """[…, K] · [K, N] with a matrix of few bits whose sizes stand in the attributes."""
    return case.cost(2 * case.size(0) * case.number("N", 0), "matmul")


def conv(case: Case, *, kernel: int = 1, dtype: str = "", after: int = 0) -> Cost:
    """Every output element sums over the kernel [out, in / groups, …], argument `kernel`."""
    products = _products(case, kernel, "OI", without="GO")
    return case.cost((2 * products + after) * case.outputs[0].size, "conv", dtype=dtype)


def conv_transpose(case: Case) -> Cost:
    """Every input element is spread over the kernel [in, out / groups, …]."""
    return case.cost(2 * case.size(0) * _products(case, 1, "IO", without="GI"), "conv")


def _products(case: Case, kernel: int, layout: str, *, without: str) -> int:
    """Elements of a kernel that one element meets: all but those along the dimensions called `without`.

    The attribute `kernel_layout` names the dimensions (G groups, O out, I in, H, W, …); those behind are space.
    """
    shape = case.shape(kernel)
    names = str(case.attributes.get("kernel_layout", layout)).ljust(len(shape))
    return math.prod(length for name, length in zip(names, shape, strict=True) if name not in without)


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
    "QLinearMatMul": partial(matmul, dtype="int8", after=4),
    "Einsum": einsum,
    "Det": determinant,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "ConvInteger": int8_conv,
    "QLinearConv": partial(conv, kernel=3, dtype="int8", after=4),
    "DeformConv": deform_conv,
    "CausalConvWithState": conv,
    "com.microsoft::FusedMatMul": matmul,
    "com.microsoft::TransposeMatMul": matmul,
    "com.microsoft::FusedMatMulActivation": partial(matmul, after=1),
    "com.microsoft::FusedGemm": partial(matmul, after=1),
    "com.microsoft::GemmFastGelu": partial(matmul, after=8),
    "com.microsoft::MatMulInteger16": matmul,
    "com.microsoft::MatMulIntegerToFloat": partial(matmul, dtype="int8", after=2),
    "com.microsoft::DynamicQuantizeMatMul": partial(matmul, dtype="int8", after=2),
    "com.microsoft::QGemm": partial(matmul, dtype="int8", after=4),
    "com.microsoft::MatMulNBits": packed_matmul,
    "com.microsoft::MatMulBnb4": packed_matmul,
    "com.microsoft::FusedConv": partial(conv, after=1),
    "com.microsoft::NhwcFusedConv": partial(conv, after=1),
    "com.microsoft::QLinearConv": partial(conv, kernel=3, dtype="int8", after=4),
}
