"""The graph by module as data: what is in which module, its sums, and the tensors between ops."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.tables import Phase
from placewise.reporting.page.modules import MOST, Module, build_modules, flatten_modules, module_tree, tensor_columns
from placewise.zoo.random import random_graph


def column(packed: dict[str, str]) -> list[Any]:
    """The numbers of a packed column."""
    ((kind, text),) = packed.items()
    return np.frombuffer(base64.b64decode(text), f"<{kind}").tolist()


def chain(scopes: list[str], *, backward: int = 0, phases: tuple[Phase, ...] = ()) -> Graph:
    """Ops one after the other, each of 16 bytes and in its scope; the last `backward` of them run backwards."""
    builder = GraphBuilder()
    for k, scope in enumerate(scopes):
        late = {"phase": len(phases) * k // len(scopes)} if phases else {}
        op = builder.add_op(f"op{k}", "Add", scope=scope, backward=k >= len(scopes) - backward, **late)
        builder.add_tensor(op, shape=(4,), dtype="float32")
        if k:
            builder.add_edge(k - 1, op)
    return builder.build(phases=phases)


def problem_of(graph: Graph, n_devices: int = 2) -> Problem:
    """Op k takes k + 1 seconds on the first device, and ten times that on the next."""
    devices = tuple(Device(f"gpu{d}") for d in range(n_devices))
    links = tuple(Link(a, b, 1e9) for d in devices for a, b in ((d.name, "host"), ("host", d.name)))
    cluster = Cluster(devices, links)
    seconds = np.outer(np.arange(1, graph.n_ops + 1), 10.0 ** np.arange(n_devices))
    return Problem(graph, cluster, CostTable.given(seconds, transfer_seconds_of(graph, cluster)))


def outline(module: Module) -> list[Any]:
    """A module as nested lists: its name, then its members."""
    return [module.name, *(outline(m) if isinstance(m, Module) else m for m in module.members)]


def test_scopes_become_modules() -> None:
    """Numbers keep the name of what they count; a shell around one member goes, and so does a module of one op."""
    graph = chain(["stem", "net.layer.0.a", "net.layer.0.a", "net.layer.0.b", "net/layer/1/a", "net.layer.1.b", ""])
    assert outline(build_modules(problem_of(graph))) == [
        "model", 0, ["net.layer", ["layer.0", ["a", 1, 2], 3], ["layer.1", 4, 5]], 6,
    ]  # fmt: skip


def test_a_model_of_one_module_or_one_op_is_the_whole() -> None:
    """The outermost shell goes as well, and even one op has a module around it."""
    assert outline(build_modules(problem_of(chain(["net.a", "net.a", "net.b"])))) == ["net", ["a", 0, 1], 2]
    assert outline(build_modules(problem_of(chain(["net.a"])))) == ["model", 0]


def test_phases_and_directions_come_first() -> None:
    """A layer that runs in two phases, or forwards and backwards, is a module in each."""
    scopes = ["layer.a", "layer.b", "layer.a", "layer.b"]
    phases = (Phase("prefill"), Phase("decode", 7))
    assert outline(build_modules(problem_of(chain(scopes, phases=phases)))) == [
        "model", ["prefill.layer", 0, 1], ["decode.layer", 2, 3],
    ]  # fmt: skip
    assert outline(build_modules(problem_of(chain(scopes, backward=2)))) == [
        "model", ["forward.layer", 0, 1], ["backward and update.layer", 2, 3],
    ]  # fmt: skip


def test_graphs_without_scopes_show_the_layers_that_repeat() -> None:
    """Where a graph does the same again and again, each time is a module."""
    builder = GraphBuilder()
    for k in range(40):
        op = builder.add_op(f"op{k}", ("MatMul", "Add", "Relu", "Softmax")[k % 4])
        builder.add_tensor(op, shape=(4,), dtype="float32")
        if k:
            builder.add_edge(k - 1, op)
    whole = build_modules(problem_of(builder.build()))
    layers = [member for member in whole.members if isinstance(member, Module)]
    assert len(layers) >= 8 and layers[0].name == "layer 1"
    assert sum(len(layer.members) == 4 for layer in layers) >= 8


@pytest.mark.parametrize("n_ops", [1, MOST, MOST + 1, 3 * MOST, MOST**2 + 5])
def test_nothing_has_more_members_than_can_be_shown(n_ops: int) -> None:
    """However many ops a scope has, a module shows few members, every op once, in their order."""
    whole = build_modules(problem_of(chain(["wide"] * n_ops)))
    seen: list[int] = []

    def walk(module: Module) -> None:
        assert 1 <= len(module.members) <= MOST
        for member in module.members:
            if isinstance(member, Module):
                walk(member)
            else:
                seen.append(member)

    walk(whole)
    assert seen == list(range(n_ops))


def test_stretches_are_called_by_their_ends() -> None:
    """The first and the last module of a stretch, the last one without the path that both share."""
    whole = build_modules(problem_of(chain([f"net.layer.{k // 2}" for k in range(4 * MOST)])))
    assert [member.name for member in whole.members if isinstance(member, Module)] == [
        f"layer.0 – {MOST - 1}", f"layer.{MOST} – {2 * MOST - 1}",
    ]  # fmt: skip


def test_deep_scopes_are_cut_off() -> None:
    """A scope of ten thousand names is no tree of ten thousand modules."""
    deep = ".".join(f"s{k}" for k in range(10_000))
    names, _, home = flatten_modules(build_modules(problem_of(chain([deep, deep, f"{deep}.x"]))))
    assert len(names) <= 4 and len(home) == 3


def test_sums_are_those_of_the_ops() -> None:
    """Seconds on the chosen device, ops per device, and weights that are tied counted once."""
    builder = GraphBuilder()
    for k, scope in enumerate(("a.x", "a.y", "a.y", "b", "b")):
        op = builder.add_op(f"op{k}", "Add", scope=scope, state_bytes=k)
        builder.add_tensor(op, shape=(4,), dtype="float32")
        if k:
            builder.add_edge(k - 1, op)
    shared = builder.add_weight("shared", shape=(100,), dtype="float32")
    own = builder.add_weight("own", shape=(10,), dtype="float32")
    for op, weight in ((0, shared), (1, shared), (2, own), (4, shared)):
        builder.use_weight(weight, op)
    problem = problem_of(builder.build())
    tree = module_tree(problem, Placement(np.array([0, 0, 1, 1, -1])))
    modules = tree["modules"]
    assert modules["name"] == ["model", "a", "b", "y"] and column(modules["parent"]) == [-1, 0, 0, 1]
    assert column(tree["home"]) == [1, 3, 3, 2, 2]
    assert column(modules["ops"]) == [5, 3, 2, 2]
    assert column(modules["seconds"]) == [1 + 2 + 30 + 40, 1 + 2 + 30, 40, 2 + 30]
    assert column(modules["bytes"]) == [440 + 10, 440 + 3, 400 + 7, 440 + 3]
    shares = zip(*(column(modules["shares"][name]) for name in ("module", "device", "ops", "seconds")), strict=True)
    assert list(shares) == [
        (0, -1, 1, 0), (0, 0, 2, 3), (0, 1, 2, 70), (1, 0, 2, 3), (1, 1, 1, 30),
        (2, -1, 1, 0), (2, 1, 1, 40), (3, 0, 1, 2), (3, 1, 1, 30),
    ]  # fmt: skip


def test_tensors_go_from_op_to_ops() -> None:
    """Exactly the edges of the graph, each tensor with its bytes; the model's inputs are none of them."""
    graph = random_graph("branchy", 60, seed=3)
    columns = {name: column(packed) for name, packed in tensor_columns(graph).items()}
    readers = iter(columns["reader"])
    found = {
        (producer, size, next(readers))
        for producer, size, count in zip(columns["producer"], columns["bytes"], columns["readers"], strict=True)
        for _ in range(count)
    }
    tensors = graph.tensors
    expected = {
        (int(tensors.producer[t]), float(tensors.bytes[t]), int(op))
        for t in range(graph.n_tensors) for op in graph.consumers_of(t) if tensors.producer[t] >= 0
    }  # fmt: skip
    assert found == expected and next(readers, None) is None


def test_a_graph_without_edges_has_no_tensors() -> None:
    """Ops beside each other are shown, and nothing between them."""
    builder = GraphBuilder()
    for k in range(3):
        builder.add_op(f"op{k}", "Add", scope="s")
    tree = module_tree(problem_of(builder.build()), Placement.on(0, 3))
    assert all(column(packed) == [] for packed in tree["tensors"].values())
    assert tree["modules"]["name"] == ["s"]
