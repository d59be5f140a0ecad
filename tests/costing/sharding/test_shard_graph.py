"""Shares and collectives of known layers: the counts of Megatron-LM and of sequence parallelism."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from split_graphs import Draft, bert_layer, llama_layer, moe_layer, resnet_block

from placewise.coarsen.units import group_units
from placewise.costing.sharding import shard_graph
from placewise.model.sharding import SUMMAND, WHOLE, Indivisible, module_splits
from placewise.transform.training import to_training


def model_of(layer, *, layers=2, shape=(2, 4, 32), words=128, loss=True, **sizes):
    """Layers between a vocabulary and its scores, for inference and as a training step."""
    draft = Draft()
    ids = draft.input(*shape[:2], dtype="int64")
    table = draft.weight(words, shape[2], name="embed.weight")
    x = draft.op("Gather", table, ids, shape=shape, scope="embed", axis=0)
    for number in range(layers):
        x = layer(draft, x, scope=f"layers.{number}", **sizes)
    scores = draft.linear(draft.norm(x, scope="norm"), words, scope="head")
    graph = draft.build(scores)
    return graph, to_training(graph, loss=loss)


def counts(sharding, backward=False):
    return dict(Counter(c.kind for c in sharding.collectives if c.backward == backward))


@pytest.mark.parametrize("layer", [llama_layer, bert_layer])
def test_transformer_layers(layer):
    """Two all-reduces forward and two backward per layer, and one for the embedding; the loss exchanges its rows."""
    inference, training = model_of(layer, layers=3)
    sharding = shard_graph(inference, 4)
    assert counts(sharding) == {"all-reduce": 2 * 3 + 1, "all-gather": 1}
    sharding = shard_graph(training, 4)
    assert counts(sharding) == {"all-reduce": 2 * 3 + 1 + 3}
    assert counts(sharding, backward=True) == {"all-reduce": 2 * 3 + 1}
    rows = [c.nbytes for c in sharding.collectives if training.ops.kind[c.op] == "Loss"]
    assert rows == [2 * 4 * 4.0] * 3
    layers = [c.nbytes for c in sharding.collectives if training.ops.kind[c.op] != "Loss"]
    assert layers == [2 * 4 * 32 * 4.0] * len(layers)


def test_sequence_parallel():
    """Per layer two all-gathers and two reduce-scatters in each pass, and no all-reduce of activations."""
    _, training = model_of(llama_layer, layers=3)
    sharding = shard_graph(training, 2, sequence_parallel=True)
    assert counts(sharding) == {"all-gather": 2 * 3 + 1, "reduce-scatter": 2 * 3 + 1, "all-reduce": 3}
    assert counts(sharding, backward=True) == {"all-gather": 2 * 3 + 1, "reduce-scatter": 2 * 3 + 1}
    norms = [op for op in range(training.n_ops) if training.ops.kind[op] == "RMSNormalization"]
    assert all(sharding.style_of(op) == "tokens" and sharding.share[op] == 0.5 for op in norms)


def test_resnet_block():
    """One all-reduce per bottleneck and pass: of what the middle convolution makes, and of the block's gradient."""
    draft = Draft()
    x = draft.same("Relu", draft.input(2, 3, 6, 6))
    x = draft.op("Conv", x, draft.weight(16, 3, 1, 1), shape=(2, 16, 6, 6), scope="stem.0", kernel_shape=(1, 1))
    for number in range(3):
        x = resnet_block(draft, x, scope=f"blocks.{number}")
    graph = draft.build(x)
    training = to_training(graph)
    unit = group_units(training).unit
    sharding = shard_graph(training, 2, unit=unit)
    assert counts(sharding) == {"all-reduce": 3}
    assert counts(sharding, backward=True) == {"all-reduce": 3}
    assert [c.nbytes for c in sharding.collectives] == [2 * 8 * 36 * 4.0] * 3 + [2 * 16 * 36 * 4.0] * 3
    splits = module_splits(training, sharding)
    assert {path.rpartition(".")[2]: split.style for path, split in splits.items()} == {
        "conv1": "colwise", "conv2": "rowwise",
    }  # fmt: skip


def test_experts():
    """Experts sum once; with tokens split, tokens go to their experts and back; the router stays whole."""
    inference, training = model_of(moe_layer, layers=2)
    sharding = shard_graph(inference, 4)
    assert counts(sharding) == {"all-reduce": 2 + 1, "all-gather": 1}
    splits = module_splits(inference, sharding)
    assert "layers.0.gate" not in splits
    assert splits["layers.0.experts"].style == "experts"
    assert set(splits["layers.0.experts"].weights.values()) == {0}
    sharding = shard_graph(training, 2, sequence_parallel=True)
    assert counts(sharding)["all-to-all"] == counts(sharding, backward=True)["all-to-all"] == 2 * 2
    sent = {c.nbytes for c in sharding.collectives if c.kind == "all-to-all"}
    assert sent == {2 * 8 * 32 * 4.0}


