"""Shapes of ONNX Runtime's attention: results, and keys and values that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.readers.onnx.contrib.call import Call, Made, Rule, size
from placewise.readers.onnx.types import Shape


def projected(call: Call, *, past: int = 4, dtype: int = 0) -> list[Made]:
    """Data [batch, length, in], or packed [tokens, in], and one matrix for Q, K and V: of V's width, and the present.

    The present is [2, batch, heads, past + length, width].
    """
    data, heads = call.shapes[0], call.number("num_heads")
    widths = call.numbers("qkv_hidden_sizes", ()) or (call.shapes[1][1] // 3,) * 3
    result = (*data[:-1], widths[2]), call.dtypes[dtype]
    if len(data) < 3:
        return [result]
    before = call.shapes[past][3] if past in call.shapes else 0
    length = before if call.number("past_present_share_buffer") and before else before + data[1]
    return [result, ((2, data[0], heads, length, widths[0] // heads), call.dtypes[dtype])]


def multi_head(call: Call, *, past: int = 6) -> list[Made]:
    """Q, K and V apart, packed in one, or K and V packed or with heads in front; presents, and the scores."""
    query, heads = call.shapes[0], call.number("num_heads")
    batch, queries = query[:2]
    keys, width = _keys(call, heads)
    value_width = _value_width(call, heads, width)
    before = call.shapes[past][2] if past in call.shapes else 0
    is_shared = past + 2 in call.shapes or call.number("past_present_share_buffer")
    total = before if is_shared and before else before + keys
    kept = [((batch, heads, total, w), call.dtypes[0]) for w in (width, value_width)]
    result = (batch, queries, heads * value_width), call.dtypes[0]
    return [result, *kept, ((batch, heads, queries, total), call.dtypes[0])]


def _keys(call: Call, heads: int) -> tuple[int, int]:
    """How many keys there are, and how wide a head is."""
    query = call.shapes[0]
    width = query[-1] if len(query) == 5 else query[-1] // heads
    if 1 not in call.shapes:
        return query[1], width if len(query) == 5 else width // 3
    key = call.shapes[1]
    return (key[2] if len(key) == 4 else key[1]), width


def _value_width(call: Call, heads: int, width: int) -> int:
    if 2 not in call.shapes:
        return width
    value = call.shapes[2]
    return value[3] if len(value) == 4 else value[2] // heads


def packed_multi_head(call: Call) -> list[Made]:
    """Q [tokens, heads · width] with V apart, or [tokens, heads, 3, width]."""
    query = call.shapes[0]
    width = call.shapes[2][-1] if 2 in call.shapes else query[1] * query[3]
    return [((query[0], width), call.dtypes[0])]


def grouped(call: Call, *, past: int = 3, total: int = 6) -> list[Made]:
    """Q [batch, length, heads · width] or Q, K and V packed in one; presents [batch, KV heads, total, width].

    A cache that is longer than what is asked for keeps its length.
    """
    heads, kv_heads = call.number("num_heads"), call.number("kv_num_heads")
    *front, packed = call.shapes[0]
    width = packed // (heads if 1 in call.shapes else heads + 2 * kv_heads)
    before = call.shapes[past][2] if past in call.shapes else 0
    asked = max(call.value(total)) if total in call.values else before + front[-1]
    kept: Shape = (front[0], kv_heads, max(before, asked), width)
    if past in call.shapes:
        kept = (*kept[:3], call.shapes[past][3])
    present = kept, call.dtypes.get(past, call.dtypes[0])
    scores = (front[0], heads, front[-1], kept[2]), call.dtypes[0]
    return [((*front, heads * width), call.dtypes[0]), present, present, scores]


def sparse(call: Call) -> list[Made]:
    """As grouped queries, with caches (arguments 3 and 4) that keep their lengths."""
    return [grouped(call)[0], call.like(3), call.like(4)]


def paged(call: Call) -> list[Made]:
    """Tokens [tokens, heads · width]; the pages of the cache (arguments 3 and 4) go through."""
    heads, kv_heads = call.number("num_heads"), call.number("kv_num_heads")
    tokens, packed = call.shapes[0]
    width = packed // (heads if 1 in call.shapes else heads + 2 * kv_heads)
    result = (tokens, heads * (call.number("v_head_size") or width)), call.dtypes[0]
    return [result, *(call.like(position) for position in (3, 4) if position in call.shapes)]


def decoder(call: Call) -> list[Made | None]:
    """Query [length, batch, width]; caches [batch, heads, length, …], if it is known what they hold."""
    length, batch, width = call.shapes[0]
    heads = call.number("num_heads")
    result = call.like(0)
    if 8 not in call.values or 9 not in call.values:
        return [result]
    static, past = call.value(8)[0], call.value(9)[0]
    before = call.shapes[6][2] if past and 6 in call.shapes else 0
    total = (before or call.shapes[1][0]) if static else before + length
    kept = (batch, heads, total, width // heads), call.dtypes[0]
    return [result, kept, kept]


def ordered(call: Call) -> list[Made]:
    """Data [batch, length, in] and a matrix of V, argument 7."""
    return [((*call.shapes[0][:-1], call.shapes[7][1]), call.dtypes[0])]


def position_bias(call: Call) -> list[Made]:
    """[1, heads, queries, keys] from a table [buckets, heads] and two lengths."""
    return [((1, call.shapes[0][1], *call.value(1), *call.value(2)), call.dtypes[0])]


def gated_position_bias(call: Call) -> list[Made]:
    """[batch, heads, length, length], as the bias (argument 2); the batch from the query or its tokens' offsets."""
    batch = call.shapes[6 if 6 in call.shapes else 0][0]
    return [((batch, *call.shapes[2][1:]), call.dtypes[0])]


