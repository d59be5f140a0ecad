"""What devices hold, by module: every op in exactly one part, and names that people would give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise.coarsen import module_parts
from placewise.coarsen.module_parts import ALL_RANGES, MOST_PARTS, ModuleParts, find_parts, held_bytes
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Graph
from placewise.model.tables import Phase
from placewise.zoo.random import random_graph

WORDS = ("layer", "layers", "h", "mlp", "norm1", "norm2", "0", "1", "2", "10", "01", "99999999999", "x", "block_3")


def graph_of(
    scopes: Sequence[str], kinds: Sequence[str] = ("Add",), *, phases: Sequence[str] = (), backward: int = 0
) -> Graph:
    """Ops one after the other, each in its scope; phases of equal length; the last `backward` run backwards."""
    builder = GraphBuilder()
    for k, scope in enumerate(scopes):
        late = {"phase": len(phases) * k // len(scopes)} if phases else {}
        op = builder.add_op(f"op{k}", kinds[k % len(kinds)], scope=scope, backward=k >= len(scopes) - backward, **late)
        builder.add_tensor(op, shape=(4,), dtype="float32")
        if k:
            builder.add_edge(k - 1, op)
    return builder.build(phases=tuple(Phase(name) for name in phases))


def names(parts: ModuleParts, device: int) -> list[str]:
    """The full names of a device's parts."""
    return [part.name for part in parts.on(device)]


def named(scopes: Sequence[str], device: Sequence[int], **how: object) -> list[list[str]]:
    """The names of the parts of each device, the largest first."""
    parts = find_parts(graph_of(scopes, **how), np.array(device, np.int32))  # type: ignore[arg-type]
    return [names(parts, home) for home in range(max(device) + 1)]


