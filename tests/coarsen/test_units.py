"""Units: layers by scope, what lies between them, and narrow cuts where there are no scopes."""

from __future__ import annotations

import numpy as np
import pytest
from split_graphs import Draft, bert_layer, llama_layer, resnet_block

from placewise.coarsen.units import group_units
from placewise.model.builder import GraphBuilder
from placewise.model.tables import Phase
from placewise.transform.training import to_training
from placewise.zoo.registry import generate


def is_acyclic(graph, units):
    """Whether forward edges of one phase lead to the same or a later unit."""
    maker = graph.tensors.producer[graph.edges.value]
    reader = graph.edges.consumer
    backward, phase = graph.ops.backward, graph.ops.phase
    kept = (maker >= 0) & ~backward[maker] & ~backward[reader] & (phase[maker] == phase[reader])
    return bool((units.unit[maker[kept]] <= units.unit[reader[kept]]).all())


def language_model(layer=llama_layer, layers=4, tied=False):
    draft = Draft()
    ids = draft.input(2, 4, dtype="int64")
    table = draft.weight(64, 16, name="embed.weight")
    x = draft.op("Gather", table, ids, shape=(2, 4, 16), scope="embed", axis=0)
    for number in range(layers):
        x = layer(draft, x, scope=f"layers.{number}", heads=4)
    x = draft.norm(x, scope="norm")
    if tied:
        return draft.build(draft.op("Gemm", x, table, shape=(2, 4, 64), scope="head", transB=1))
    return draft.build(draft.linear(x, 64, scope="head"))


@pytest.mark.parametrize("tied", [False, True])
def test_layers(tied):
    """The embedding, every layer, and the scores with their norm; tied weights do not join both ends."""
    graph = language_model(tied=tied)
    units = group_units(graph)
    assert units.names[:-1] == ("embed", "layers.0", "layers.1", "layers.2", "layers.3")
    assert len(units) == 6
    assert is_acyclic(graph, units)
    scope = {graph.ops.scope[op]: units.unit[op] for op in range(graph.n_ops)}
    assert scope["layers.2.attention.q"] == scope["layers.2.mlp.down"] == 3
    assert scope["norm"] == scope["head"] == 5


def test_training():
    """A backward op and an update are in the unit of their forward op, the loss in the last one."""
    graph = to_training(language_model(bert_layer))
    units = group_units(graph)
    number = dict(zip(graph.ops.name, units.unit.tolist(), strict=True))
    for name, unit in number.items():
        forward = name.rpartition("/grad:")[0]
        assert number.get(forward, unit) == unit
    assert number["loss"] == len(units) - 1
    assert number["layers.1.up.weight/update"] == number["layers.1.down.weight/update"] == 2


def test_ops_without_scope():
    """Ops without a scope follow the flow of tensors: inside a layer, or before the first one that needs them."""
    draft = Draft()
    x = draft.input(1, 4, 8)
    mask = draft.same("Tanh", draft.input(4, 8))
    for number in range(3):
        y = draft.linear(x, 8, scope=f"layers.{number}.a")
        y = draft.same("Mul", y, mask)
        x = draft.linear(y, 8, scope=f"layers.{number}.b")
    graph = draft.build(x)
    units = group_units(graph)
    kinds = [(graph.ops.kind[op], int(units.unit[op])) for op in range(graph.n_ops)]
    assert len(units) == 4
    assert kinds.count(("Mul", 1)) == kinds.count(("Mul", 2)) == kinds.count(("Mul", 3)) == 1
    assert ("Tanh", 0) in kinds


def test_phases_share_units():
    """Both phases of a layer are one unit, whatever leads from the end of one to the start of the other."""
    builder = GraphBuilder()
    before = builder.add_tensor(-1, shape=(4,), dtype="float32")
    for phase in range(2):
        for layer in range(4):
            op = builder.add_op(f"{phase}.{layer}", "Relu", scope=f"layers.{layer}.act", phase=phase)
            builder.add_edge(before, op, 0)
            before = builder.add_tensor(op, shape=(4,), dtype="float32")
    graph = builder.build(None, (Phase("prefill"), Phase("decode", 8)))
    units = group_units(graph)
    assert units.unit.tolist() == [0, 1, 2, 3] * 2
    assert is_acyclic(graph, units)


def test_colocation_groups_stay_whole():
    """Ops of one group are in one unit, with all that lies between them."""
    builder = GraphBuilder()
    before = builder.add_tensor(-1, shape=(4,), dtype="float32")
    for layer in range(6):
        op = builder.add_op(f"op{layer}", "Relu", scope=f"layers.{layer}", group=0 if layer in (1, 3) else -1)
        builder.add_edge(before, op, 0)
        before = builder.add_tensor(op, shape=(4,), dtype="float32")
    units = group_units(builder.build())
    assert units.unit.tolist() == [0, 1, 1, 1, 2, 3]


def test_nested_layers():
    """Stages that hold most ops are divided into their blocks."""
    draft = Draft()
    x = draft.input(1, 8, 4, 4)
    for stage in range(3):
        for block in range(6):
            x = resnet_block(draft, x, scope=f"stages.{stage}.blocks.{block}")
    graph = draft.build(x)
    units = group_units(graph)
    assert len(units) == 18
    assert units.names[7] == "stages.1.blocks.1"


def test_recurrent_layers():
    """Steps of a layer share its weights, so they are one unit."""
    graph = generate("rnnlm-2", {}, "float32", training=False)
    units = group_units(graph)
    assert is_acyclic(graph, units)
    homes: dict[int, set[int]] = {}
    for weight, op in zip(graph.weight_edges.value.tolist(), graph.weight_edges.consumer.tolist(), strict=True):
        homes.setdefault(weight, set()).add(int(units.unit[op]))
    heavy = [weight for weight in homes if graph.weights.bytes[weight] > 1 << 20]
    assert len(heavy) >= 4
    assert all(len(homes[weight]) == 1 for weight in heavy)


def test_narrow_cuts():
    """Without scopes, cuts are where one tensor is live: between the blocks."""
    draft = Draft()
    x = draft.input(1, 8, 4, 4)
    for block in range(12):
        x = resnet_block(draft, x, scope=f"block{block}")
    graph = draft.build(x)
    units = group_units(graph)
    assert 6 <= len(units) <= graph.n_ops // 4
    assert is_acyclic(graph, units)
    maker = graph.tensors.producer[graph.edges.value]
    crosses = (maker >= 0) & (units.unit[np.maximum(maker, 0)] != units.unit[graph.edges.consumer])
    assert len(np.unique(graph.edges.value[crosses])) == len(units) - 1


@pytest.mark.parametrize("name", ["random-layered", "random-erdos-renyi", "gnmt-2", "amoebanet", "wavenet-2x18"])
def test_any_graph(name):
    """Units cover all ops, are numbered without gaps, and make no cycles."""
    graph = generate(name, {}, "float32", training=False)
    units = group_units(graph)
    assert np.array_equal(np.unique(units.unit), np.arange(len(units)))
    assert is_acyclic(graph, units)
    assert len(units) <= 300


def test_empty_graph():
    """A graph without ops has no units."""
    assert len(group_units(GraphBuilder().build())) == 0
