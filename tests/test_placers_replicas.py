"""dp and dpl with replicated stages: against brute force, with proof, along lines, and what they leave to others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rules import placements, with_replicas
from strategies import problems

from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget
from placewise.placers.exact.dp import DpPlacer
from placewise.simulate import simulate


@st.composite
def shared(draw: st.DrawFn, **options: object) -> Problem:
    """A contiguous pipeline on up to four devices, of which any number may share a stage."""
    given_: dict[str, object] = {"transfers": "staged", "memory_model": "sum", "wires": False, **options}
    problem = draw(problems(kind="throughput", contiguous=True, max_ops=4, max_devices=4, **given_))  # type: ignore[arg-type]
    return problem.with_(
        objective=replace(
            problem.objective,
            step_samples=draw(st.sampled_from([0, 0, 3, 8])),
            schedule=draw(st.sampled_from(["1f1b", "1f1b", "gpipe"])),
        ),
        constraints=replace(problem.constraints, replicas=draw(st.sampled_from([0, 0, 0, 2]))),
    )


def optimum(problem: Problem) -> float:
    """The least max-load of any placement that keeps the rules, replicas and all; inf if there is none."""
    return min((value for _, value in with_replicas(problem, placements(problem))), default=math.inf)


@settings(max_examples=300, deadline=None)
@given(shared())
def test_replicated_pipelines_are_optimal(problem: Problem) -> None:
    """The proposal reaches the brute-force optimum, and the bound is the optimum."""
    best, proposal = optimum(problem), DpPlacer().propose(problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None and proposal.infeasible and proposal.reason is Reason.PROVED
        return
    assert proposal.placement is not None and proposal.bound is not None
    judged = simulate(problem, proposal.placement)
    assert judged.valid
    assert judged.value == pytest.approx(best, rel=1e-11, abs=1e-15)
    assert best * (1 - 1e-9) <= proposal.bound.value <= best


@settings(max_examples=80, deadline=None)
@given(shared(transfers=None, memory_model=None, wires=True))
def test_bounds_hold_whatever_the_links_and_the_memory_model(problem: Problem) -> None:
    """Direct links, shared wires and live activations: bound ≤ optimum, and what is proposed keeps the rules."""
    best, proposal = math.inf, DpPlacer().propose(problem, Budget())
    for placement, value in with_replicas(problem, placements(problem)):
        if value < best and simulate(problem, placement).valid:
            best = value
    if proposal.bound is not None:
        assert proposal.bound.value <= best
    if proposal.infeasible:
        assert math.isinf(best)
    if proposal.placement is not None:
        judged = simulate(problem, proposal.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)
