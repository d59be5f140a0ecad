"""Attention in one op: softmax(Q · Kᵀ) · V, without its scores ever being written to memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from placewise.costing.case import Case, Cost, Rule


def _scores(batch: int, heads: int, queries: int, keys: int, width: int, value_width: int) -> int:
    """Two products of one score each with the key's and the value's width, and a softmax of five FLOPs."""
    return batch * heads * queries * keys * (2 * width + 2 * value_width + 5)


def attention(case: Case, *, past: int = 4) -> Cost:
    """Q, K and V as [batch, heads, length, width] or packed as [batch, length, heads · width]; a past before K.

    Of a sliding `window`, a query sees no more keys than fit into it.
    """
    query, key, value = (case.shape(position) for position in range(3))
    before = case.shape(past)[2] if past in case.inputs else 0
    if len(query) == 4:
        batch, heads, queries, width = query
        keys, value_width = key[2], value[3]
    else:
        heads, kv_heads = case.number("q_num_heads", 0), case.number("kv_num_heads", 0)
        batch, queries, keys = query[0], query[1], key[1]
        width, value_width = query[2] // heads, value[2] // kv_heads
    seen = min(before + keys, case.number("window", 0) or before + keys)
    return case.cost(_scores(batch, heads, queries, seen, width, value_width), "attention")


def linear_attention(case: Case) -> Cost:
    """A state [width, value width] per head: updated (decayed, corrected) and read for every token."""
    rule = str(case.attributes.get("update_rule", "gated_delta"))
    heads, kv_heads = case.number("q_num_heads", 0), case.number("kv_num_heads", 0)
    batch, tokens, packed = case.shape(0)
    state = (packed // heads) * (case.shape(2)[2] // kv_heads)
    update = 2 + ("gated" in rule) + 2 * ("delta" in rule)
    return case.cost(batch * tokens * state * (update * kv_heads + 2 * heads), "attention")


def projected_attention(case: Case, *, past: int, dtype: str = "") -> Cost:
    """com.microsoft Attention: [batch, length, in] times one matrix for Q, K and V, then attention."""
    *front, length, _ = case.shape(0)
    batch, heads = math.prod(front), case.number("num_heads", 0)
    sizes = case.attributes.get("qkv_hidden_sizes") or (case.shape(1)[1] // 3,) * 3
    keys = _kept(case.shape(past)[3] if past in case.inputs else 0, length, case)
    flops = 2 * batch * length * case.size(1)
    return case.cost(
        flops + _scores(batch, heads, length, keys, sizes[0] // heads, sizes[2] // heads), "attention", dtype=dtype
    )


def _kept(before: int, new: int, case: Case, length: int = -1) -> int:
    """How many keys there are: a cache that is written in place, as argument `length` may say, is as long as it is."""
    is_shared = length in case.inputs or case.number("past_present_share_buffer", 0)
    return before if before and is_shared else before + new


def multi_head(case: Case, *, past: int = 6) -> Cost:
    """com.microsoft MultiHeadAttention: Q, K and V apart, packed in one, or K and V packed or with heads in front."""
    query, heads = case.shape(0), case.number("num_heads", 0)
    batch, queries = query[:2]
    width = value_width = query[-1] if len(query) == 5 else query[2] // heads // (1 if 1 in case.inputs else 3)
    keys = queries
    if 1 in case.inputs:
        key = case.shape(1)
        keys = key[2] if len(key) == 4 else key[1]
    if 2 in case.inputs:
        value = case.shape(2)
        value_width = value[3] if len(value) == 4 else value[2] // heads
    keys = _kept(case.shape(past)[2] if past in case.inputs else 0, keys, case, past + 2)
    return case.cost(_scores(batch, heads, queries, keys, width, value_width), "attention")


def grouped_query(case: Case) -> Cost:
    """com.microsoft GroupQueryAttention over the present cache, [batch, heads, length, width], or a window of it."""
    heads, kv_heads = case.number("num_heads", 0), case.number("kv_num_heads", 0)
    batch, queries, packed = case.shape(0)
    width = packed // (heads if 1 in case.inputs else heads + 2 * kv_heads)
    before = case.shape(3)[2] if 3 in case.inputs else 0
    keys = case.outputs[1].shape[2] if len(case.outputs) > 1 else before + queries
    window = case.number("local_window_size", -1)
    seen = min(keys, window) if window > 0 else keys
    return case.cost(_scores(batch, heads, queries, seen, width, width), "attention")


def packed_multi_head(case: Case) -> Cost:
    """Tokens of several sequences in one row, which all see as many as the longest one may have (the bias, or all)."""
    query, heads = case.shape(0), case.number("num_heads", 0)
    tokens, batch = query[0], max(case.shape(4)[0], 1)
    width = query[-1] if len(query) == 4 else query[1] // heads
    value_width = case.shape(2)[1] // heads if 2 in case.inputs else width
    return case.cost(_scores(1, heads, tokens, -(-tokens // batch), width, value_width), "attention")


def packed_projected(case: Case) -> Cost:
    """com.microsoft PackedAttention: [tokens, in] times one matrix for Q, K and V, then attention in each sequence."""
    tokens, heads = case.shape(0)[0], case.number("num_heads", 0)
    sizes = case.attributes.get("qkv_hidden_sizes") or (case.shape(1)[1] // 3,) * 3
    keys = -(-tokens // max(case.shape(3)[0], 1))
    scores = _scores(1, heads, tokens, keys, sizes[0] // heads, sizes[2] // heads)
    return case.cost(2 * tokens * case.size(1) + scores, "attention")


def paged(case: Case, *, selected: int = -1) -> Cost:
    """Tokens [tokens, heads · width] over as many keys as the table of blocks, or of selected ones, has room for."""
    heads, kv_heads = case.number("num_heads", 0), case.number("kv_num_heads", 0)
    tokens, packed = case.shape(0)
    width = packed // (heads if 1 in case.inputs else heads + 2 * kv_heads)
    keys = case.shape(selected)[-1] if selected >= 0 else case.shape(7)[-1] * case.shape(3)[1]
    keys += max(case.number("local_window_size", 0), 0) if selected >= 0 else 0
    read = sum(value.nbytes for position, value in case.inputs.items() if position not in (3, 4))
    cache = 2 * case.shape(7)[0] * keys * kv_heads * width * case.inputs[3].nbytes / max(case.size(3), 1)
    nbytes = read + cache + case.outputs[0].nbytes
    return case.cost(_scores(1, heads, tokens, keys, width, width), "attention", nbytes=nbytes)


def selected_query(case: Case) -> Cost:
    """com.microsoft DynamicSparseAttention: every query sees the selected keys (argument 7) and a window."""
    heads, kv_heads = case.number("num_heads", 0), case.number("kv_num_heads", 0)
    batch, queries, packed = case.shape(0)
    width = packed // (heads if 1 in case.inputs else heads + 2 * kv_heads)
    keys = case.shape(7)[-1] + max(case.number("local_window_size", 0), 0)
    return case.cost(_scores(batch, heads, queries, keys, width, width), "attention")


def longformer(case: Case, *, weight: int = 1, everywhere: int = 4, dtype: str = "") -> Cost:
    """Projections for local and for global attention; every token sees a window on both sides.

    Global keys and values are made for all tokens, global queries for the few that the flags name.
    """
    batch, length, width = case.shape(0)
    heads, seen = case.number("num_heads", 0), min(2 * case.number("window", 0) + 1, length)
    flops = 2 * batch * length * (case.size(weight) + case.size(everywhere) * 2 // 3)
    head = width // heads
    return case.cost(flops + _scores(batch, heads, length, seen, head, head), "attention", dtype=dtype)


def ordered(case: Case) -> Cost:
    """com.microsoft QOrderedAttention: three matrices of int8 (arguments 5, 6 and 7), then attention."""
    batch, length, _ = case.shape(0)
    heads = case.number("num_heads", 0)
    flops = 2 * batch * length * sum(case.size(position) for position in (5, 6, 7))
    key, value = case.shape(6)[1] // heads, case.shape(7)[1] // heads
    return case.cost(flops + _scores(batch, heads, length, length, key, value), "attention", dtype="int8")


def decoder(case: Case) -> Cost:
    """com.microsoft DecoderAttention: query [length, batch, width], key [length, batch, width], and their projections.

    Keys that a cache holds already are counted as if they were made anew.
    """
    length, batch, width = case.shape(0)
    heads, keys = case.number("num_heads", 0), case.shape(1)[0]
    total = case.outputs[1].shape[2] if len(case.outputs) > 1 and case.outputs[1].dims else keys
    flops = 2 * batch * (length * case.size(2) + keys * case.size(3))
    return case.cost(flops + _scores(batch, heads, length, total, width // heads, width // heads), "attention")


def position_gate(case: Case) -> Cost:
    """com.microsoft GatedRelativePositionBias: a small product for each head, and a gate for every score."""
    return case.cost(2 * case.size(0) * case.shape(3)[1] + 4 * case.outputs[0].size, "attention")


def delta_net(case: Case) -> Cost:
    """com.microsoft GatedDeltaNet: tokens in one row; the state [batch, heads, value width, width] is argument 6."""
    if 2 in case.inputs:
        (tokens, heads, width), (_, value_heads, value_width) = case.shape(0), case.shape(2)
    else:
        tokens, (_, value_heads, value_width, width) = case.shape(0)[0], case.shape(6)
        heads = value_heads
    rule = str(case.attributes.get("update_rule", "gated_delta"))
    update = 2 + ("gated" in rule) + 2 * ("delta" in rule)
    flops = tokens * width * value_width * (update * value_heads + 2 * max(heads, value_heads))
    return case.cost(flops, "attention")


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
    "com.microsoft::DynamicSparseAttention": selected_query,
    "com.microsoft::PagedAttention": paged,
    "com.microsoft::SparsePagedAttention": partial(paged, selected=9),
    "com.microsoft::PackedAttention": packed_projected,
    "com.microsoft::PackedMultiHeadAttention": packed_multi_head,
    "com.microsoft::LongformerAttention": longformer,
    "com.microsoft::QOrderedLongformerAttention": partial(longformer, weight=2, everywhere=8, dtype="int8"),
    "com.microsoft::QOrderedAttention": ordered,
    "com.microsoft::DecoderAttention": decoder,
    "com.microsoft::GatedRelativePositionBias": position_gate,
    "com.microsoft::LinearAttention": linear_attention,
    "com.microsoft::GatedDeltaNet": delta_net,
}
