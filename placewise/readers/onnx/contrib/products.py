"""Shapes of ONNX Runtime's matrix products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.readers.onnx.contrib.call import Call, Made, Rule, T, broadcast, windows
from placewise.readers.onnx.types import Shape


def product(call: Call, *, right: int = 1, dtype: int | None = None, scale: int = 0) -> list[Made]:
    """[…, M, K] · […, K, N], transposed as the attributes say; of argument `scale`'s type unless `dtype` is given."""
    left, other = call.shapes[0], call.shapes[right]
    if call.number("transBatchA"):
        left = (*left[1:-1], left[0], left[-1])
    if call.number("transBatchB"):
        other = (*other[1:-1], other[0], other[-1])
    if call.number("transA") and len(left) > 1:
        left = (*left[:-2], left[-1], left[-2])
    if call.number("transB") and len(other) > 1:
        other = (*other[:-2], other[-1], other[-2])
    batch = broadcast((left[:-2], other[:-2]))
    rows, columns = left[-2:-1], other[-1:] if len(other) > 1 else ()
    if left[-1] != (other[-2] if len(other) > 1 else other[0]):
        raise ValueError("the factors do not fit")
    return [((*batch, *rows, *columns), call.dtypes[scale] if dtype is None else dtype)]


def quantized_gemm(call: Call) -> list[Made]:
    """A [M, K] and B (argument 3) [K, N]; quantized again only where the result has a scale."""
    return product(call, right=3, scale=0 if 7 in call.dtypes else 1)


def typed_product(call: Call) -> list[Made]:
    """A product whose result has the element type that the attribute `dtype` says."""
    return product(call, dtype=call.number("dtype", T.FLOAT))


def columns(call: Call, *, name: str = "N") -> list[Made]:
    """[…, K] → […, N], N being an attribute."""
    return [((*call.shapes[0][:-1], call.number(name)), call.dtypes[0])]


def packed_rows(call: Call) -> list[Made]:
    """[…, K] times the transpose of a packed [N, …]."""
    return [((*call.shapes[0][:-1], call.shapes[1][0]), call.dtypes[0])]


def shaped_columns(call: Call) -> list[Made]:
    """[…, K] times a packed matrix whose shape [K, N] is argument 2."""
    return [((*call.shapes[0][:-1], call.value(2)[1]), call.dtypes[0])]


def gated(call: Call) -> list[Made]:
    """[…, K] → […, N], and the sum with the skip connection."""
    return [*columns(call), call.like(0)]


def query_key_value(call: Call) -> list[Made]:
    """[…, K] → three products, the second and third of one width, and the sum with the skip connection."""
    key = columns(call, name="Nkv")[0]
    return [columns(call, name="Nq")[0], key, key, call.like(0)]


def conv(call: Call, *, kernel: int = 1, layout: str = "OI", last: bool = False, dtype: int = 0) -> list[Made]:
    """Data [batch, channels, …] or, with channels `last`, [batch, …, channels]; a kernel [out, in, …], or OHWI."""
    weight = call.shapes[kernel]
    return _placed(call, weight[1:-1] if layout == "OHWI" else weight[2:], last, weight[0], call.dtypes[dtype])


def quantized_conv(call: Call) -> list[Made]:
    """Kernel at argument 3, and the element type of the result's zero point at 7."""
    return conv(call, kernel=3, last=bool(call.number("channels_last")), dtype=7 if 7 in call.dtypes else 0)


def pool(call: Call, *, last: bool = False) -> list[Made]:
    """Windows of `kernel_shape` over data [batch, channels, …], or with the channels last."""
    last = last or bool(call.number("channels_last"))
    channels = call.shapes[0][-1 if last else 1]
    return _placed(call, call.numbers("kernel_shape", ()), last, channels, call.dtypes[0])


def global_pool(call: Call) -> list[Made]:
    """One value per channel."""
    shape, last = call.shapes[0], bool(call.number("channels_last"))
    ones = (1,) * (len(shape) - 2)
    return [((shape[0], *ones, shape[-1]) if last else (*shape[:2], *ones), call.dtypes[0])]


def _placed(call: Call, kernel: Shape, last: bool, channels: int, dtype: int) -> list[Made]:
    data = call.shapes[0]
    places = windows(data[1:-1] if last else data[2:], kernel, call)
    return [((data[0], *places, channels) if last else (data[0], channels, *places), dtype)]


_NCHWC = "com.microsoft.nchwc::"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "GemmFastGelu"), product),
    "SparseToDenseMatMul": partial(product, scale=1),
    "DynamicQuantizeMatMul": product,
    "MatMulIntegerToFloat": partial(product, scale=2),
    "MatMulInteger16": partial(product, dtype=T.INT32),
    "QOrderedMatMul": partial(product, right=2),
    "GemmFloat8": typed_product,
    "QGemm": quantized_gemm,
    "MatMulNBits": columns,
    "MatMulBnb4": columns,
    "MatMulBlockQuantizedFp4Weight": packed_rows,
    "MatMulBlockQuantizedFp8Weight": packed_rows,
    "MatMulFpQ4": shaped_columns,
    "MatMulNBitsMlp": gated,
    "MatMulNBitsQkv": query_key_value,
    "FusedConv": conv,
    "NhwcConv": partial(conv, layout="OHWI", last=True),
    "NhwcFusedConv": partial(conv, last=True),
    "QLinearConv": quantized_conv,
    "MaxpoolWithMask": pool,
    "NhwcMaxPool": partial(pool, last=True),
    "QLinearAveragePool": pool,
    "QLinearGlobalAveragePool": global_pool,
    _NCHWC + "Conv": conv,
    _NCHWC + "MaxPool": pool,
    _NCHWC + "AveragePool": pool,
    _NCHWC + "GlobalAveragePool": global_pool,
    _NCHWC + "GlobalMaxPool": global_pool,
}
