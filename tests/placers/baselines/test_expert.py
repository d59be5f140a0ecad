"""expert: layers found by their scopes, even splits worked by hand, and the published experts' own values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from plain_rules import keeps_the_rules, placements
from published import EXPERTS, MS, RECORDED, WORKLOADS, needs_workloads
from soak import examples
from strategies import problems
from toy_problems import boxes

from placewise.core.place import place
from placewise.files.split_file import read_placement
from placewise.model.builder import GraphBuilder
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Problem
from placewise.placers.base import Budget, Hints, run_placer
from placewise.placers.baselines.expert import ExpertOptions, ExpertPlacer
from placewise.placers.baselines.expert_layers import find_layers
from placewise.readers.workload import read_workload
from placewise.simulate import judge_placement


def scoped(*scopes: str) -> Graph:
    """Ops in a row with these scopes, joined by tensors of one byte."""
    builder = GraphBuilder()
    for op, scope in enumerate(scopes):
        builder.add_op(f"op{op}", "Op", scope=scope)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    return builder.build()


def on(graph: Graph, devices: int, **options: object) -> Problem:
    """A scoped graph, a second per op, on equal accelerators; transfers take no time."""
    plain = boxes([0] * graph.n_ops, [9.0] * devices)
    n_classes = len(plain.cluster.class_bandwidth)
    costs = CostTable.given(np.ones((graph.n_ops, devices)), np.zeros((graph.n_tensors, n_classes)))
    return Problem(graph, plain.cluster, costs, plain.objective, **options)  # type: ignore[arg-type]


def test_layers_are_numbered_scopes() -> None:
    """Numbers after a name make layers, whatever is below them; what has none is in no layer."""
    graph = scoped("embed", "encoder.layer.0.mlp", "encoder.layer.0", "encoder.layer.1.attention.query", "head")
    layers = find_layers(graph, 2)
    assert layers is not None and not layers.recurrent
    assert layers.of.tolist() == [-1, 0, 0, 1, -1]
    assert layers.stack == ("encoder.layer", "encoder.layer") and layers.number == (0, 1)


def test_inner_layers_where_the_outer_ones_are_too_few() -> None:
    """Two stacks of two layers: two devices get stacks, three need layers."""
    graph = scoped("stack.0.layer.0", "stack.0.layer.1", "stack.1.layer.0", "stack.1.layer.1")
    few, many = find_layers(graph, 2), find_layers(graph, 3)
    assert few is not None and few.of.tolist() == [0, 0, 1, 1]
    assert many is not None and many.of.tolist() == [0, 1, 2, 3]


def test_steps_are_no_layers() -> None:
    """An unrolled layer is one layer with all its steps, and the model is known as recurrent, with its softmax last."""
    graph = scoped("layer.0.step.0", "layer.1.step.0", "layer.0.step.1", "layer.1.step.1", "softmax")
    layers = find_layers(graph, 2)
    assert layers is not None and layers.recurrent
    assert layers.of.tolist() == [0, 1, 0, 1, -1] and layers.last.tolist() == [False] * 4 + [True]


def test_without_numbers_there_are_no_layers() -> None:
    """One layer or none is not enough to split by."""
    assert find_layers(scoped("a", "b", ""), 2) is None
    assert find_layers(scoped("layer.0", "layer.0.x"), 2) is None


@pytest.mark.parametrize("contiguous", [False, True])
def test_four_layers_on_two_devices(contiguous: bool) -> None:
    """Embedding with the first layer, head with the last, two layers each."""
    graph = scoped("embed", *(f"layer.{number}" for number in (0, 0, 1, 1, 2, 2, 3, 3)), "head")
    problem = on(graph, 2, constraints=Constraints(contiguous=contiguous))
    proposal = run_placer(ExpertPlacer(), problem, Budget())
    assert proposal.placement is not None
    assert proposal.placement.device.tolist() == [0] * 5 + [1] * 5


def test_recurrent_layers_have_a_device_each() -> None:
    """Two layers unrolled over three steps: all steps of a layer are together, the softmax is with the last."""
    steps = [f"layer.{layer}.step.{step}" for step in range(3) for layer in range(2)]
    proposal = run_placer(ExpertPlacer(), on(scoped(*steps, "softmax"), 2), Budget())
    assert proposal.placement is not None
    assert proposal.placement.device.tolist() == [0, 1, 0, 1, 0, 1, 1]


def test_without_scopes_work_is_even() -> None:
    """Six ops in a row on three devices: two each, in their order."""
    proposal = run_placer(ExpertPlacer(), boxes([0] * 6, [9, 9, 9]), Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 0, 1, 1, 2, 2]


def test_memory_is_kept() -> None:
    """The even split of 5, 1, 3 and 3 bytes fits devices of 6 bytes; that of 1, 1, 3 and 3 does not, and is moved."""
    for sizes in ([5, 1, 3, 3], [1, 1, 3, 3]):
        problem = boxes(sizes, [6, 5], constraints=Constraints(contiguous=True))
        proposal = run_placer(ExpertPlacer(), problem, Budget())
        fits = sizes[0] == 1
        assert (proposal.placement is not None) == fits
        if proposal.placement is not None:
            assert judge_placement(problem, proposal.placement).valid


@examples(20)
@given(problems(max_ops=6))
def test_experts_keep_the_rules(problem: Problem) -> None:
    """Whatever is proposed is valid and comes twice the same; no proof of infeasibility is wrong."""
    proposal = run_placer(ExpertPlacer(), problem, Budget(seed=1))
    assert proposal.placement == run_placer(ExpertPlacer(), problem, Budget(seed=1)).placement
    if proposal.placement is not None:
        assert {violation.kind for violation in judge_placement(problem, proposal.placement).violations} <= {"calls"}
        return
    assert proposal.notes or proposal.infeasible
    if proposal.infeasible:
        assert not any(keeps_the_rules(problem, device) for device, _ in placements(problem))


def test_a_split_by_hand_is_taken_as_it_stands() -> None:
    """The first hint is the expert's split, however bad; one that breaks a rule is told of; the option ignores both."""
    problem = boxes([3, 3, 3], [6, 6])
    odd = Placement(np.array([1, 0, 1], np.int32))
    assert run_placer(ExpertPlacer(), problem, Budget(), hints=Hints((odd,))).placement == odd
    full = run_placer(ExpertPlacer(), problem, Budget(), hints=Hints((Placement.on(0, 3),)))
    assert full.placement is None and "short" in full.notes[0]
    own = run_placer(ExpertPlacer(ExpertOptions(hint=False)), problem, Budget(), hints=Hints((odd,)))
    assert own.placement is not None and own.placement != odd


