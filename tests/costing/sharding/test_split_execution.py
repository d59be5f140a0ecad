"""Splits compute what whole ops compute: every rule, by running graphs on arrays of each device."""

from __future__ import annotations

import numpy as np
import pytest
from split_execution import SplitRun, random_values, run_whole
from split_graphs import Draft, bert_layer, conv, heads_first, heads_last, llama_layer, resnet_block, written_attention

from placewise.costing.sharding import shard_graph
from placewise.model.sharding import module_splits


def llama(draft):
    """An embedding, two layers, and the scores of a vocabulary."""
    ids = draft.input(2, 4, dtype="int64")
    table = draft.weight(64, 32, name="embed.weight")
    x = draft.op("Gather", table, ids, shape=(2, 4, 32), scope="embed", axis=0)
    for layer in range(2):
        x = llama_layer(draft, x, scope=f"layers.{layer}")
    return draft.linear(draft.norm(x, scope="norm"), 64, scope="head")


def bert(draft):
    return bert_layer(draft, draft.input(2, 4, 16))


def gpt(draft):
    """Queries, keys and values are one product, which is then divided."""
    return bert_layer(draft, draft.input(2, 4, 16), fused=True)


def packed_heads(draft):
    """One product for [3, heads, width], as in vision transformers."""
    x = draft.input(2, 4, 16)
    packed = draft.linear(x, 48, scope="qkv")
    parted = draft.op("Reshape", packed, shape=(2, 4, 3, 4, 4))
    turned = draft.op("Transpose", parted, shape=(3, 2, 4, 4, 4), perm=(2, 0, 3, 1, 4))
    q, k, v = (draft.op("Slice", turned, shape=(2, 4, 4, 4), dim=0, index=number) for number in range(3))
    mixed = draft.op("Attention", q, k, v, shape=(2, 4, 4, 4))
    return draft.linear(heads_last(draft, mixed), 16, scope="o")


def batched_heads(draft):
    """Heads are merged with the batch, as in old multi-head attention."""
    x = draft.input(2, 4, 16)
    parts = []
    for name in "qkv":
        y = heads_first(draft, draft.linear(x, 16, scope=name), 4)
        parts.append(draft.op("Reshape", y, shape=(8, 4, 4)))
    q, k, v = parts
    turned = draft.op("Transpose", k, shape=(8, 4, 4), perm=(0, 2, 1))
    scores = draft.op("Softmax", draft.op("MatMul", q, turned, shape=(8, 4, 4)), shape=(8, 4, 4), axis=-1)
    mixed = draft.op("MatMul", scores, v, shape=(8, 4, 4))
    parted = draft.op("Reshape", mixed, shape=(2, 4, 4, 4))
    return draft.linear(heads_last(draft, parted), 16, scope="o")


def fused_gate(draft):
    """Gate and up are one product, cut in two by slices."""
    x = draft.input(2, 4, 16)
    both = draft.linear(x, 48, scope="both")
    gate = draft.op("Slice", both, shape=(2, 4, 24), dim=2, start=0, end=24)
    up = draft.op("Slice", both, shape=(2, 4, 24), dim=2, start=24, end=48)
    return draft.linear(draft.same("Mul", draft.same("Swish", gate), up), 16, scope="down")


def side_by_side(draft):
    """Attention and a feed-forward network side by side share one product at the end."""
    x = draft.input(2, 4, 16)
    v = draft.same("Tanh", draft.linear(x, 16, scope="one"))
    h = draft.same("Gelu", draft.linear(x, 32, scope="other"))
    both = draft.op("Concat", v, h, shape=(2, 4, 48), axis=-1)
    return draft.linear(both, 16, scope="down")


def parallel_block(draft):
    """Two row-parallel products whose sum is summed once."""
    x = draft.input(2, 4, 16)
    h = draft.linear(draft.same("Gelu", draft.linear(x, 32, scope="up")), 16, scope="down")
    return draft.same("Add", x, draft.same("Add", written_attention(draft, x), h))


def resnet(draft):
    return resnet_block(draft, draft.input(2, 16, 5, 5))


def stem(draft):
    """Convolutions of groups, pooling, and a classifier."""
    x = draft.input(2, 4, 8, 8)
    h = draft.same("Relu", conv(draft, x, 16, 3, scope="conv1"))
    h = draft.same("Relu", conv(draft, h, 16, 3, scope="depthwise", group=16))
    h = conv(draft, h, 8, scope="conv2")
    pooled = draft.op("GlobalAveragePool", h, shape=(2, 8, 1, 1))
    return draft.linear(draft.op("Reshape", pooled, shape=(2, 8)), 4, scope="fc", bias=True)


def inception(draft):
    """Branches whose channels are put side by side and read by the next convolution."""
    x = draft.input(2, 8, 5, 5)
    narrow = draft.same("Relu", conv(draft, x, 4, scope="b"))
    branches = [
        conv(draft, x, 8, scope="a"),
        conv(draft, narrow, 8, 3, scope="c"),
    ]
    both = draft.same("Relu", draft.op("Concat", *branches, shape=(2, 16, 5, 5), axis=1))
    return conv(draft, both, 8, scope="d")