def linear(call: Call) -> list[Made]:
    """Packed Q, K and V [batch, length, heads · width]; a state [batch, KV heads, width, value width]."""
    query, value = call.shapes[0], call.shapes[2]
    heads, kv_heads = call.number("q_num_heads"), call.number("kv_num_heads")
    width, value_width = query[2] // heads, value[2] // kv_heads
    state: Shape = (query[0], kv_heads, width, value_width)
    if call.number("state_window"):
        state = (call.number("state_window"), *state)
    return [
        ((*query[:2], max(heads, kv_heads) * value_width), call.dtypes[0]),
        (state, call.dtypes.get(3, call.dtypes[0])),
    ]


def embedded(call: Call, *, dtype: int = 2) -> list[Made]:
    """Ids [batch, length] and a table [words, width]; the mask's index; the sum before it is normalized."""
    ids, width = call.shapes[0], call.shapes[2][1]
    rows = (*ids, width), call.dtypes[dtype]
    index = (3 * ids[0] + 2,) if call.number("mask_index_type") == 2 else ids[:1]
    return [rows, (index, call.dtypes[0]), rows]


def unpadded(call: Call) -> list[Made]:
    """Without padding there are as many tokens as fit: batch · length, which is taken to be so; their places."""
    batch, length, width = call.shapes[0]
    counts = call.dtypes[1]
    tokens = (size((batch, length)), width), call.dtypes[0]
    return [tokens, ((batch, length), counts), ((batch + 1,), counts), ((1,), counts)]


def padded(call: Call) -> list[Made]:
    """Tokens [tokens, width] back in their places [batch, length]."""
    return [((*call.shapes[1], call.shapes[0][-1]), call.dtypes[0])]


RULES: Mapping[str, Rule] = {
    "Attention": projected,
    "QAttention": partial(projected, past=8, dtype=3),
    "PackedAttention": projected,
    "DecoderMaskedSelfAttention": projected,
    "MultiHeadAttention": multi_head,
    "DecoderMaskedMultiHeadAttention": partial(multi_head, past=5),
    "PackedMultiHeadAttention": packed_multi_head,
    "GroupQueryAttention": grouped,
    "SparseAttention": sparse,
    "DynamicSparseAttention": partial(grouped, total=10),
    "PagedAttention": paged,
    "SparsePagedAttention": paged,
    "DecoderAttention": decoder,
    "QOrderedAttention": ordered,
    "RelativePositionBias": position_bias,
    "GatedRelativePositionBias": gated_position_bias,
    "LinearAttention": linear,
    "EmbedLayerNormalization": embedded,
    "QEmbedLayerNormalization": partial(embedded, dtype=8),
    "RemovePadding": unpadded,
    "RestorePadding": padded,
}
