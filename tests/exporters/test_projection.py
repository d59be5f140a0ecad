"""Projection: a cut that a target cannot say becomes the nearest that it can, and the judge says what that costs."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from export_models import on, stack_graph, stack_problem
from hypothesis import given
from hypothesis import strategies as st
from simulate_problems import random_placement, random_problem
from soak import examples

from placewise.errors import ExportError
from placewise.exporters import stages
from placewise.exporters.projection import cut_into_stages, order_devices, project_units, range_bytes, stage_devices
from placewise.exporters.stack import find_stack, op_seconds_on
from placewise.exporters.stages import find_stages
from placewise.model.builder import GraphBuilder
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.simulate.blocks import storage_bytes


def moved(problem: Problem, before: Placement, after: Placement) -> float:
    """Seconds of the ops that are elsewhere afterwards."""
    return float(op_seconds_on(problem, before.device)[before.device != after.device].sum())


def test_half_a_layer_goes_back_to_where_most_of_it_is() -> None:
    """Four layers of 1 + 2 s, cut inside layer 1 behind its first second: that second moves on, and 7 s become 10 s.

    Before, cuda:0 has the embedding, layer 0 and one second (1 + 3 + 1 = 5), cuda:1 the rest (2 + 3 + 3 + 1 = 9).
    Layer 1 has two of its three seconds on cuda:1: cuda:0 keeps 4, and cuda:1 has 10.
    """
    graph = stack_graph(4)
    seconds = {f"layers.{layer}.mlp": 2.0 for layer in range(4)}
    problem = stack_problem(graph, cpu=False, seconds=seconds)
    late = {scope: "cuda:1" for scope in graph.ops.scope if scope not in ("embed", "layers.0.attn", "layers.0.mlp")}
    plan = on(problem, late | {"layers.1.attn": "cuda:0"})
    stages = find_stages(problem, plan, "test")
    assert judge_placement(problem, plan).value == pytest.approx(9.0)
    assert stages.devices == ((0,), (1,)) and stages.layers == (1, 3)
    assert judge_placement(problem, stages.placement).value == pytest.approx(10.0)
    assert moved(problem, plan, stages.placement) == 1.0


def test_a_plan_that_stages_can_say_is_kept_as_it_is() -> None:
    """Whole layers in order come back unchanged, also where the devices stand the other way round."""
    problem = stack_problem(stack_graph(4), cpu=False)
    plan = on(problem, {"embed": "cuda:1", "layers.0.attn": "cuda:1", "layers.0.mlp": "cuda:1"})
    stages = find_stages(problem, plan, "test")
    assert stages.placement == plan and stages.devices == ((1,), (0,)) and stages.layers == (1, 3)


def test_what_a_host_ran_is_shared_out_where_that_is_faster() -> None:
    """The host has 4 of 6 layers of 2 s: all of them beside layer 4 would take 12 s, three layers each take 7 s."""
    graph = stack_graph(6)
    host = {f"layers.{layer}.{part}": "cpu" for layer in range(4) for part in ("attn", "mlp")}
    plan_on = {"embed": "cpu"} | host | {"layers.5.attn": "cuda:1", "layers.5.mlp": "cuda:1", "head": "cuda:1"}
    problem = stack_problem(graph)
    stages = find_stages(problem, on(problem, plan_on), "test")
    assert stages.layers == (3, 3)
    assert judge_placement(problem, stages.placement).value == pytest.approx(7.0)


def test_memory_moves_the_cut() -> None:
    """Each layer holds 20 bytes of weights: a device of 65 bytes takes the embedding and two layers, not three."""
    graph = stack_graph(4, weight=10)
    late = {scope: "cuda:1" for scope in graph.ops.scope if scope.startswith("layers.3") or scope == "head"}
    roomy, tight = stack_problem(graph, cpu=False), stack_problem(graph, cpu=False, memory=65.0)
    assert find_stages(roomy, on(roomy, late), "test").layers == (3, 1)
    stages = find_stages(tight, on(tight, late), "test")
    assert stages.layers == (2, 2) and judge_placement(tight, stages.placement).valid


@examples(60)
@given(st.data())
def test_stages_are_as_near_as_any_cut(data: st.DataObject) -> None:
    """Where every device has a stage, no cut of the line moves fewer seconds."""
    problem = stack_problem(
        stack_graph(4), gpus=3, cpu=False, seconds={f"layers.{n}.mlp": data.draw(st.integers(0, 5)) for n in range(4)}
    )
    plan = Placement(np.array(data.draw(st.lists(st.integers(0, 2), min_size=10, max_size=10)), np.int32))
    unit = np.repeat(np.arange(5, dtype=np.int32), 2)
    line = order_devices(problem, plan, unit, np.ones(3, np.bool_))
    best = min(
        moved(problem, plan, Placement(stage_devices((0, *cuts, 5), line)[unit]))
        for cuts in combinations_with_replacement(range(6), len(line) - 1)
    )
    found = cut_into_stages(problem, plan, unit, line)
    assert list(found) == sorted(found) and (found[0], found[-1]) == (0, 5)
    assert moved(problem, plan, Placement(stage_devices(found, line)[unit])) == pytest.approx(best, abs=1e-3)


@examples(40)
@given(st.data())
def test_the_nearest_placement_by_unit_is_as_near_as_any(data: st.DataObject) -> None:
    """Without a lack of memory, no placement of whole units (and blocks) moves fewer seconds."""
    choose = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    problem = random_problem(choose, max_ops=5, max_devices=3, training=False)
    plan = random_placement(problem, choose)
    unit = np.array([choose(0, 2) for _ in range(problem.n_ops)], np.int32)
    found = project_units(problem, plan, unit)
    whole = [Placement(np.array(homes, np.int32)[unit]) for homes in product(range(problem.n_devices), repeat=3)]
    blocks = [p for p in whole if all(len(set(p.device[problem.block == b].tolist())) == 1 for b in problem.block)]
    assert any(np.array_equal(found.device, placement.device) for placement in blocks)
    best = min(moved(problem, plan, placement) for placement in blocks)
    assert moved(problem, plan, found) == pytest.approx(best, abs=1e-6)


def test_units_go_where_memory_is() -> None:
    """Two units want a device that has room for one: the one that would lose less goes elsewhere."""
    graph = stack_graph(2, weight=10)
    problem = stack_problem(graph, seconds={"layers.1.mlp": 5.0}, memory=45.0)
    unit = np.array([0, 1, 1, 2, 2, 3], np.int32)
    plan = on(problem, {"embed": "cpu", "head": "cpu"})
    assert project_units(problem, plan, unit).device.tolist() == [2, 0, 0, 0, 0, 2]
    tight = stack_problem(graph, seconds={"layers.1.mlp": 5.0}, memory=25.0)
    found = project_units(tight, plan, unit)
    assert found.device[3] == found.device[4] == 0 and found.device[1] == found.device[2] != 0
    assert judge_placement(tight, found).valid


@examples(100)
@given(st.data())
def test_bytes_of_ranges_are_counted_op_by_op(data: st.DataObject) -> None:
    """Of the units from i to j: the state of their ops, and every storage that one of these uses, once."""
    choose = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    problem = random_problem(choose, training=False)
    graph, count = problem.graph, choose(1, 5)
    unit = np.array([choose(0, count - 1) for _ in range(problem.n_ops)], np.int32)
    resident, size = range_bytes(problem, unit, count), storage_bytes(graph)
    for i, j in combinations_with_replacement(range(count), 2):
        ops = np.flatnonzero((i <= unit) & (unit <= j)).tolist()
        used = {int(graph.weights.storage[weight]) for op in ops for weight in graph.weights_of(op)}
        assert resident[i, j] == graph.ops.state_bytes[ops].sum() + size[list(used)].sum()


def test_very_long_stacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of all ranges of layers has a cell per pair of them."""
    problem = stack_problem(stack_graph(4), cpu=False)
    monkeypatch.setattr(stages, "MOST_LAYERS", 3)
    with pytest.raises(ExportError, match="numbers 4 layers here, more than 3"):
        find_stages(problem, on(problem, {}), "test")


def test_layers_of_ops_without_a_scope() -> None:
    """They go with the layer that they read; behind the last layer they come after it, unless a layer needs them."""
    builder = GraphBuilder()
    tensors = [builder.add_tensor(-1, nbytes=1)]
    for name, scope, reads in (
        ("embed", "", [0]), ("mask", "", [0]), ("a0", "m.layers.0.attn", [1, 2]), ("add0", "m", [3]),
        ("a1", "m.layers.1.attn", [4]), ("add1", "m", [5]), ("norm", "m.norm", [6]), ("aside", "", [3]),
    ):  # fmt: skip
        op = builder.add_op(name, "Attention" if "attn" in scope else "Add", scope=scope)
        for read in reads:
            builder.add_edge(tensors[read], op)
        tensors.append(builder.add_tensor(op, nbytes=1))
    graph = builder.build()
    stack = find_stack(stack_problem(graph))
    assert stack is not None and stack.path == "m.layers" and stack.count == 2
    found = dict(zip(graph.ops.name, stack.of.tolist(), strict=True))
    assert found == {
        "embed": -1, "mask": -1, "a0": 0, "add0": 0, "a1": 1, "add1": 2, "norm": 2, "aside": 0
    }  # fmt: skip
