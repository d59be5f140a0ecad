"""Attention is split by heads, and a mixture of experts by experts.

With grouped queries, a device has whole groups: there are never more ways than key-value heads, since none is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from placewise.costing.sharding.strategies import (
    SUMMAND,
    WHOLE,
    Answer,
    Exchange,
    Indivisible,
    Parts,
    Rule,
    ShardingStrategy,
    SplitOp,
    follow,
)


class _Heads(NamedTuple):
    """Where heads are: `places` by argument, `results` by result (`WHOLE`: nowhere), and how many there are."""

    places: Mapping[int, int]
    results: Sequence[int]
    heads: int
    kv_heads: int
    packed: Mapping[int, Parts] = {}


def _split_heads(op: SplitOp, found: _Heads) -> list[Answer]:
    """Split by heads, whatever of the arguments is split by them already; or follow a split batch."""
    split = op.first_split()
    if split is not None and split[1] == 0 and found.places.get(split[0]) != 0:
        return _follow_batch(op)
    for count, what in ((found.heads, "heads"), (found.kv_heads, "key-value heads")):
        if count < 1 or not op.divides(count):
            return [Indivisible(count, what)] if count > 1 else []
    results = [found.results[k] if k < len(found.results) else WHOLE for k in range(len(op.results))]
    parts = next((found.packed[at] for at in found.packed if at not in op.weights), (1,))
    of_weights = {at: ratio for at, ratio in found.packed.items() if at in op.weights}
    return [
        ShardingStrategy(
            "heads", dict(found.places), tuple(results), 1 / op.degree, cuts=parts, weight_parts=of_weights
        )
    ]  # fmt: skip


def _follow_batch(op: SplitOp) -> list[Answer]:
    batch = op.shapes[0][0]
    reads = {at: 0 for at, shape in op.shapes.items() if shape and shape[0] == batch and at not in op.weights}
    makes = tuple(0 if shape and shape[0] == batch else WHOLE for shape in op.results)
    return [follow(op, reads, makes)]


def attention(op: SplitOp) -> list[Answer]:
    """Q, K and V as [batch, heads, length, width] or packed as [batch, length, heads · width]; a mask, past K and V.

    Results are [batch, heads, length, width], or [batch, length, heads, width] where readers of Hugging Face models
    made the op (it has the attribute `window`).
    """
    query = op.shapes[0]
    if len(query) < 3 or 1 not in op.shapes or 2 not in op.shapes:
        return []
    if len(query) == 3:
        heads, kv_heads = op.number("q_num_heads"), op.number("kv_num_heads")
        places, result = {0: 2, 1: 2, 2: 2}, 2
    else:
        place = len(query) - 3
        heads, kv_heads = query[place], op.shapes[1][place]
        places, result = dict.fromkeys(range(3), place), 2 if "window" in op.attributes else place
    places |= {at: 1 for at in (4, 5) if at in op.shapes}
    places |= _read_mask(op, 3, heads)
    return _split_heads(op, _Heads(places, (result, 1, 1), heads, kv_heads))


def _read_mask(op: SplitOp, at: int, heads: int) -> dict[int, int]:
    """A mask that differs between heads is split, too."""
    shape = op.shapes.get(at, ())
    return {at: len(shape) - 3} if len(shape) >= 3 and shape[-3] == heads > 1 else {}


def multi_head(op: SplitOp) -> list[Answer]:
    """com.microsoft MultiHeadAttention: Q, K and V [batch, length, heads · width]; past and present by heads."""
    heads = op.number("num_heads")
    if len(op.shapes[0]) != 3 or 1 not in op.shapes or 2 not in op.shapes:
        return []
    places = {at: 2 if len(op.shapes[at]) == 3 else 1 for at in range(3)}
    places |= {at: 1 for at in (6, 7) if at in op.shapes} | _read_mask(op, 5, heads)
    packed: dict[int, Parts] = {}
    if 3 in op.shapes:
        places, packed = places | {3: 0}, {3: tuple(op.shapes[at][-1] for at in range(3))}
    of_bias = packed if 3 in op.weights else dict[int, Parts]()
    return _split_heads(op, _Heads(places, (2, 1, 1), heads, heads, of_bias))


def grouped_query(op: SplitOp) -> list[Answer]:
    """com.microsoft GroupQueryAttention: Q, K and V apart, or packed side by side."""
    heads, kv_heads = op.number("num_heads"), op.number("kv_num_heads")
    places = {at: 2 for at in range(3) if at in op.shapes} | {at: 1 for at in (3, 4) if at in op.shapes}
    packed: dict[int, Parts] = {} if 1 in op.shapes else {0: (heads, kv_heads, kv_heads)}
    return _split_heads(op, _Heads(places, (2, 1, 1), heads, kv_heads, packed))


def projected(op: SplitOp) -> list[Answer]:
    """com.microsoft Attention: [batch, length, in] times one matrix for Q, K and V, which is split by columns."""
    heads = op.number("num_heads")
    sizes = op.attributes.get("qkv_hidden_sizes") or (op.shapes[1][1] // 3,) * 3
    if not op.is_stationary(1):
        return []
    places = {1: 1} | ({2: 0} if 2 in op.shapes else {}) | ({4: 2} if 4 in op.shapes else {})
    parts = tuple(int(size) for size in sizes)
    packed: dict[int, Parts] = {at: parts for at in (1, 2) if at in op.weights}
    return _split_heads(op, _Heads(places, (2, 2), heads, heads, packed))


def update_cache(op: SplitOp) -> list[Answer]:
    """Keys and values [batch, heads, length, width] each keep their split, unless it is along the length."""
    reads = {at: form for at, form in op.forms.items() if form >= 0 and form != len(op.shapes[at]) - 2}
    if not reads:
        return []
    makes = tuple(reads.get(at, WHOLE) for at in range(len(op.results)))
    return [follow(op, reads, makes, "heads" if 1 in reads.values() and not op.tokens else "")]


def rotate(op: SplitOp) -> list[Answer]:
    """Rotary embeddings: Q or K by heads, or [batch, length, heads · width] if their number is an attribute."""
    form, shape = op.forms[0], op.shapes[0]
    length = 1 if len(shape) == 3 else 2
    if form < 0 or (form == len(shape) - 1 and not op.divides(op.number("num_heads"))):
        return []
    others = {at: 0 for at, other in op.shapes.items() if form == 0 and at and other and other[0] == shape[0] > 1}
    if form == length:
        return []
    return [follow(op, {0: form, **others}, (form,))]


def experts(op: SplitOp, *, first: int = 3, per_token: int = 1) -> list[Answer]:
    """Hidden [tokens, width], then what routes it, then weights [experts, …] from argument `first` on.

    Every device has 1/t of the experts. If it has all tokens, its results are summands; if it has 1/t of them, tokens
    go to their experts and back (all-to-all). If t does not divide the experts, it divides each of them: the columns
    before and the rows after the activation.
    """
    weights = {at: op.shapes[at] for at in op.shapes if at >= first and at in op.weights}
    count = max((shape[0] for shape in weights.values() if len(shape) == 3), default=0)
    if not count:
        return []
    makes = (SUMMAND,) + (WHOLE,) * (len(op.results) - 1)
    if op.divides(count):
        reads = {at: 0 for at, shape in weights.items() if shape and shape[0] == count}
        if op.tokens and op.forms[0] == len(op.shapes[0]) - 2:
            return [_exchange_tokens(op, reads, per_token)]
        return [ShardingStrategy("experts", reads, makes, 1 / op.degree, opens=True)]
    inner = _split_inner(op, weights)
    if inner is None:
        return [Indivisible(count, "experts")]
    reads, parts = inner
    return [ShardingStrategy("experts", reads, makes, 1 / op.degree, opens=True, weight_parts=parts)]


def _exchange_tokens(op: SplitOp, weights: Mapping[int, int], per_token: int) -> ShardingStrategy:
    chosen = float(op.shapes[per_token][-1]) if per_token in op.shapes else float(op.number("k", 1))
    place = op.forms[0]
    rows = {at: place for at in range(3) if at in op.shapes and at not in op.weights}
    rows = {at: len(op.shapes[at]) - 2 for at in rows if len(op.shapes[at]) >= 2}
    sent = (Exchange("all-to-all", 0, False, chosen), Exchange("all-to-all", 0, True, chosen))
    makes = (place,) + (WHOLE,) * (len(op.results) - 1)
    return ShardingStrategy("experts", {**weights, **rows}, makes, 1 / op.degree, exchanges=sent)


def _split_inner(op: SplitOp, weights: Mapping[int, Sequence[int]]) -> tuple[dict[int, int], dict[int, Parts]] | None:
    """How the inside of each expert is split: the first matrices by output, the last one by input."""
    width = op.shapes[0][-1]
    matrices = [at for at, shape in sorted(weights.items()) if len(shape) == 3]
    if len(matrices) < 2 or any(width not in weights[at][1:] for at in matrices):
        return None
    sides = {at: 2 if weights[at][1] == width else 1 for at in matrices}
    lengths = {at: weights[at][side] for at, side in sides.items()}
    inner = lengths[matrices[-1]]
    if not op.divides(inner) or any(length % inner for length in lengths.values()):
        return None
    reads, parts = dict(sides), {at: (1,) * (length // inner) for at, length in lengths.items()}
    for at, shape in weights.items():
        if len(shape) == 2 and shape[1] != width and not shape[1] % inner:
            reads, parts = reads | {at: 1}, parts | {at: (1,) * (shape[1] // inner)}
    return reads, {at: ratio for at, ratio in parts.items() if len(ratio) > 1}


def expert(op: SplitOp) -> list[Answer]:
    """One expert: its first matrices by output, its last one by input."""
    weights = {at: (1, *op.shapes[at]) for at in op.shapes if at >= 1 and at in op.weights and len(op.shapes[at]) == 2}
    if op.forms[0] != WHOLE or not weights:
        return []
    inner = _split_inner(op, weights)
    if inner is None:
        return [Indivisible(max(shape[1] for shape in weights.values()), "columns")]
    reads, parts = {at: place - 1 for at, place in inner[0].items()}, inner[1]
    return [ShardingStrategy("experts", reads, (SUMMAND,), 1 / op.degree, opens=True, weight_parts=parts)]


RULES: Mapping[str, Rule] = {
    "Attention": attention,
    "aten::scaled_dot_product_attention": attention,
    "openvino::ScaledDotProductAttention": attention,
    "com.microsoft::MultiHeadAttention": multi_head,
    "com.microsoft::GroupQueryAttention": grouped_query,
    "com.microsoft::Attention": projected,
    "CacheUpdate": update_cache,
    "RotaryEmbedding": rotate,
    "com.microsoft::RotaryEmbedding": rotate,
    "Experts": experts,
    "Expert": expert,
    "com.microsoft::MoE": partial(experts, first=2, per_token=-1),
    "com.microsoft::QMoE": partial(experts, first=2, per_token=-1),
}
