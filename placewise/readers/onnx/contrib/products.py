"""Shapes of ONNX Runtime's matrix products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.readers.onnx.contrib.context import InferenceContext, Output, Rule, T, broadcast, count_windows
from placewise.readers.onnx.types import Shape


def infer_matmul(ctx: InferenceContext, *, right: int = 1, dtype: int | None = None, scale: int = 0) -> list[Output]:
    """[…, M, K] · […, K, N] with optional transposes; the type is `dtype`, else that of input `scale`."""
    left, other = ctx.shapes[0], ctx.shapes[right]
    if ctx.number("transBatchA"):
        left = (*left[1:-1], left[0], left[-1])
    if ctx.number("transBatchB"):
        other = (*other[1:-1], other[0], other[-1])
    if ctx.number("transA") and len(left) > 1:
        left = (*left[:-2], left[-1], left[-2])
    if ctx.number("transB") and len(other) > 1:
        other = (*other[:-2], other[-1], other[-2])
    batch = broadcast((left[:-2], other[:-2]))
    rows, columns = left[-2:-1], other[-1:] if len(other) > 1 else ()
    if left[-1] != (other[-2] if len(other) > 1 else other[0]):
        raise ValueError("the factors are incompatible")
    return [((*batch, *rows, *columns), ctx.dtypes[scale] if dtype is None else dtype)]


def infer_columns(ctx: InferenceContext, *, name: str = "N") -> list[Output]:
    """[…, K] → […, N]; N is an attribute."""
    return [((*ctx.shapes[0][:-1], ctx.number(name)), ctx.dtypes[0])]


def infer_packed_rows(ctx: InferenceContext) -> list[Output]:
    """[…, K] times the transpose of a packed [N, …]."""
    return [((*ctx.shapes[0][:-1], ctx.shapes[1][0]), ctx.dtypes[0])]


def infer_query_key_value(ctx: InferenceContext) -> list[Output]:
    """[…, K] → Q, K and V (K and V of one width), and the sum with the skip connection."""
    key = infer_columns(ctx, name="Nkv")[0]
    return [infer_columns(ctx, name="Nq")[0], key, key, ctx.like(0)]


def infer_conv(
    ctx: InferenceContext, *, kernel: int = 1, layout: str = "OI", last: bool = False, dtype: int = 0
) -> list[Output]:
    """Data [batch, channels, …] or, if `last`, [batch, …, channels]; a kernel [out, in, …] or OHWI."""
    weight = ctx.shapes[kernel]
    return _slide_windows(ctx, weight[1:-1] if layout == "OHWI" else weight[2:], last, weight[0], ctx.dtypes[dtype])


def infer_quantized_conv(ctx: InferenceContext) -> list[Output]:
    """The kernel is input 3; input 7 is the zero point of the output, with its element type."""
    return infer_conv(ctx, kernel=3, last=bool(ctx.number("channels_last")), dtype=7 if 7 in ctx.dtypes else 0)


def infer_pool(ctx: InferenceContext, *, last: bool = False) -> list[Output]:
    """Windows of `kernel_shape` over data with channels first or last."""
    last = last or bool(ctx.number("channels_last"))
    channels = ctx.shapes[0][-1 if last else 1]
    return _slide_windows(ctx, ctx.numbers("kernel_shape", ()), last, channels, ctx.dtypes[0])


def infer_global_pool(ctx: InferenceContext) -> list[Output]:
    """One value per channel."""
    shape, last = ctx.shapes[0], bool(ctx.number("channels_last"))
    ones = (1,) * (len(shape) - 2)
    return [((shape[0], *ones, shape[-1]) if last else (*shape[:2], *ones), ctx.dtypes[0])]


def _slide_windows(ctx: InferenceContext, kernel: Shape, last: bool, channels: int, dtype: int) -> list[Output]:
    data = ctx.shapes[0]
    places = count_windows(data[1:-1] if last else data[2:], kernel, ctx)
    return [((data[0], *places, channels) if last else (data[0], channels, *places), dtype)]


_NCHWC = "com.microsoft.nchwc::"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "GemmFastGelu"), infer_matmul),
    "SparseToDenseMatMul": partial(infer_matmul, scale=1),
    "DynamicQuantizeMatMul": infer_matmul,
    "MatMulIntegerToFloat": partial(infer_matmul, scale=2),
    "MatMulInteger16": partial(infer_matmul, dtype=T.INT32),
    "QOrderedMatMul": partial(infer_matmul, right=2),
    "MatMulNBits": infer_columns,
    "MatMulBnb4": infer_columns,
    "MatMulBlockQuantizedFp4Weight": infer_packed_rows,
    "MatMulBlockQuantizedFp8Weight": infer_packed_rows,
    "MatMulNBitsQkv": infer_query_key_value,
    "FusedConv": infer_conv,
    "NhwcConv": partial(infer_conv, layout="OHWI", last=True),
    "NhwcFusedConv": partial(infer_conv, last=True),
    "QLinearConv": infer_quantized_conv,
    "MaxpoolWithMask": infer_pool,
    "NhwcMaxPool": partial(infer_pool, last=True),
    "QLinearAveragePool": infer_pool,
    "QLinearGlobalAveragePool": infer_global_pool,
    _NCHWC + "Conv": infer_conv,
    _NCHWC + "MaxPool": infer_pool,
    _NCHWC + "AveragePool": infer_pool,
    _NCHWC + "GlobalAveragePool": infer_global_pool,
    _NCHWC + "GlobalMaxPool": infer_global_pool,
    "QGemm": lambda ctx: infer_matmul(ctx, right=3, scale=0 if 7 in ctx.dtypes else 1),
    "GemmFloat8": lambda ctx: infer_matmul(ctx, dtype=ctx.number("dtype", T.FLOAT)),
    "MatMulFpQ4": lambda ctx: [((*ctx.shapes[0][:-1], ctx.value(2)[1]), ctx.dtypes[0])],
    "MatMulNBitsMlp": lambda ctx: [*infer_columns(ctx), ctx.like(0)],
}
