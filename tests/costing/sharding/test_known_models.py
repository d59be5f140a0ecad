"""Collectives of published models: as many, and as large, as Megatron-LM has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.costing.sharding import shard_graph
from placewise.model.sharding import Indivisible, module_splits
from placewise.transform.training import to_training

MODELS = Path(__file__).parents[3] / "examples" / "models"


def counts(sharding, *, backward=False, times=1):
    return dict(Counter(c.kind for c in sharding.collectives if c.backward == backward and c.times == times))


@pytest.fixture(scope="module")
def llama():
    return open_model("hf:llama-3-8b", ProblemOptions(dims={"batch": 2, "prompt": 64, "tokens": 16})).graph


@pytest.fixture(scope="module")
def bert():
    return open_model("hf:bert-large", ProblemOptions(dims={"batch": 2})).graph


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_llama(llama, degree):
    """Per layer and token one sum after attention and one after the network, and one of the embedding."""
    sharding = shard_graph(llama, degree)
    for times, rows in ((1, 64), (16, 1)):
        assert counts(sharding, times=times) == {"all-reduce": 2 * 32 + 1, "all-gather": 1}
        sums = {c.nbytes for c in sharding.collectives if c.times == times and c.kind == "all-reduce"}
        assert sums == {2 * rows * 4096 * 2.0}
    assert not sharding.refusals
    styles = Counter(split.style for split in module_splits(llama, sharding).values())
    assert styles == {"colwise": 5 * 32 + 1, "rowwise": 2 * 32, "heads": 32, "embedding": 1}
    products = [op for op in range(llama.n_ops) if llama.ops.kind[op] in ("Gemm", "Attention")]
    assert (sharding.share[products] == 1 / degree).all()


@pytest.mark.parametrize("degree", [3, 16])
def test_grouped_queries(llama, degree):
    """Eight key-value heads are never split over sixteen devices, nor over three: attention stays whole."""
    sharding = shard_graph(llama, degree)
    heads = {Indivisible(8, "key-value heads"), Indivisible(32, "heads")}
    assert heads & set(sharding.refusals)
    attention = [op for op in range(llama.n_ops) if llama.ops.kind[op] in ("Attention", "CacheUpdate")]
    assert (sharding.share[attention] == 1).all()
    assert not [path for path in module_splits(llama, sharding) if "self_attn" in path]


def test_bert_large(bert):
    """Two sums per layer in each pass, and one of the embedding forward."""
    sharding = shard_graph(to_training(bert, loss=False), 4)
    assert counts(sharding) == {"all-reduce": 2 * 24 + 1}
    assert counts(sharding, backward=True) == {"all-reduce": 2 * 24}
    assert {c.nbytes for c in sharding.collectives} == {2 * 512 * 1024 * 4.0}


def test_mixtral():
    """Experts are divided among devices, and their results are summed with the layer's second sum."""
    graph = open_model("hf:mixtral-8x7b", ProblemOptions(dims={"prompt": 64})).graph
    sharding = shard_graph(graph, 8)
    assert counts(sharding) == {"all-reduce": 2 * 32 + 1, "all-gather": 1}
    splits = module_splits(graph, sharding)
    experts = [split for split in splits.values() if split.style == "experts"]
    assert len(experts) == 32
    assert all(set(split.weights.values()) == {0} for split in experts)
    assert not any(path.endswith("gate") for path in splits)


def test_resnet():
    """Of every bottleneck one sum: of its second convolution, which reads the channels of the first."""
    graph = open_model(MODELS / "resnet50.onnx", ProblemOptions(dims={"batch": 1})).graph
    sharding = shard_graph(graph, 2)
    reduced = [c for c in sharding.collectives if c.kind == "all-reduce"]
    rowwise = [op for op in range(graph.n_ops) if sharding.style_of(op) == "rowwise"]
    assert len(reduced) == len(rowwise) >= 16
    made = {t: graph.tensors.bytes[t] for op in rowwise for t in graph.outputs_of(op)}
    assert sorted(c.nbytes for c in reduced) == sorted(made.values())
    assert (sharding.share[rowwise] == 0.5).all()


def test_degrees(llama, bert):
    """No device does less than its part; one device does all; twice as many devices exchange as often."""
    for graph in (llama, bert):
        whole = shard_graph(graph, 1)
        assert (whole.share == 1).all()
        assert not whole.collectives
        for degree in (2, 4, 8):
            share = shard_graph(graph, degree).share
            assert (share * degree >= 1 - 1e-12).all()
            assert (share <= np.ones(graph.n_ops)).all()


@pytest.mark.soak
def test_eighty_layers():
    """Two sums per layer, and one of the embedding."""
    assert counts(shard_graph(open_model("hf:llama-3-70b").graph, 8))["all-reduce"] == 2 * 80 + 1
