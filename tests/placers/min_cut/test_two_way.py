"""two_way: the minimum cut equals the best of all placements; bounds hold where calls cost or memory binds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from plain_rules import placements
from simulate_problems import problems
from soak import examples

from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Outcome
from placewise.placers.min_cut.placer import MinCutOptions, MinCutPlacer
from placewise.simulate import judge_placement

SIFTED = [HealthCheck.filter_too_much]
"""Few problems that are drawn have two devices and a host."""
SEQUENTIAL = Objective("latency", execution="sequential", memory="sum")


def on_two_devices(problem: Problem, *, overhead: bool, memory: bool) -> Problem:
    """The same on its host and first accelerator (the first two devices if there is no such pair)."""
    cluster = problem.cluster
    assume(len(cluster) == 2 and cluster.is_host.any())
    devices = tuple(
        replace(d, call_overhead=d.call_overhead if overhead else 0.0, memory=d.memory if memory else math.inf)
        for d in cluster
    )
    return problem.with_(cluster=replace(cluster, devices=devices), constraints=Constraints(), objective=SEQUENTIAL)


def best_of_all(problem: Problem) -> float:
    """The least value of all placements that keep every rule."""
    found = (judge_placement(problem, Placement(np.array(device, np.int32))) for device, _ in placements(problem))
    return min((judged.value for judged in found if judged.valid), default=math.inf)


@examples(15, suppress_health_check=SIFTED)
@given(problems(max_ops=7, max_devices=2))
def test_the_cut_is_the_optimum(problem: Problem) -> None:
    """Calls are free and nothing is short of memory: optimal, proved, equal to brute force."""
    problem = on_two_devices(problem, overhead=False, memory=False)
    result = place(problem, "two_way")
    best = best_of_all(problem)
    if result.placement is None:
        assert math.isinf(best)
        return
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.status.outcome is Outcome.OPTIMAL


@examples(20, suppress_health_check=SIFTED)
@given(problems(max_ops=7, max_devices=2, scarce=True))
def test_its_bound_holds_where_calls_cost_and_memory_is_short(problem: Problem) -> None:
    """Bound ≤ optimum ≤ value; no placement where there is none."""
    problem = on_two_devices(problem, overhead=True, memory=True)
    best = best_of_all(problem)
    result = place(problem, "two_way")
    assert result.lower_bound <= best * (1 + 1e-12)
    assert result.placement is None or (result.judgement is not None and result.judgement.valid)
    assert result.value >= best * (1 - 1e-12) if result.placement is not None else True


def test_what_it_does_not_take() -> None:
    """Other executions, three devices, no host: refused in words."""
    from toy_problems import boxes

    problem = boxes([1, 1], [9, 9], kind="latency")
    placer = MinCutPlacer(MinCutOptions("two_way"))
    assert "take turns" in str(placer.supports(problem))
    assert "two sides" in str(placer.supports(problem.with_(objective=SEQUENTIAL)))
