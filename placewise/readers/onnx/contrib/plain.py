"""Shapes of ONNX Runtime's other ops: most give results like an argument, or move elements about."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.readers.onnx.contrib.call import Call, Made, Rule, T, broadcast, size


def like(call: Call, *, positions: tuple[int, ...] = (0,), dtype: int | None = None) -> list[Made]:
    """A result like each of these arguments."""
    return [call.like(position, dtype) for position in positions]


def dequantized(call: Call) -> list[Made]:
    """Like the data, of the element type that the attribute `to` says."""
    return [call.like(0, call.number("to", T.FLOAT))]


def joined(call: Call, *, positions: tuple[int, ...], dtype: int | None = None) -> list[Made]:
    """One result over all these arguments, of the last one's type unless another is given."""
    shape = broadcast(call.shapes[position] for position in positions)
    return [(shape, call.dtypes[positions[-1]] if dtype is None else dtype)]


def normalized(call: Call, *, kept: int = 1) -> list[Made]:
    """A result like the data, `kept` statistics with one value per row, and the sum before it is normalized."""
    shape, axis = call.shapes[0], call.number("axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise ValueError("the data have no such dimension")
    axis %= len(shape)
    statistics = (*shape[:axis], *(1 for _ in shape[axis:])), T.FLOAT
    return [call.like(0), *(statistics for _ in range(kept)), call.like(0)]


def halved(call: Call) -> list[Made]:
    """Half as many values in the last dimension."""
    *front, last = call.shapes[0]
    return [((*front, last // 2), call.dtypes[0])]


def dropped(call: Call, *, bits: bool) -> list[Made]:
    """Like the data, and what was kept of it: a truth value or a bit for each element."""
    shape = call.shapes[0]
    return [call.like(0), ((-(-size(shape) // 32),), T.UINT32) if bits else (shape, T.BOOL)]


def distances(call: Call) -> list[Made]:
    """Every row of one matrix with every row of the other."""
    return [((call.shapes[0][0], call.shapes[1][0]), call.dtypes[0])]


def concatenated(call: Call) -> list[Made]:
    """Triples of data, scale and zero point from argument 2 on; the result has the zero point's type."""
    shapes = [call.shapes[position] for position in sorted(call.shapes) if position >= 2 and position % 3 == 2]
    axis = call.number("axis") % len(shapes[0])
    total = sum(shape[axis] for shape in shapes)
    return [((*shapes[0][:axis], total, *shapes[0][axis + 1 :]), call.dtypes[1])]


def reduced(call: Call, *, dtype: int | None = None) -> list[Made]:
    """Without the `axes`, or with 1 in their places."""
    shape = call.shapes[0]
    axes = {axis % len(shape) for axis in call.numbers("axes", range(len(shape)))}
    if call.number("keepdims", 1):
        made = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
    else:
        made = tuple(length for axis, length in enumerate(shape) if axis not in axes)
    return [(made, call.dtypes[0] if dtype is None else dtype)]


def expanded(call: Call) -> list[Made]:
    """A dimension of one at the place that argument 1 says."""
    shape = list(call.shapes[0])
    axis = call.value(1)[0]
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return [(tuple(shape), call.dtypes[0])]


def looked_up(call: Call) -> list[Made]:
    """Rows of a quantized table; entries of few bits lie in bytes along the last dimension."""
    data, indices = list(call.shapes[0]), call.shapes[1]
    axis = call.number("gather_axis") % len(data)
    if call.dtypes[0] == T.UINT8:
        data[-1] *= 8 // call.number("bits", 4)
    return [((*data[:axis], *indices, *data[axis + 1 :]), call.dtypes[2])]


def embedded(call: Call) -> list[Made]:
    """A row of the table for every index."""
    return [((*call.shapes[1], call.shapes[0][1]), call.dtypes[0])]


def transformed(call: Call) -> list[Made]:
    """Complex values (a last dimension of two) of half the frequencies of a real signal."""
    *front, length = call.shapes[0]
    return [((*front, length // 2 + 1 if call.number("onesided") else length, 2), call.dtypes[0])]


def transformed_back(call: Call) -> list[Made]:
    """A real signal of its complex frequencies."""
    *front, length, _ = call.shapes[0]
    return [((*front, 2 * (length - 1) if call.number("onesided") else length), call.dtypes[0])]


def unfolded(call: Call) -> list[Made]:
    """Slices of `size`, a `step` apart, as a last dimension."""
    shape, length = list(call.shapes[0]), call.number("size")
    axis = call.number("dim", -1) % len(shape)
    shape[axis] = (shape[axis] - length) // call.number("step", 1) + 1
    return [((*shape, length), call.dtypes[0])]


def cropped(call: Call) -> list[Made]:
    """Every region of interest in the size that argument 3 says."""
    return [((call.shapes[1][0], call.shapes[0][1], *call.value(3)), call.dtypes[0])]


def words(call: Call) -> list[Made]:
    """Words [batch, length, characters], each as wide as there are filters."""
    return [((*call.shapes[0][:2], call.shapes[1][0]), call.dtypes[1])]


def finite(call: Call) -> list[Made]:
    """One truth value."""
    del call
    return [((), T.BOOL)]


def reordered(call: Call) -> list[Made]:
    """Into blocks of channels, from data with the channels second or last."""
    shape = call.shapes[0]
    return [((shape[0], shape[-1], *shape[1:-1]) if call.number("channels_last") else shape, call.dtypes[0])]


def ordered_back(call: Call) -> list[Made]:
    """Out of blocks of channels, with the channels that there really are."""
    batch, _, *space = call.shapes[0]
    channels = call.number("channels")
    return [((batch, *space, channels) if call.number("channels_last") else (batch, channels, *space), call.dtypes[0])]


def scaled_up(call: Call) -> list[Made]:
    """As many times larger as `scales` says."""
    scales = call.numbers("scales", ())
    return [(tuple(a * b for a, b in zip(call.shapes[0], scales, strict=True)), call.dtypes[0])]


def stateful(call: Call, *, state: int) -> list[Made]:
    """A convolution's result like the data, and a state like the one that was given, or as long as the kernel asks."""
    if state in call.shapes:
        return [call.like(0), call.like(state)]
    (batch, channels, *_), kernel = call.shapes[0], call.shapes[1][2:]
    if len(kernel) != 1 or call.number("channels_last") or call.number("state_window"):
        return [call.like(0)]
    return [call.like(0), ((batch, channels, (kernel[0] - 1) * call.number("dilation", 1)), call.dtypes[0])]


def recurrent(call: Call) -> list[Made]:
    """Data [steps, batch, in] and R [directions, …]: all hidden states, the last ones, and the last cells."""
    steps, batch, _ = call.shapes[0]
    directions, hidden = call.shapes[2][0], call.number("hidden_size")
    last = (directions, batch, hidden), call.dtypes[0]
    return [((steps, directions, batch, hidden), call.dtypes[0]), last, last]


def delta_net(call: Call) -> list[Made]:
    """Q, K and V [tokens, heads, width], or packed; the state (argument 6) keeps its shape."""
    if 2 not in call.shapes:
        raise ValueError("packed heads are not told apart")
    tokens, heads, _ = call.shapes[0]
    _, value_heads, width = call.shapes[2]
    result = (tokens, max(heads, value_heads), width), call.dtypes[0]
    return [result, call.like(6)] if 6 in call.shapes else [result]


def mixed(call: Call) -> list[Made]:
    """Streams [.., C, H] or, flattened, [.., C · H] become one [.., H]."""
    *front, last = call.shapes[0]
    branches = call.number("num_branches")
    return [((*front, last // branches) if branches else (*front[:-1], last), call.dtypes[0])]


def generated(call: Call, *, beams: bool) -> list[Made]:
    """As many tokens as argument 1 allows, for each sequence that is asked for (argument 4, where there are beams)."""
    batch, length = call.shapes[0][0], call.value(1)[0]
    return [((batch, call.value(4)[0], length) if beams else (batch, length), T.INT32)]


_LIKE = """BiasAdd BiasGelu BiasSoftmax BranchwiseRMSNorm FastGelu GatedAdd GatedRMSNorm Gelu GroupNorm
    HyperConnectionPostMix Inverse LongformerAttention MoE MRotaryEmbedding QLinearLeakyRelu QLinearSigmoid
    QLinearSoftmax QMoE QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QuickGelu
    RotaryEmbedding SampleOp ScaledSiLU"""
_NCHWC = "com.microsoft.nchwc::"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_LIKE.split(), like),
    "SkipGroupNorm": partial(like, positions=(0, 0)),
    "GemmaRotaryEmbedding": partial(like, positions=(1, 3)),
    "NGramRepeatBlock": partial(like, positions=(1,)),
    "MurmurHash3": partial(like, dtype=T.UINT32),
    "LinearAttentionGate": partial(like, positions=(0, 0)),
    "EngramGate": partial(like, positions=(0, 0)),
    "QuantizeWithOrder": partial(like, dtype=T.INT8),
    "DequantizeWithOrder": dequantized,
    "QLinearAdd": partial(joined, positions=(3, 0)),
    "QLinearMul": partial(joined, positions=(3, 0)),
    "QLinearWhere": partial(joined, positions=(0, 4, 1)),
    "MulInteger": partial(joined, positions=(0, 2), dtype=T.INT32),
    "ComplexMul": partial(joined, positions=(1, 0)),
    "ComplexMulConj": partial(joined, positions=(1, 0)),
    "SkipLayerNormalization": partial(normalized, kept=2),
    "SkipSimplifiedLayerNormalization": partial(normalized, kept=2),
    "LayerNormalization": partial(normalized, kept=2),
    "SimplifiedLayerNormalization": normalized,
    "BiasSplitGelu": halved,
    "BiasDropout": partial(dropped, bits=False),
    "BitmaskDropout": partial(dropped, bits=True),
    "BitmaskBiasDropout": partial(dropped, bits=True),
    "CDist": distances,
    "QLinearConcat": concatenated,
    "QLinearReduceMean": reduced,
    "ReduceSumInteger": partial(reduced, dtype=T.INT32),
    "ExpandDims": expanded,
    "GatherBlockQuantized": looked_up,
    "TorchEmbedding": embedded,
    "Rfft": transformed,
    "Irfft": transformed_back,
    "UnfoldTensor": unfolded,
    "CropAndResize": cropped,
    "IsAllFinite": finite,
    "WordConvEmbedding": words,
    "CausalConvWithState": partial(stateful, state=3),
    "VarlenCausalConvWithState": partial(stateful, state=4),
    "AttnLSTM": recurrent,
    "DynamicQuantizeLSTM": recurrent,
    "GatedDeltaNet": delta_net,
    "HyperConnectionPreMix": mixed,
    "BeamSearch": partial(generated, beams=True),
    "WhisperBeamSearch": partial(generated, beams=True),
    "GreedySearch": partial(generated, beams=False),
    "Sampling": partial(generated, beams=False),
    _NCHWC + "ReorderInput": reordered,
    _NCHWC + "ReorderOutput": ordered_back,
    _NCHWC + "Upsample": scaled_up,
}