@needs_workloads
@pytest.mark.parametrize(("kind", "graph"), [key for key, broken in EXPERTS.items() if not broken])
def test_published_experts(kind: str, graph: str) -> None:
    """Given the published split, `expert` has the value that was recorded for it."""
    problem = read_workload(WORKLOADS / kind / f"{graph}.json", objective=kind).problem
    assert problem is not None
    split = WORKLOADS / "human-experts" / f"{graph.split('/')[1]}_expert.json"
    if not split.exists():
        split = split.with_name(split.name.replace("training", "inference"))
    extended, placement = read_placement(split, problem)
    result = place(extended, ExpertPlacer.info.name, Budget(), hints=Hints((placement,)))
    assert result.value == pytest.approx(RECORDED[kind][graph]["expert"]["value"] * MS, rel=1e-5)


@needs_workloads
@pytest.mark.parametrize(("kind", "graph"), [key for key, broken in EXPERTS.items() if broken])
def test_published_experts_that_break_rules(kind: str, graph: str) -> None:
    """Splits that use more than there is are not proposed, and the note says which rule they break."""
    problem = read_workload(WORKLOADS / kind / f"{graph}.json", objective=kind).problem
    assert problem is not None
    extended, placement = read_placement(WORKLOADS / "human-experts" / f"{graph.split('/')[1]}_expert.json", problem)
    result = place(extended, ExpertPlacer.info.name, Budget(), hints=Hints((placement,)))
    assert result.placement is None and any("breaks a rule" in note for note in result.notes)


def test_numbers_of_thousands_of_digits_number_no_layer() -> None:
    """A scope may hold any text: what is too long to be a number is part of a name."""
    builder = GraphBuilder()
    for op in range(4):
        builder.add_op(f"op{op}", "Work", scope=f"{'7' * 5000}.layers.{op}")
    found = find_layers(builder.build(), 2)
    assert found is not None and len(set(found.of.tolist())) == 4
