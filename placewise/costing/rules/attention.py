"""Attention in one op: softmax(Q · Kᵀ) · V, without its scores ever being written to memory."""

from __future__ import annotations

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
    batch, length, _ = case.shape(0)
    heads = case.number("num_heads", 0)
    sizes = case.attributes.get("qkv_hidden_sizes") or (case.shape(1)[1] // 3,) * 3
    keys = length + (case.shape(past)[3] if past in case.inputs else 0)
    flops = 2 * batch * length * case.size(1)
    return case.cost(
        flops + _scores(batch, heads, length, keys, sizes[0] // heads, sizes[2] // heads), "attention", dtype=dtype
    )


def multi_head(case: Case) -> Cost:
    """com.microsoft MultiHeadAttention: Q, K and V apart, packed in one, or K and V packed or with heads in front."""
    query, heads = case.shape(0), case.number("num_heads", 0)
    batch, queries = query[:2]
    width = value_width = query[-1] if len(query) == 5 else query[2] // heads
    keys = queries
    if 1 in case.inputs:
        key = case.shape(1)
        keys = key[2] if len(key) == 4 else key[1]
    if 2 in case.inputs:
        value = case.shape(2)
        value_width = value[3] if len(value) == 4 else value[2] // heads
    past = case.shape(6)[2] if 6 in case.inputs else 0
    return case.cost(_scores(batch, heads, queries, past + keys, width, value_width), "attention")


def grouped_query(case: Case) -> Cost:
    """com.microsoft GroupQueryAttention over the whole present cache, [batch, heads, length, width]."""
    heads, kv_heads = case.number("num_heads", 0), case.number("kv_num_heads", 0)
    batch, queries, packed = case.shape(0)
    width = packed // (heads if 1 in case.inputs else heads + 2 * kv_heads)
    keys = case.outputs[1].shape[2] if len(case.outputs) > 1 else queries
    return case.cost(_scores(batch, heads, queries, keys, width, width), "attention")


RULES: Mapping[str, Rule] = {
    "Attention": attention,
    "ai.onnx.preview::FlexAttention": partial(attention, past=-1),
    "LinearAttention": linear_attention,
    "com.microsoft::Attention": partial(projected_attention, past=4),
    "com.microsoft::QAttention": partial(projected_attention, past=8, dtype="int8"),
    "com.microsoft::MultiHeadAttention": multi_head,
    "com.microsoft::GroupQueryAttention": grouped_query,
}