def contraction(draft):
    """Products as Einsum, with heads as dimensions of the weights."""
    x = draft.input(2, 4, 16)
    q, k, v = (
        draft.op("Einsum", x, draft.weight(16, 4, 4), shape=(2, 4, 4, 4), equation="bsw,whd->bhsd") for _ in range(3)
    )
    scores = draft.op("Einsum", q, k, shape=(2, 4, 4, 4), equation="bhqd,bhkd->bhqk")
    scores = draft.op("Softmax", scores, shape=(2, 4, 4, 4), axis=-1)
    mixed = draft.op("Einsum", scores, v, shape=(2, 4, 4, 4), equation="bhqk,bhkd->bqhd")
    return draft.op("Einsum", mixed, draft.weight(4, 4, 16), shape=(2, 4, 16), equation="bqhd,hdw->bqw")


def rotary(draft):
    """Positions are rotated by halves of each head; cosines are the same for all heads."""
    x = draft.input(2, 4, 16)
    cos = draft.op("Cos", draft.input(1, 1, 4, 4), shape=(1, 1, 4, 4))
    q, k, v = (heads_first(draft, draft.linear(x, 16, scope=name), 4) for name in "qkv")
    turned = []
    for y in (q, k):
        low = draft.op("Slice", y, shape=(2, 4, 4, 2), dim=3, start=0, end=2)
        high = draft.op("Neg", draft.op("Slice", y, shape=(2, 4, 4, 2), dim=3, start=2, end=4), shape=(2, 4, 4, 2))
        both = draft.op("Concat", high, low, shape=(2, 4, 4, 4), axis=-1)
        turned.append(draft.same("Add", draft.same("Mul", y, cos), draft.same("Mul", both, cos)))
    mixed = draft.op("Attention", *turned, v, shape=(2, 4, 4, 4))
    return draft.linear(heads_last(draft, mixed), 16, scope="o")


CASES = {
    "llama": (llama, 5), "bert": (bert, 2), "gpt": (gpt, 2), "packed heads": (packed_heads, 1),
    "batched heads": (batched_heads, 1), "fused gate": (fused_gate, 1), "side by side": (side_by_side, 1),
    "parallel block": (parallel_block, 1), "resnet": (resnet, 1), "stem": (stem, 1), "inception": (inception, 2),
    "contraction": (contraction, 1), "rotary": (rotary, 1),
}  # fmt: skip
"""Model, and how many summands are summed forward: those that are written down for each in the literature."""


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_split_equals_whole(name, degree):
    """What t devices compute together is what one computes, with as few sums as are known to suffice."""
    model, sums = CASES[name]
    draft = Draft()
    graph = draft.build(model(draft))
    given, held = random_values(graph)
    expected = run_whole(graph, given, held)
    run = SplitRun(graph, degree)
    results = run.run(given, held)
    assert min(run.spread.share) < 1
    for tensor, value in results.items():
        np.testing.assert_allclose(value, expected[tensor], rtol=1e-9, atol=1e-12)
    assert run.exchanged == sums
    assert sum(c.kind == "all-reduce" for c in shard_graph(graph, degree).collectives) == sums


@pytest.mark.parametrize("name", ["llama", "bert", "gpt", "parallel block", "rotary", "side by side", "fused gate"])
def test_split_tokens(name):
    """The same with tokens split between the products (sequence parallelism)."""
    draft = Draft()
    graph = draft.build(CASES[name][0](draft))
    given, held = random_values(graph)
    expected = run_whole(graph, given, held)
    run = SplitRun(graph, 2, tokens=True)
    for tensor, value in run.run(given, held).items():
        np.testing.assert_allclose(value, expected[tensor], rtol=1e-9, atol=1e-12)
    assert "tokens" in run.spread.style or name in ("rotary", "side by side", "fused gate")


@pytest.mark.parametrize("name", CASES)
def test_split_units(name):
    """The same where every op is a unit of its own, or every few: all is whole between them."""
    draft = Draft()
    graph = draft.build(CASES[name][0](draft))
    given, held = random_values(graph)
    expected = run_whole(graph, given, held)
    for length in (1, 3, 8):
        run = SplitRun(graph, 2, unit=[op // length for op in range(graph.n_ops)])
        for tensor, value in run.run(given, held).items():
            np.testing.assert_allclose(value, expected[tensor], rtol=1e-9, atol=1e-12)


def test_parts_of_weights():
    """Matrices side by side are split one by one, and the last product reads them in that order."""
    draft = Draft()
    graph = draft.build(gpt(draft))
    splits = module_splits(graph, shard_graph(graph, 2))
    assert splits["layer.0.attention.qkv"].parts == {
        "layer.0.attention.qkv.weight": (16, 16, 16), "layer.0.attention.qkv.bias": (16, 16, 16),
    }  # fmt: skip
    draft = Draft()
    graph = draft.build(side_by_side(draft))
    assert module_splits(graph, shard_graph(graph, 2))["down"].parts == {"down.weight": (16, 32)}
