"""Sets of ops that share a device: by name, by pattern, joined with the graph's own groups."""

from __future__ import annotations

import pytest

from placewise.api import place
from placewise.core.build import build, build_for_plan
from placewise.core.options import ProblemOptions
from placewise.errors import InputError
from placewise.model.placement import Placement
from placewise.model.problem import scopes_together
from placewise.simulate import judge_placement

MODEL, DIMS = "examples/models/bert_base.onnx", {"batch": 1, "seq": 8}


def test_a_pattern_makes_a_set_per_text_that_it_finds():
    """Twelve layers make twelve sets, and the rest of the model moves op by op."""
    graph = build(MODEL, "2xL4,cpu", ProblemOptions(dims=DIMS)).graph
    sets = scopes_together(graph, [r"layer\.\d+"])
    assert len(sets) == 12
    problem = build(MODEL, "2xL4,cpu", ProblemOptions(dims=DIMS, together=(r"layer\.\d+",)))
    assert problem.n_blocks == 12 + graph.n_ops - sum(map(len, sets))


def test_sets_that_overlap_are_one():
    """A set that shares an op with another moves with it."""
    first, second, third = build(MODEL, "2xL4,cpu", ProblemOptions(dims=DIMS)).graph.ops.name[:3]
    problem = build(MODEL, "2xL4,cpu", ProblemOptions(dims=DIMS, together=((first, second), (second, third))))
    assert problem.block[0] == problem.block[1] == problem.block[2]
    torn = [0] * problem.n_ops
    torn[2] = 1
    violations = judge_placement(problem, Placement(torn)).violations
    assert [violation.kind for violation in violations] == ["colocation"]


def test_a_plan_keeps_its_sets(tmp_path):
    """A plan that was made with sets is checked with them, and keeps them."""
    plan = place(MODEL, "2xL4,cpu", dims=DIMS, together=[r"layer\.\d+"], placer="heft")
    plan.save(tmp_path / "plan.json")
    problem, placement = build_for_plan(MODEL, tmp_path / "plan.json")
    assert problem.constraints.together == plan.problem.constraints.together
    assert judge_placement(problem, placement).valid


@pytest.mark.parametrize("wrong", ["nowhere", "(", 3, [("no op",)]])
def test_what_means_nothing_is_refused(wrong):
    """A pattern that finds nothing or is none, and names that no op has."""
    with pytest.raises(InputError):
        build(MODEL, "2xL4,cpu", ProblemOptions(dims=DIMS, together=wrong))