@st.composite
def placed(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    """A graph whose modules are named from few words, so that much is alike, and devices for its ops (−1: none)."""
    n_ops = draw(st.integers(1, 60))
    paths = st.lists(st.sampled_from(WORDS), max_size=5).map(".".join)
    few = draw(st.lists(paths, min_size=1, max_size=20))
    scopes = draw(st.lists(st.sampled_from(few), min_size=n_ops, max_size=n_ops))
    device = draw(st.lists(st.integers(draw(st.sampled_from((-1, 0))), 3), min_size=n_ops, max_size=n_ops))
    how = draw(st.sampled_from(({}, {"phases": ("prefill", "decode")}, {"backward": n_ops // 2})))
    return graph_of(scopes, ("Conv", "Add", "Relu"), **how), np.array(device, np.int32)


@examples(150)
@given(placed())
def test_every_op_is_in_exactly_one_part(made: tuple[Graph, np.ndarray]) -> None:
    """An op with a device is in one part, of its device; counts and seconds are those of the ops; names differ."""
    graph, device = made
    seconds = np.arange(1.0, graph.n_ops + 1)
    found = find_parts(graph, device, seconds)
    assert ((found.of >= 0) == (device >= 0)).all()
    for number, part in enumerate(found.parts):
        ops = np.flatnonzero(found.of == number)
        assert (device[ops] == part.device).all()
        assert (part.ops, part.first) == (len(ops), ops[0])
        assert part.seconds == seconds[ops].sum()
        assert part.name and part.short and "  " not in part.name and "{" not in part.name
    for home in range(4):
        each = found.on(home)
        assert len({part.name for part in each}) == len(each)
        assert [part.seconds for part in each] == sorted((part.seconds for part in each), reverse=True)


@pytest.mark.parametrize("shape", ["layered", "branchy", "series-parallel"])
def test_every_op_of_a_large_graph_is_in_one_part(shape: str) -> None:
    """Scattered placements too: few parts per device, and nothing is lost in the last one."""
    graph = random_graph(shape, 3000, seed=2)
    device = np.random.default_rng(5).integers(0, 5, graph.n_ops).astype(np.int32)
    found = find_parts(graph, device)
    assert all(found.parts[part].device == home for part, home in zip(found.of, device, strict=True))
    assert all(len(found.on(home)) <= MOST_PARTS for home in range(5))
    assert sum(part.ops for part in found.parts) == graph.n_ops


def test_layers_are_ranges() -> None:
    """Numbered siblings on one device share a part; other modules keep their names, cut as short as they are clear."""
    scopes = ["model.embed", *(f"model.layers.{k}.{part}" for k in range(6) for part in ("attn", "mlp")), "lm_head"]
    device = [0, *(0 if k < 3 else 1 if k < 5 else 2 for k in range(6) for _ in range(2)), 2]
    assert named(scopes, device) == [["layers 0–2", "embed"], ["layers 3–4"], ["layer 5", "lm_head"]]


def test_one_device_holds_the_whole_model() -> None:
    """No list of modules where nothing is split, whether modules have names or not."""
    assert named(["a.0", "a.1", "b"], [0, 0, 0]) == [["the whole model"]]


def test_what_is_alike_in_every_layer_is_one_part() -> None:
    """The experts of all layers, and the layers without them."""
    inside = ("attn.q", "attn.k", "norm", "mlp.gate", "mlp.experts.0", "mlp.experts.1")
    scopes = [f"model.layers.{k}.{part}" for k in range(32) for part in inside]
    device = [1 if "experts" in scope else 0 for scope in scopes]
    assert named(scopes, device) == [["layers 0–31 except experts"], ["experts of layers 0–31"]]


def test_a_cut_inside_a_layer() -> None:
    """The layer at the cut is described by its modules; ops of a module itself are its own."""
    scopes = [f"h.{k}.{part}" for k in range(4) for part in ("ln", "attn", "attn.proj", "mlp.up", "mlp.down")]
    device = [0] * 7 + [1] * 13
    assert named(scopes, device) == [
        ["layer 0", "ln and own ops of attn of layer 1"],
        ["layers 2–3", "mlp and proj of layer 1"],
    ]
    assert named(["a.relu", "a.relu", "b"], [0, 1, 1]) == [["parts of relu"], ["parts of relu", "b"]]
    device = [0] * 6 + [1] * 14
    assert named(scopes, device) == [["layer 0", "ln of layer 1"], ["layers 2–3", "layer 1 except ln"]]


def test_a_cut_inside_a_numbered_block() -> None:
    """The block carries the number of its stage: no "of layer3" follows, and what it leaves out is in brackets."""
    inside = ("conv1", "relu", "conv2", "relu")
    scopes = [*(f"layer{k}.{block}.{part}" for k in (2, 3) for block in range(3) for part in inside), "fc"]
    device = [0] * 19 + [1, *[1] * 5]
    assert named(scopes, device) == [
        ["layer2", "layer3.0 and layer3.1 (except parts of relu)"],
        ["layer3.2 and parts of relu of layer3.1", "fc"],
    ]
    scopes = [f"h.{k}.{part}" for k in range(2) for part in ("a", "b", "b.c", "d", "e", "f")]
    assert named(scopes, [0, 0, 1, 0, 1, 1] + [1] * 6) == [
        ["a, d and own ops of b of layer 0"],
        ["layer 1", "c, e and f of layer 0"],
    ]


def test_lists_with_other_words() -> None:
    """Sequences inside stages keep the model's words, and numbers that end a name are a range as well."""
    scopes = [*(f"layer{k}.{block}.conv{c}" for k in (1, 2, 3) for block in range(3) for c in (1, 2)), "fc"]
    device = [0] * 8 + [1] * 11
    assert named(scopes, device) == [["layer1", "layer2.0"], ["layer3", "layer2.1–2", "fc"]]
    t5 = [f"{side}.block.{k}.layer.{n}" for side in ("encoder", "decoder") for k in range(2) for n in range(2)]
    assert named(t5, [0] * 5 + [1] * 3) == [
        ["encoder", "layer 0 of decoder block 0"],
        ["decoder block 1", "layer 1 of decoder block 0"],
    ]


def test_numbers_are_kept_as_they_are() -> None:
    """Gaps are said; numbers with zeros in front, or too long for a number, are names."""
    assert named([f"layer.{k}" for k in range(7)], [0, 0, 1, 0, 1, 1, 1]) == [["layers 0–1, 3"], ["layers 2, 4–6"]]
    assert named(["layer01", "layer02", "layer03"], [0, 0, 1]) == [["layer01", "layer02"], ["layer03"]]
    long = "9" * 5000
    assert named([f"layer.{long}1", f"layer.{long}2"], [0, 1]) == [[f"layer.{long}1"], [f"layer.{long}2"]]
    assert named(["h.0", "layer.0", "layer.1"], [0, 0, 1]) == [["h", "layer.0"], ["layer.1"]]
    many = find_parts(graph_of([f"layer.{k}" for k in range(80)]), np.arange(80, dtype=np.int32) % 2).parts[0]
    assert many.short == "layers 0, 2, 4 and 37 more" and many.name.count(",") == ALL_RANGES - 1


def test_phases_are_told_where_they_split_modules() -> None:
    """A layer that runs on one device for the prompt and on another for tokens is in both, each with its phase."""
    scopes = [f"layers.{k}" for k in range(4)] * 2
    phases = ("prefill", "decode")
    assert named(scopes, [0] * 4 + [1] * 4, phases=phases) == [["all of prefill"], ["all of decode"]]
    device = [0, 0, 0, 1, 1, 1, 1, 1]
    assert named(scopes, device, phases=phases) == [["layers 0–2 in prefill"], ["all of decode", "layer 3 in prefill"]]
    assert named(scopes, [0, 0, 1, 1] * 2, phases=phases) == [["layers 0–1"], ["layers 2–3"]]
    assert named(scopes, [0] * 4 + [1] * 4, backward=4) == [["all of the forward pass"], ["all of the backward pass"]]


def test_ops_without_modules_are_ranges() -> None:
    """Where most ops have no scope, ranges in the graph's order with their kinds; else those few are one part."""
    kinds = ("Conv", "Conv", "Relu", "com.microsoft::Gelu", "Conv")
    assert named([""] * 10, [0] * 7 + [1, 0, 0], kinds=kinds) == [
        ["ops 0–6 (Conv, Relu, …)", "ops 8–9 (Gelu, Conv)"], ["op op7 (Relu)"],
    ]  # fmt: skip
    assert named(["a", "a", "", "b", ""], [0, 0, 1, 1, 1]) == [["a"], ["2 ops in no module (Add)", "b"]]


def test_ops_of_very_many_modules_are_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of hundreds of thousands of modules takes seconds, and nobody reads their names."""
    graph = random_graph("layered", 60)
    device = np.arange(60) // 30
    assert any("row" in part.name for part in find_parts(graph, device).parts)
    monkeypatch.setattr(module_parts, "MOST_SCOPES", 10)
    names = [part.name.partition(" (")[0] for part in find_parts(graph, device).parts]
    assert sorted(names) == ["ops 0–29", "ops 30–59"]


def test_a_graph_without_ops_has_no_parts() -> None:
    """Nothing to place, nothing to say; and ops without a device are in no part."""
    assert find_parts(GraphBuilder().build(), np.zeros(0, np.int32)).parts == ()
    assert find_parts(graph_of(["a", "b"]), np.full(2, -1, np.int32)).parts == ()


def test_bytes_count_a_weight_once_per_part() -> None:
    """Tied weights count once in each part that uses them, and state counts for its op."""
    builder = GraphBuilder()
    for k in range(3):
        builder.add_op(f"op{k}", "Add", scope=f"m{k // 2}", state_bytes=k)
    shared = builder.add_weight("shared", shape=(100,), dtype="float32")
    for op in range(3):
        builder.use_weight(shared, op)
    graph = builder.build()
    assert held_bytes(graph, np.array([0, 0, 1]), np.arange(3), 2).tolist() == [401, 402]
    assert [part.bytes for part in find_parts(graph, np.array([0, 0, 1], np.int32)).parts] == [401, 402]
