"""Shapes of ONNX Runtime's attention ops: outputs and key/value caches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.readers.onnx.contrib.context import InferenceContext, Output, Rule, size
from placewise.readers.onnx.types import Shape


def infer_attention(ctx: InferenceContext, *, past: int = 4, dtype: int = 0) -> list[Output]:
    """Input [batch, length, in] or packed [tokens, in], with one weight for Q, K and V.

    Outputs: the result with V's width, and the present [2, batch, heads, past + length, width].
    """
    data, heads = ctx.shapes[0], ctx.number("num_heads")
    widths = ctx.numbers("qkv_hidden_sizes", ()) or (ctx.shapes[1][1] // 3,) * 3
    result = (*data[:-1], widths[2]), ctx.dtypes[dtype]
    if len(data) < 3:
        return [result]
    before = ctx.shapes[past][3] if past in ctx.shapes else 0
    length = before if ctx.number("past_present_share_buffer") and before else before + data[1]
    return [result, ((2, data[0], heads, length, widths[0] // heads), ctx.dtypes[dtype])]


def infer_multi_head(ctx: InferenceContext, *, past: int = 6) -> list[Output]:
    """Q, K and V separate or packed, or K and V packed or with heads first. Outputs: result, presents, scores."""
    query, heads = ctx.shapes[0], ctx.number("num_heads")
    batch, queries = query[:2]
    keys, width = _keys(ctx, heads)
    value_width = _value_width(ctx, heads, width)
    before = ctx.shapes[past][2] if past in ctx.shapes else 0
    is_shared = past + 2 in ctx.shapes or ctx.number("past_present_share_buffer")
    total = before if is_shared and before else before + keys
    present = [((batch, heads, total, w), ctx.dtypes[0]) for w in (width, value_width)]
    result = (batch, queries, heads * value_width), ctx.dtypes[0]
    return [result, *present, ((batch, heads, queries, total), ctx.dtypes[0])]


def _keys(ctx: InferenceContext, heads: int) -> tuple[int, int]:
    """The number of keys, and the width of a head."""
    query = ctx.shapes[0]
    width = query[-1] if len(query) == 5 else query[-1] // heads
    if 1 not in ctx.shapes:
        return query[1], width if len(query) == 5 else width // 3
    key = ctx.shapes[1]
    return (key[2] if len(key) == 4 else key[1]), width


def _value_width(ctx: InferenceContext, heads: int, width: int) -> int:
    if 2 not in ctx.shapes:
        return width
    value = ctx.shapes[2]
    return value[3] if len(value) == 4 else value[2] // heads


def infer_packed_multi_head(ctx: InferenceContext) -> list[Output]:
    """Q [tokens, heads · width] with separate V, or packed [tokens, heads, 3, width]."""
    query = ctx.shapes[0]
    width = ctx.shapes[2][-1] if 2 in ctx.shapes else query[1] * query[3]
    return [((query[0], width), ctx.dtypes[0])]


def infer_grouped_query(ctx: InferenceContext, *, past: int = 3, total: int = 6) -> list[Output]:
    """Q [batch, length, heads · width] or packed Q, K and V; presents [batch, KV heads, total, width].

    A cache longer than the requested total keeps its length.
    """
    heads, kv_heads = ctx.number("num_heads"), ctx.number("kv_num_heads")
    *front, packed = ctx.shapes[0]
    width = packed // (heads if 1 in ctx.shapes else heads + 2 * kv_heads)
    before = ctx.shapes[past][2] if past in ctx.shapes else 0
    requested = max(ctx.value(total)) if total in ctx.values else before + front[-1]
    length = max(before, requested)
    cached_width = ctx.shapes[past][3] if past in ctx.shapes else width
    present = (front[0], kv_heads, length, cached_width), ctx.dtypes.get(past, ctx.dtypes[0])
    scores = (front[0], heads, front[-1], length), ctx.dtypes[0]
    return [((*front, heads * width), ctx.dtypes[0]), present, present, scores]


def infer_sparse(ctx: InferenceContext) -> list[Output]:
    """Like grouped queries, with caches (inputs 3 and 4) of constant length."""
    return [infer_grouped_query(ctx)[0], ctx.like(3), ctx.like(4)]


def infer_paged(ctx: InferenceContext) -> list[Output]:
    """Tokens [tokens, heads · width]; the cache pages (inputs 3 and 4) pass through."""
    heads, kv_heads = ctx.number("num_heads"), ctx.number("kv_num_heads")
    tokens, packed = ctx.shapes[0]
    width = packed // (heads if 1 in ctx.shapes else heads + 2 * kv_heads)
    result = (tokens, heads * (ctx.number("v_head_size") or width)), ctx.dtypes[0]
    return [result, *(ctx.like(position) for position in (3, 4) if position in ctx.shapes)]


def infer_decoder(ctx: InferenceContext) -> list[Output | None]:
    """Query [length, batch, width]; caches [batch, heads, length, …] if inputs 8 and 9 are known."""
    length, batch, width = ctx.shapes[0]
    heads = ctx.number("num_heads")
    result = ctx.like(0)
    if 8 not in ctx.values or 9 not in ctx.values:
        return [result]
    static, past = ctx.value(8)[0], ctx.value(9)[0]
    before = ctx.shapes[6][2] if past and 6 in ctx.shapes else 0
    total = (before or ctx.shapes[1][0]) if static else before + length
    present = (batch, heads, total, width // heads), ctx.dtypes[0]
    return [result, present, present]


def infer_ordered(ctx: InferenceContext) -> list[Output]:
    """Input [batch, length, in] and the weight of V (input 7)."""
    return [((*ctx.shapes[0][:-1], ctx.shapes[7][1]), ctx.dtypes[0])]


def infer_position_bias(ctx: InferenceContext) -> list[Output]:
    """[1, heads, queries, keys] from a table [buckets, heads] and two lengths."""
    return [((1, ctx.shapes[0][1], *ctx.value(1), *ctx.value(2)), ctx.dtypes[0])]


def infer_gated_position_bias(ctx: InferenceContext) -> list[Output]:
    """[batch, heads, length, length], like the bias (input 2); the batch of the query or of its token offsets."""
    batch = ctx.shapes[6 if 6 in ctx.shapes else 0][0]
    return [((batch, *ctx.shapes[2][1:]), ctx.dtypes[0])]


def infer_linear(ctx: InferenceContext) -> list[Output]:
    """Packed Q, K and V [batch, length, heads · width]; a state [batch, KV heads, width, value width]."""
    query, value = ctx.shapes[0], ctx.shapes[2]
    heads, kv_heads = ctx.number("q_num_heads"), ctx.number("kv_num_heads")
    width, value_width = query[2] // heads, value[2] // kv_heads
    state: Shape = (query[0], kv_heads, width, value_width)
    if ctx.number("state_window"):
        state = (ctx.number("state_window"), *state)
    return [
        ((*query[:2], max(heads, kv_heads) * value_width), ctx.dtypes[0]),
        (state, ctx.dtypes.get(3, ctx.dtypes[0])),
    ]


def infer_embedding(ctx: InferenceContext, *, dtype: int = 2) -> list[Output]:
    """Ids [batch, length] and a table [words, width]. Outputs: rows, mask index, and the sum before normalization."""
    ids, width = ctx.shapes[0], ctx.shapes[2][1]
    rows = (*ids, width), ctx.dtypes[dtype]
    index = (3 * ids[0] + 2,) if ctx.number("mask_index_type") == 2 else ids[:1]
    return [rows, (index, ctx.dtypes[0]), rows]


def infer_remove_padding(ctx: InferenceContext) -> list[Output]:
    """Tokens without padding, assumed to be batch · length (the maximum), and their positions."""
    batch, length, width = ctx.shapes[0]
    counts = ctx.dtypes[1]
    tokens = (size((batch, length)), width), ctx.dtypes[0]
    return [tokens, ((batch, length), counts), ((batch + 1,), counts), ((1,), counts)]


def infer_restore_padding(ctx: InferenceContext) -> list[Output]:
    """Tokens [tokens, width] restored to [batch, length, width]."""
    return [((*ctx.shapes[1], ctx.shapes[0][-1]), ctx.dtypes[0])]


RULES: Mapping[str, Rule] = {
    "Attention": infer_attention,
    "QAttention": partial(infer_attention, past=8, dtype=3),
    "PackedAttention": infer_attention,
    "DecoderMaskedSelfAttention": infer_attention,
    "MultiHeadAttention": infer_multi_head,
    "DecoderMaskedMultiHeadAttention": partial(infer_multi_head, past=5),
    "PackedMultiHeadAttention": infer_packed_multi_head,
    "GroupQueryAttention": infer_grouped_query,
    "SparseAttention": infer_sparse,
    "DynamicSparseAttention": partial(infer_grouped_query, total=10),
    "PagedAttention": infer_paged,
    "SparsePagedAttention": infer_paged,
    "DecoderAttention": infer_decoder,
    "QOrderedAttention": infer_ordered,
    "RelativePositionBias": infer_position_bias,
    "GatedRelativePositionBias": infer_gated_position_bias,
    "LinearAttention": infer_linear,
    "EmbedLayerNormalization": infer_embedding,
    "QEmbedLayerNormalization": partial(infer_embedding, dtype=8),
    "RemovePadding": infer_remove_padding,
    "RestorePadding": infer_restore_padding,
}