def test_indivisible_heads():
    """Sixteen devices do not divide four key-value heads: attention stays whole, the rest is split."""
    graph, _ = model_of(llama_layer, shape=(2, 4, 64), inner=64)
    sharding = shard_graph(graph, 8)
    assert sharding.refusals == (Indivisible(4, "key-value heads"),)
    splits = module_splits(graph, sharding)
    assert "layers.0.attention.q" not in splits
    assert splits["layers.0.mlp.down"].style == "rowwise"
    attention = [op for op in range(graph.n_ops) if graph.ops.kind[op] == "Attention"]
    assert all(sharding.share[op] == 1 for op in attention)


def test_no_pointless_split():
    """A product whose result is needed whole at once is not split: a low rank with a norm, a router, a last layer."""
    draft = Draft()
    x = draft.input(2, 4, 32)
    low = draft.norm(draft.linear(x, 16, scope="low"), scope="norm")
    high = draft.same("Gelu", draft.linear(low, 64, scope="high"))
    out = draft.linear(draft.linear(high, 32, scope="out"), 16, scope="last")
    graph = draft.build(out)
    splits = module_splits(graph, shard_graph(graph, 2))
    assert {path: split.style for path, split in splits.items()} == {"high": "colwise", "out": "rowwise"}


def test_vocabulary_is_padded():
    """Two devices have 51 and 50 of 101 words; each holds and computes 51."""
    graph, _ = model_of(llama_layer, words=101)
    sharding = shard_graph(graph, 2)
    head = next(op for op in range(graph.n_ops) if graph.ops.scope[op] == "head")
    assert sharding.share[head] == 51 / 101
    assert sharding.style_of(0) == "embedding"
    assert module_splits(graph, sharding)["head"].gathers


def test_units_are_whole_between():
    """What another unit reads is whole for every degree, and what is inside is not."""
    graph, _ = model_of(llama_layer, layers=3)
    unit = group_units(graph).unit
    sharding = shard_graph(graph, 2, unit=unit)
    makers = graph.tensors.producer[graph.edges.value]
    crosses = (makers >= 0) & (unit[np.maximum(makers, 0)] != unit[graph.edges.consumer])
    assert (sharding.split[graph.edges.value[crosses]] == WHOLE).all()
    assert (sharding.split[graph.edges.value[~crosses]] >= 0).any()
    assert not (sharding.split == SUMMAND).any()


def test_backward_shares():
    """Backward ops have the share of their forward ops, updates that of their weights."""
    _, training = model_of(llama_layer)
    sharding = shard_graph(training, 4)
    share = dict(zip(training.ops.name, sharding.share.tolist(), strict=True))
    for name, value in share.items():
        if "/grad:" in name and name.rpartition("/grad:")[0] in share:
            assert value == share[name.rpartition("/grad:")[0]]
    assert share["layers.0.mlp.up.weight/update"] == 0.25
    assert share["norm.weight/update"] == 1.0


def test_constants_follow():
    """A mask that is made on the spot, and the scales of a quantized weight, are split like their readers."""
    draft = Draft()
    x = draft.input(2, 4, 16)
    kernel, scale = draft.weight(32, 16, name="kernel"), draft.weight(32, name="scale")
    made = draft.op("DequantizeLinear", kernel, scale, shape=(32, 16), axis=0)
    h = draft.op("Gemm", x, made, shape=(2, 4, 32), transB=1)
    noise = draft.op("RandomUniform", shape=(2, 4, 32))
    out = draft.linear(draft.same("Mul", h, noise), 16, scope="out")
    graph = draft.build(out)
    sharding = shard_graph(graph, 2)
    assert dict(zip(graph.weights.name, sharding.weight_split.tolist(), strict=True)) == {
        "kernel": 0, "scale": 0, "out.weight": 1,
    }  # fmt: skip
    assert sharding.split[noise] == 2
    assert sharding.share.tolist().count(1.0) == 0


def test_degree_one():
    """One device has everything, and exchanges nothing."""
    _, training = model_of(llama_layer)
    sharding = shard_graph(training, 1)
    assert (sharding.share == 1).all()
    assert (sharding.split == WHOLE).all()
    assert not sharding.collectives
    assert not module_splits(training, sharding)
