"""Shapes of ONNX Runtime's other contrib ops; most outputs are like an input or rearrange its elements."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.readers.onnx.contrib.context import InferenceContext, Output, Rule, T, broadcast, size


def infer_like(ctx: InferenceContext, *, positions: tuple[int, ...] = (0,), dtype: int | None = None) -> list[Output]:
    """An output like each of these inputs."""
    return [ctx.like(position, dtype) for position in positions]


def infer_elementwise(ctx: InferenceContext, *, positions: tuple[int, ...], dtype: int | None = None) -> list[Output]:
    """The broadcast of these inputs, with the last one's element type unless `dtype` is given."""
    shape = broadcast(ctx.shapes[position] for position in positions)
    return [(shape, ctx.dtypes[positions[-1]] if dtype is None else dtype)]


def infer_normalization(ctx: InferenceContext, *, kept: int = 1) -> list[Output]:
    """Like the data, `kept` statistics with one value per row, and the sum before normalization."""
    shape, axis = ctx.shapes[0], ctx.number("axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise ValueError("the axis is out of range")
    axis %= len(shape)
    statistics = (*shape[:axis], *(1 for _ in shape[axis:])), T.FLOAT
    return [ctx.like(0), *(statistics for _ in range(kept)), ctx.like(0)]


def infer_halved(ctx: InferenceContext) -> list[Output]:
    """The last dimension is halved."""
    *front, last = ctx.shapes[0]
    return [((*front, last // 2), ctx.dtypes[0])]


def infer_dropout(ctx: InferenceContext, *, bits: bool) -> list[Output]:
    """Like the data, and the mask: a boolean or a bit per element."""
    shape = ctx.shapes[0]
    return [ctx.like(0), ((-(-size(shape) // 32),), T.UINT32) if bits else (shape, T.BOOL)]


def infer_concat(ctx: InferenceContext) -> list[Output]:
    """Triples of data, scale and zero point from input 2 on; the output has the type of the zero point."""
    shapes = [ctx.shapes[position] for position in sorted(ctx.shapes) if position >= 2 and position % 3 == 2]
    axis = ctx.number("axis") % len(shapes[0])
    total = sum(shape[axis] for shape in shapes)
    return [((*shapes[0][:axis], total, *shapes[0][axis + 1 :]), ctx.dtypes[1])]


def infer_reduce(ctx: InferenceContext, *, dtype: int | None = None) -> list[Output]:
    """Without the `axes`, or with size 1 in their place."""
    shape = ctx.shapes[0]
    axes = {axis % len(shape) for axis in ctx.numbers("axes", range(len(shape)))}
    if ctx.number("keepdims", 1):
        result = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
    else:
        result = tuple(length for axis, length in enumerate(shape) if axis not in axes)
    return [(result, ctx.dtypes[0] if dtype is None else dtype)]


def infer_expand_dims(ctx: InferenceContext) -> list[Output]:
    """With a dimension of size 1 at the axis in input 1."""
    shape = list(ctx.shapes[0])
    axis = ctx.value(1)[0]
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return [(tuple(shape), ctx.dtypes[0])]


def infer_block_gather(ctx: InferenceContext) -> list[Output]:
    """Rows of a quantized table; packed entries share bytes along the last dimension."""
    data, indices = list(ctx.shapes[0]), ctx.shapes[1]
    axis = ctx.number("gather_axis") % len(data)
    if ctx.dtypes[0] == T.UINT8:
        data[-1] *= 8 // ctx.number("bits", 4)
    return [((*data[:axis], *indices, *data[axis + 1 :]), ctx.dtypes[2])]


def infer_rfft(ctx: InferenceContext) -> list[Output]:
    """Complex values (last dimension 2) of the one-sided spectrum of a real signal."""
    *front, length = ctx.shapes[0]
    return [((*front, length // 2 + 1 if ctx.number("onesided") else length, 2), ctx.dtypes[0])]


def infer_irfft(ctx: InferenceContext) -> list[Output]:
    """A real signal from its complex spectrum."""
    *front, length, _ = ctx.shapes[0]
    return [((*front, 2 * (length - 1) if ctx.number("onesided") else length), ctx.dtypes[0])]


def infer_unfold(ctx: InferenceContext) -> list[Output]:
    """Slices of `size`, `step` apart, in a new last dimension."""
    shape, length = list(ctx.shapes[0]), ctx.number("size")
    axis = ctx.number("dim", -1) % len(shape)
    shape[axis] = (shape[axis] - length) // ctx.number("step", 1) + 1
    return [((*shape, length), ctx.dtypes[0])]


def infer_reorder_input(ctx: InferenceContext) -> list[Output]:
    """To blocked channels, from channels first or last."""
    shape = ctx.shapes[0]
    return [((shape[0], shape[-1], *shape[1:-1]) if ctx.number("channels_last") else shape, ctx.dtypes[0])]


def infer_reorder_output(ctx: InferenceContext) -> list[Output]:
    """From blocked channels, with the actual number of channels."""
    batch, _, *space = ctx.shapes[0]
    channels = ctx.number("channels")
    return [((batch, *space, channels) if ctx.number("channels_last") else (batch, channels, *space), ctx.dtypes[0])]


def infer_upsample(ctx: InferenceContext) -> list[Output]:
    """Sizes multiplied by `scales`."""
    scales = ctx.numbers("scales", ())
    return [(tuple(a * b for a, b in zip(ctx.shapes[0], scales, strict=True)), ctx.dtypes[0])]


def infer_stateful_conv(ctx: InferenceContext, *, state: int) -> list[Output]:
    """A convolution output like the data, and a state like the input state, or as long as the kernel requires."""
    if state in ctx.shapes:
        return [ctx.like(0), ctx.like(state)]
    (batch, channels, *_), kernel = ctx.shapes[0], ctx.shapes[1][2:]
    if len(kernel) != 1 or ctx.number("channels_last") or ctx.number("state_window"):
        return [ctx.like(0)]
    return [ctx.like(0), ((batch, channels, (kernel[0] - 1) * ctx.number("dilation", 1)), ctx.dtypes[0])]


def infer_recurrent(ctx: InferenceContext) -> list[Output]:
    """Data [steps, batch, in] and R [directions, …]: all hidden states, the last hidden states, the last cells."""
    steps, batch, _ = ctx.shapes[0]
    directions, hidden = ctx.shapes[2][0], ctx.number("hidden_size")
    last = (directions, batch, hidden), ctx.dtypes[0]
    return [((steps, directions, batch, hidden), ctx.dtypes[0]), last, last]


def infer_delta_net(ctx: InferenceContext) -> list[Output]:
    """Q, K and V [tokens, heads, width], or packed; the state (argument 6) keeps its shape."""
    if 2 not in ctx.shapes:
        raise ValueError("packed heads cannot be separated")
    tokens, heads, _ = ctx.shapes[0]
    _, value_heads, width = ctx.shapes[2]
    result = (tokens, max(heads, value_heads), width), ctx.dtypes[0]
    return [result, ctx.like(6)] if 6 in ctx.shapes else [result]


def infer_stream_mix(ctx: InferenceContext) -> list[Output]:
    """Streams [.., C, H] or, flattened, [.., C · H] become one [.., H]."""
    *front, last = ctx.shapes[0]
    branches = ctx.number("num_branches")
    return [((*front, last // branches) if branches else (*front[:-1], last), ctx.dtypes[0])]


def infer_generation(ctx: InferenceContext, *, beams: bool) -> list[Output]:
    """The maximum number of tokens (input 1) per sequence; with beams, per returned sequence (input 4)."""
    batch, length = ctx.shapes[0][0], ctx.value(1)[0]
    return [((batch, ctx.value(4)[0], length) if beams else (batch, length), T.INT32)]


_LIKE = """BiasAdd BiasGelu BiasSoftmax BranchwiseRMSNorm FastGelu GatedAdd GatedRMSNorm Gelu GroupNorm
    HyperConnectionPostMix Inverse LongformerAttention MoE MRotaryEmbedding QLinearLeakyRelu QLinearSigmoid
    QLinearSoftmax QMoE QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QuickGelu
    RotaryEmbedding SampleOp ScaledSiLU"""
_NCHWC = "com.microsoft.nchwc::"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_LIKE.split(), infer_like),
    "SkipGroupNorm": partial(infer_like, positions=(0, 0)),
    "GemmaRotaryEmbedding": partial(infer_like, positions=(1, 3)),
    "NGramRepeatBlock": partial(infer_like, positions=(1,)),
    "MurmurHash3": partial(infer_like, dtype=T.UINT32),
    "LinearAttentionGate": partial(infer_like, positions=(0, 0)),
    "EngramGate": partial(infer_like, positions=(0, 0)),
    "QuantizeWithOrder": partial(infer_like, dtype=T.INT8),
    "QLinearAdd": partial(infer_elementwise, positions=(3, 0)),
    "QLinearMul": partial(infer_elementwise, positions=(3, 0)),
    "QLinearWhere": partial(infer_elementwise, positions=(0, 4, 1)),
    "MulInteger": partial(infer_elementwise, positions=(0, 2), dtype=T.INT32),
    "ComplexMul": partial(infer_elementwise, positions=(1, 0)),
    "ComplexMulConj": partial(infer_elementwise, positions=(1, 0)),
    "SkipLayerNormalization": partial(infer_normalization, kept=2),
    "SkipSimplifiedLayerNormalization": partial(infer_normalization, kept=2),
    "LayerNormalization": partial(infer_normalization, kept=2),
    "SimplifiedLayerNormalization": infer_normalization,
    "BiasSplitGelu": infer_halved,
    "BiasDropout": partial(infer_dropout, bits=False),
    "BitmaskDropout": partial(infer_dropout, bits=True),
    "BitmaskBiasDropout": partial(infer_dropout, bits=True),
    "QLinearConcat": infer_concat,
    "QLinearReduceMean": infer_reduce,
    "ReduceSumInteger": partial(infer_reduce, dtype=T.INT32),
    "ExpandDims": infer_expand_dims,
    "GatherBlockQuantized": infer_block_gather,
    "Rfft": infer_rfft,
    "Irfft": infer_irfft,
    "UnfoldTensor": infer_unfold,
    "CausalConvWithState": partial(infer_stateful_conv, state=3),
    "VarlenCausalConvWithState": partial(infer_stateful_conv, state=4),
    "AttnLSTM": infer_recurrent,
    "DynamicQuantizeLSTM": infer_recurrent,
    "GatedDeltaNet": infer_delta_net,
    "HyperConnectionPreMix": infer_stream_mix,
    "BeamSearch": partial(infer_generation, beams=True),
    "WhisperBeamSearch": partial(infer_generation, beams=True),
    "GreedySearch": partial(infer_generation, beams=False),
    "Sampling": partial(infer_generation, beams=False),
    _NCHWC + "ReorderInput": infer_reorder_input,
    _NCHWC + "ReorderOutput": infer_reorder_output,
    _NCHWC + "Upsample": infer_upsample,
    "DequantizeWithOrder": lambda ctx: [ctx.like(0, ctx.number("to", T.FLOAT))],
    "CDist": lambda ctx: [((ctx.shapes[0][0], ctx.shapes[1][0]), ctx.dtypes[0])],
    "TorchEmbedding": lambda ctx: [((*ctx.shapes[1], ctx.shapes[0][1]), ctx.dtypes[0])],
    "CropAndResize": lambda ctx: [((ctx.shapes[1][0], ctx.shapes[0][1], *ctx.value(3)), ctx.dtypes[0])],
    "WordConvEmbedding": lambda ctx: [((*ctx.shapes[0][:2], ctx.shapes[1][0]), ctx.dtypes[1])],
    "IsAllFinite": lambda ctx: [((), T.BOOL)],
}
