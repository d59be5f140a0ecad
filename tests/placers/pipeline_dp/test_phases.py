"""dp and dpl for training pipelines that flush: against brute force, and with their proofs."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import itemgetter

import pytest
from hypothesis import given
from line_optimum import best_along
from plain_rules import keeps_the_rules, placements
from simulate_problems import random_problem, seeded
from soak import examples, seeds
from strategies import problems

from placewise.core.place import place
from placewise.model.problem import Objective, Problem
from placewise.model.result import Outcome
from placewise.placers.base import Budget, run_placer
from placewise.placers.pipeline_dp.placer import DpOptions, DpPlacer
from placewise.placers.pipeline_dp.topological_orders import sort_last_ready_first
from placewise.placers.registry import create
from placewise.placers.shared.stages import stage_costs
from placewise.placers.shared.stages.phase_dp import price_phases
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract
from placewise.simulate.phases import two_phases

STAGED = {"kind": "throughput", "contiguous": True, "memory_model": "sum", "transfers": "staged", "wires": False}


def flushing(problem: Problem) -> Problem:
    return problem.with_(objective=replace(problem.objective, schedule="gpipe"))


def optimum(problem: Problem) -> float:
    """The least value of any placement that keeps the rules, live tensors included; inf if there is none."""
    live = problem.objective.memory == "live"
    by_value = sorted(placements(problem), key=itemgetter(1))
    return next((value for device, value in by_value if not live or keeps_the_rules(problem, device)), math.inf)


@examples(40)
@given(problems(training=True, max_ops=8, **STAGED))
def test_pipelines_that_flush_are_optimal(problem: Problem) -> None:
    """In every communication mode the proposal has the brute-force optimum, and the bound is the optimum."""
    problem = flushing(problem)
    best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None and proposal.infeasible
        return
    assert proposal.placement is not None and proposal.bound is not None
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid and judged.value == pytest.approx(best, rel=1e-12)
    assert best * (1 - 1e-9) <= proposal.bound.value <= best


@examples(25)
@given(problems(kind="throughput", training=True, contiguous=True, max_ops=6))
def test_bounds_hold_whatever_the_links_and_the_memory_model(problem: Problem) -> None:
    """Direct links, shared wires and live activations: bound ≤ optimum, and what is proposed keeps the rules."""
    problem = flushing(problem)
    best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget())
    assert proposal.bound is None or proposal.bound.value <= best
    if proposal.placement is not None:
        judged = judge_placement(problem, proposal.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)


@examples(20)
@given(problems(training=True, max_ops=6, **STAGED))
def test_dpl_is_the_best_split_of_its_line(problem: Problem) -> None:
    """Brute force over all splits of the same line finds nothing better."""
    problem = flushing(problem)
    graph, proposal = contract(problem), run_placer(DpPlacer(DpOptions(method="line")), problem, Budget())
    value = math.inf if proposal.placement is None else judge_placement(problem, proposal.placement).value
    assert value == pytest.approx(best_along(problem, graph, sort_last_ready_first(problem, graph)), rel=1e-12)


@examples(15)
@given(problems(training=True, max_ops=6, **STAGED))
def test_a_gap_ends_the_search_with_a_true_bound(problem: Problem) -> None:
    """With a gap of 20 % the bound holds and the value is within 20 % of it, whatever was left open."""
    problem = flushing(problem)
    best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget(gap=0.2))
    if proposal.placement is not None and proposal.bound is not None:
        value = judge_placement(problem, proposal.placement).value
        assert proposal.bound.value <= best <= value <= proposal.bound.value * 1.25 * (1 + 1e-9)


@pytest.mark.usefixtures("brief_proofs")
@examples(8)
@given(problems(kind="throughput", training=True, rules=False, max_ops=6))
@pytest.mark.parametrize("placer", ["auto", "cover", "cpsat"])
def test_other_placers_stay_honest(placer: str, problem: Problem) -> None:
    """Free or contiguous: what others propose is judged as it flushes, and no bound is above the optimum."""
    problem = flushing(problem)
    if create(placer).supports(problem) is not None:
        return
    best, result = optimum(problem), place(problem, placer, Budget(iterations=2))
    if result.placement is not None:
        assert result.lower_bound <= best * (1 + 1e-12)
        assert result.value >= best * (1 - 1e-12)
    if result.status.outcome is Outcome.OPTIMAL:
        assert result.value == pytest.approx(best, rel=2e-6)


def test_halves_add_up() -> None:
    """Both halves of the stage costs together are the whole, tensor by tensor and component by component."""
    for seed in seeds(40):
        problem = flushing(random_problem(seeded(seed), objective=Objective("throughput"), training=True))
        if not two_phases(problem):
            continue
        graph = contract(problem)
        whole = stage_costs.price_stages(problem, graph.component, graph.n, problem.capacity).costs
        both = price_phases(problem, graph.component, graph.n, problem.capacity).costs
        n_rates = whole.enter.shape[1]
        assert (both.enter[:, :n_rates] + both.enter[:, n_rates:] == whole.enter).all()
        assert (both.leave[:, :n_rates] + both.leave[:, n_rates:] == whole.leave).all()
        assert len(both.rate) == 2 * len(both.n_devices)
