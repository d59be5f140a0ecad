"""cpsat: the published integer program against brute force over all placements, contiguous and free."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from plain_rules import placements
from strategies import problems

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Hints
from placewise.placers.exact.cpsat import CpsatOptions, CpsatPlacer
from placewise.simulate import evaluate, simulate


def optimum(problem: Problem) -> float:
    """The least max-load of any placement that keeps the rules; inf if there is none."""
    return min((value for _, value in placements(problem)), default=math.inf)


@settings(max_examples=150, deadline=None)
@given(problems(kind="throughput", memory_model="sum", transfers="staged", wires=False, max_ops=5))
def test_the_program_is_the_optimum(problem: Problem) -> None:
    """Contiguous and free, in every mode: the brute-force optimum with its proof, or the proof that there is none."""
    best, proposal = optimum(problem), CpsatPlacer().propose(problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None and proposal.infeasible and proposal.reason is Reason.PROVED
        return
    assert proposal.placement is not None and proposal.bound is not None
    judged = simulate(problem, proposal.placement)
    assert judged.valid
    assert judged.value == pytest.approx(best, rel=1e-5)
    assert best * (1 - 1e-5) <= proposal.bound.value <= best


@settings(max_examples=60, deadline=None)
@given(problems(kind="throughput", max_ops=5))
def test_bounds_hold_whatever_the_links_and_the_memory_model(problem: Problem) -> None:
    """Direct links, shared wires and live activations: bound ≤ optimum, and what is proposed keeps the rules."""
    best, proposal = optimum(problem), CpsatPlacer().propose(problem, Budget())
    if proposal.bound is not None:
        assert proposal.bound.value <= best
    if proposal.infeasible:
        assert not any(simulate(problem, Placement(np.array(device))).valid for device, _ in placements(problem))
    if proposal.placement is not None:
        judged = simulate(problem, proposal.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)


@settings(max_examples=25, deadline=None)
@given(problems(kind="throughput", memory_model="sum", transfers="staged", wires=False, max_ops=5))
def test_coarse_units_cost_quality_and_never_the_proof(problem: Problem) -> None:
    """With sixteen units to a value the bound still holds, and a hint is never made worse."""
    found = list(placements(problem))
    best = min((value for _, value in found), default=math.inf)
    proposal = CpsatPlacer(CpsatOptions(units=16)).propose(problem, Budget())
    assert proposal.bound is None or proposal.bound.value <= best
    if proposal.placement is not None:
        again = CpsatPlacer(CpsatOptions(units=16)).propose(problem, Budget(), hints=Hints((proposal.placement,)))
        assert again.placement is not None
        values = [evaluate(problem, p.device[None])[0] for p in (proposal.placement, again.placement)]
        assert best <= values[1] <= values[0] * (1 + 1e-12)
