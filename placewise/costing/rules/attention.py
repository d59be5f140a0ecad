"""Attention as one op: softmax(Q · Kᵀ) · V, without writing the scores to memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import Cost, OpInstance, Rule


def _scores(batch: int, heads: int, queries: int, keys: float, width: int, value_width: int) -> float:
    """Two products per score, of the key's and the value's width, and a softmax of five FLOPs."""
    return batch * heads * queries * keys * (2 * width + 2 * value_width + 5)


def attention(op: OpInstance, *, past: int = 4) -> Cost:
    """Q, K and V as [batch, heads, length, width] or packed as [batch, length, heads · width]; past keys precede K.

    With a sliding `window`, a query sees at most that many keys; where `causal` is 1, none that come after it.
    """
    query, key, value = (op.shape(position) for position in range(3))
    before = op.shape(past)[2] if past in op.inputs else 0
    if len(query) == 4:
        batch, heads, queries, width = query
        keys, value_width = key[2], value[3]
    else:
        heads, kv_heads = op.number("q_num_heads", 0), op.number("kv_num_heads", 0)
        batch, queries, keys = query[0], query[1], key[1]
        width, value_width = query[2] // heads, value[2] // kv_heads
    keys += before
    window = op.number("window", 0) or keys
    seen = _mean_seen(queries, max(keys, queries), window) if op.number("causal", 0) else min(keys, window)
    return op.cost(_scores(batch, heads, queries, seen, width, value_width), "attention")


def _mean_seen(queries: int, keys: int, window: int) -> float:
    """Keys that a query sees in the mean, if the last one sees `keys` and each before it one less: at most `window`.

    >>> _mean_seen(4, 4, 4), _mean_seen(1, 9, 9), _mean_seen(4, 4, 2)
    (2.5, 9.0, 1.75)
    """
    first = keys - queries + 1
    growing = min(max(window - first, 0), queries)
    return (growing * (2 * first + growing - 1) / 2 + (queries - growing) * min(window, keys)) / queries


def linear_attention(op: OpInstance) -> Cost:
    """A state [width, value width] per head, updated (decayed, corrected) and read for every token."""
    rule = str(op.attributes.get("update_rule", "gated_delta"))
    heads, kv_heads = op.number("q_num_heads", 0), op.number("kv_num_heads", 0)
    batch, tokens, packed = op.shape(0)
    state = (packed // heads) * (op.shape(2)[2] // kv_heads)
    update = 2 + ("gated" in rule) + 2 * ("delta" in rule)
    return op.cost(batch * tokens * state * (update * kv_heads + 2 * heads), "attention")


def projected_attention(op: OpInstance, *, past: int, dtype: str = "") -> Cost:
    """com.microsoft Attention: [batch, length, in] times one matrix for Q, K and V, then attention."""
    *front, length, _ = op.shape(0)
    batch, heads = math.prod(front), op.number("num_heads", 0)
    sizes = op.attributes.get("qkv_hidden_sizes") or (op.shape(1)[1] // 3,) * 3
    keys = _kept(op.shape(past)[3] if past in op.inputs else 0, length, op)
    flops = 2 * batch * length * op.size(1)
    return op.cost(
        flops + _scores(batch, heads, length, keys, sizes[0] // heads, sizes[2] // heads), "attention", dtype=dtype
    )


def _kept(before: int, new: int, op: OpInstance, length: int = -1) -> int:
    """The number of keys: a cache that is written in place, as argument `length` may indicate, has its final length."""
    is_shared = length in op.inputs or op.number("past_present_share_buffer", 0)
    return before if before and is_shared else before + new


def multi_head(op: OpInstance, *, past: int = 6) -> Cost:
    """com.microsoft MultiHeadAttention: Q, K and V separate, all packed, or K and V packed or with heads first."""
    query, heads = op.shape(0), op.number("num_heads", 0)
    batch, queries = query[:2]
    width = value_width = query[-1] if len(query) == 5 else query[2] // heads // (1 if 1 in op.inputs else 3)
    keys = queries
    if 1 in op.inputs:
        key = op.shape(1)
        keys = key[2] if len(key) == 4 else key[1]
    if 2 in op.inputs:
        value = op.shape(2)
        value_width = value[3] if len(value) == 4 else value[2] // heads
    keys = _kept(op.shape(past)[2] if past in op.inputs else 0, keys, op, past + 2)
    return op.cost(_scores(batch, heads, queries, keys, width, value_width), "attention")


def grouped_query(op: OpInstance) -> Cost:
    """com.microsoft GroupQueryAttention over the present cache, [batch, heads, length, width], or a window of it."""
    heads, kv_heads = op.number("num_heads", 0), op.number("kv_num_heads", 0)
    batch, queries, packed = op.shape(0)
    width = packed // (heads if 1 in op.inputs else heads + 2 * kv_heads)
    before = op.shape(3)[2] if 3 in op.inputs else 0
    keys = op.outputs[1].shape[2] if len(op.outputs) > 1 else before + queries
    window = op.number("local_window_size", -1)
    seen = min(keys, window) if window > 0 else keys
    return op.cost(_scores(batch, heads, queries, seen, width, width), "attention")


def packed_multi_head(op: OpInstance) -> Cost:
    """Tokens of several sequences in one row; each sees as many as the longest one may have (by the bias, or all)."""
    query, heads = op.shape(0), op.number("num_heads", 0)
    tokens, batch = query[0], max(op.shape(4)[0], 1)
    width = query[-1] if len(query) == 4 else query[1] // heads
    value_width = op.shape(2)[1] // heads if 2 in op.inputs else width
    return op.cost(_scores(1, heads, tokens, -(-tokens // batch), width, value_width), "attention")


def packed_projected(op: OpInstance) -> Cost:
    """com.microsoft PackedAttention: [tokens, in] times one matrix for Q, K and V, then attention per sequence."""
    tokens, heads = op.shape(0)[0], op.number("num_heads", 0)
    sizes = op.attributes.get("qkv_hidden_sizes") or (op.shape(1)[1] // 3,) * 3
    keys = -(-tokens // max(op.shape(3)[0], 1))
    scores = _scores(1, heads, tokens, keys, sizes[0] // heads, sizes[2] // heads)
    return op.cost(2 * tokens * op.size(1) + scores, "attention")


def paged_attention(op: OpInstance, *, selected: int = -1) -> Cost:
    """Tokens [tokens, heads · width] attend to as many keys as the block table, or that of selected keys, can hold."""
    heads, kv_heads = op.number("num_heads", 0), op.number("kv_num_heads", 0)
    tokens, packed = op.shape(0)
    width = packed // (heads if 1 in op.inputs else heads + 2 * kv_heads)
    keys = op.shape(selected)[-1] if selected >= 0 else op.shape(7)[-1] * op.shape(3)[1]
    keys += max(op.number("local_window_size", 0), 0) if selected >= 0 else 0
    read = sum(value.nbytes for position, value in op.inputs.items() if position not in (3, 4))
    cache = 2 * op.shape(7)[0] * keys * kv_heads * width * op.inputs[3].nbytes / max(op.size(3), 1)
    nbytes = read + cache + op.outputs[0].nbytes
    return op.cost(_scores(1, heads, tokens, keys, width, width), "attention", nbytes=nbytes)


def sparse_attention(op: OpInstance) -> Cost:
    """com.microsoft DynamicSparseAttention: every query sees the selected keys (argument 7) and a window."""
    heads, kv_heads = op.number("num_heads", 0), op.number("kv_num_heads", 0)
    batch, queries, packed = op.shape(0)
    width = packed // (heads if 1 in op.inputs else heads + 2 * kv_heads)
    keys = op.shape(7)[-1] + max(op.number("local_window_size", 0), 0)
    return op.cost(_scores(batch, heads, queries, keys, width, width), "attention")


def longformer(op: OpInstance, *, weight: int = 1, everywhere: int = 4, dtype: str = "") -> Cost:
    """Projections for local and global attention; every token sees a window on both sides.

    Global keys and values cover all tokens, global queries only the few that the flags select.
    """
    batch, length, width = op.shape(0)
    heads, seen = op.number("num_heads", 0), min(2 * op.number("window", 0) + 1, length)
    flops = 2 * batch * length * (op.size(weight) + op.size(everywhere) * 2 // 3)
    head = width // heads
    return op.cost(flops + _scores(batch, heads, length, seen, head, head), "attention", dtype=dtype)


def quantized_attention(op: OpInstance) -> Cost:
    """com.microsoft QOrderedAttention: three int8 matrices (arguments 5, 6 and 7), then attention."""
    batch, length, _ = op.shape(0)
    heads = op.number("num_heads", 0)
    flops = 2 * batch * length * sum(op.size(position) for position in (5, 6, 7))
    key, value = op.shape(6)[1] // heads, op.shape(7)[1] // heads
    return op.cost(flops + _scores(batch, heads, length, length, key, value), "attention", dtype="int8")


def decoder_attention(op: OpInstance) -> Cost:
    """com.microsoft DecoderAttention: query [length, batch, width], key [length, batch, width], and their projections.

    Keys that a cache already holds are counted as if computed again.
    """
    length, batch, width = op.shape(0)
    heads, keys = op.number("num_heads", 0), op.shape(1)[0]
    total = op.outputs[1].shape[2] if len(op.outputs) > 1 and op.outputs[1].dims else keys
    flops = 2 * batch * (length * op.size(2) + keys * op.size(3))
    return op.cost(flops + _scores(batch, heads, length, total, width // heads, width // heads), "attention")


def position_gate(op: OpInstance) -> Cost:
    """com.microsoft GatedRelativePositionBias: a small product per head, and a gate per score."""
    return op.cost(2 * op.size(0) * op.shape(3)[1] + 4 * op.outputs[0].size, "attention")


def delta_net(op: OpInstance) -> Cost:
    """com.microsoft GatedDeltaNet: tokens in one row; the state [batch, heads, value width, width] is argument 6."""
    if 2 in op.inputs:
        (tokens, heads, width), (_, value_heads, value_width) = op.shape(0), op.shape(2)
    else:
        tokens, (_, value_heads, value_width, width) = op.shape(0)[0], op.shape(6)
        heads = value_heads
    rule = str(op.attributes.get("update_rule", "gated_delta"))
    update = 2 + ("gated" in rule) + 2 * ("delta" in rule)
    flops = tokens * width * value_width * (update * value_heads + 2 * max(heads, value_heads))
    return op.cost(flops, "attention")


RULES: Mapping[str, Rule] = {
    "Attention": attention,
    "ai.onnx.preview::FlexAttention": partial(attention, past=-1),
    "LinearAttention": linear_attention,
    "com.microsoft::Attention": partial(projected_attention, past=4),
    "com.microsoft::QAttention": partial(projected_attention, past=8, dtype="int8"),
    "com.microsoft::MultiHeadAttention": multi_head,
    "com.microsoft::DecoderMaskedMultiHeadAttention": partial(multi_head, past=5),
    "com.microsoft::DecoderMaskedSelfAttention": partial(projected_attention, past=4),
    "com.microsoft::GroupQueryAttention": grouped_query,
    "com.microsoft::SparseAttention": grouped_query,
    "com.microsoft::DynamicSparseAttention": sparse_attention,
    "com.microsoft::PagedAttention": paged_attention,
    "com.microsoft::SparsePagedAttention": partial(paged_attention, selected=9),
    "com.microsoft::PackedAttention": packed_projected,
    "com.microsoft::PackedMultiHeadAttention": packed_multi_head,
    "com.microsoft::LongformerAttention": longformer,
    "com.microsoft::QOrderedLongformerAttention": partial(longformer, weight=2, everywhere=8, dtype="int8"),
    "com.microsoft::QOrderedAttention": quantized_attention,
    "com.microsoft::DecoderAttention": decoder_attention,
    "com.microsoft::GatedRelativePositionBias": position_gate,
    "com.microsoft::LinearAttention": linear_attention,
    "com.microsoft::GatedDeltaNet": delta_net,
}
