"""local for throughput: valid whatever is asked, optimal on small problems, never worse than what it starts from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rules import optimum
from published import RECORDED, WORKLOADS, needs_workloads
from soak import examples
from strategies import problems

from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Hints, Progress, run_placer
from placewise.placers.local_search.local import LocalOptions, LocalPlacer
from placewise.placers.shared.rules import find_broken_rule
from placewise.readers.workload import read_workload
from placewise.simulate import evaluate, judge_placement

FREE = {"kind": "throughput", "contiguous": False, "convex": False}


def optimal(problem: Problem) -> None:
    """What is proposed is valid and as good as any placement, or there is none."""
    best, proposal = optimum(problem), run_placer(LocalPlacer(), problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None
        return
    assert proposal.placement is not None, proposal.notes
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid and judged.value == pytest.approx(best, rel=1e-12, abs=1e-15)


@examples(20)
@given(problems(memory_model="sum", max_ops=6, **FREE))
def test_free_placements_are_optimal(problem: Problem) -> None:
    """Staged and direct links, wires, hosts, memory, rules, training graphs: the brute-force optimum."""
    optimal(problem)


@examples(12)
@given(problems(kind="throughput", contiguous=True, convex=False, memory_model="sum", max_ops=6))
def test_chains_of_stages_are_optimal(problem: Problem) -> None:
    """Where stages must be contiguous they are, and none are better."""
    optimal(problem)


@examples(20)
@given(problems(**FREE, memory_model="sum", training=True, max_ops=6))
def test_pipelines_that_flush_are_optimal(problem: Problem) -> None:
    """With the schedule gpipe the two phases together are as small as they can be."""
    optimal(problem.with_(objective=replace(problem.objective, schedule="gpipe")))


@examples(15)
@given(problems(kind="throughput", max_ops=7))
def test_proposals_keep_the_rules_and_come_twice(problem: Problem) -> None:
    """Live activations, convex stages and all: what is proposed is valid, and the same the second time."""
    proposal = run_placer(LocalPlacer(), problem, Budget(seed=3))
    assert proposal.placement == run_placer(LocalPlacer(), problem, Budget(seed=3)).placement
    if proposal.placement is None:
        assert proposal.notes or proposal.infeasible
    else:
        assert judge_placement(problem, proposal.placement).valid


@examples(20)
@given(problems(kind="throughput", max_ops=7), st.integers(0, 1000))
def test_hints_are_kept_or_improved(problem: Problem, seed: int) -> None:
    """Nothing worse than the best hint that keeps the rules comes back, however little work is allowed."""
    rng = np.random.default_rng(seed)
    hints = [rng.integers(0, problem.n_devices, problem.n_blocks)[problem.block].astype(np.int32) for _ in range(4)]
    kept = [hint for hint in hints if not find_broken_rule(problem, hint)]
    proposal = run_placer(LocalPlacer(), problem, Budget(evaluations=1), hints=Hints(tuple(map(Placement, hints))))
    if kept:
        assert proposal.placement is not None
        assert evaluate(problem, proposal.placement.device)[0] <= evaluate(problem, np.stack(kept)).min()


def test_options_are_checked() -> None:
    """No rounds make no search."""
    with pytest.raises(PlacerError, match="rounds"):
        LocalOptions(rounds=0)


@examples(10)
@given(problems(kind="throughput", max_ops=7))
def test_threads_do_not_change_the_answer(problem: Problem) -> None:
    """Where no clock ends the search, one thread finds what three find."""
    budgets = (Budget(seed=5, threads=threads) for threads in (1, 3))
    one, three = (run_placer(LocalPlacer(LocalOptions(2)), problem, budget) for budget in budgets)
    assert one.placement == three.placement


@needs_workloads
@pytest.mark.parametrize("name", ["OperatorGraphs/bert_l-3_inference", "OperatorGraphs/bert_l-6_inference"])
def test_published_workloads(name: str) -> None:
    """Without contiguity it is no worse than the published dynamic program, and says how it goes on."""
    problem = read_workload(WORKLOADS / "throughput" / f"{name}.json", objective="throughput").problem
    assert problem is not None
    free = problem.with_(constraints=replace(problem.constraints, contiguous=False))
    heard: list[Progress] = []
    proposal = run_placer(LocalPlacer(), free, Budget(), on_progress=heard.append)
    assert proposal.placement is not None and proposal.reason is Reason.FINISHED
    judged = judge_placement(free, proposal.placement)
    assert judged.valid and judged.value * 1e3 <= RECORDED["throughput"][name]["dp"]["value"] * (1 + 1e-9)
    assert all(said.value is not None and said.value >= judged.value * (1 - 1e-9) for said in heard)
