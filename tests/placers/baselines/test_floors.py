"""random and round_robin, the floors: valid on random problems, uniform, in turn, and in a row where that is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from plain_rules import keeps_the_rules, placements
from soak import examples
from strategies import problems
from toy_problems import boxes

from placewise.model.problem import Constraints, Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.baselines.random import RandomOptions, RandomPlacer
from placewise.simulate import evaluate, judge_placement

PLACERS = [RandomPlacer(), RandomPlacer(RandomOptions(samples=4)), RandomPlacer(RandomOptions(draw="round_robin"))]


@examples(20)
@given(problems(max_ops=6))
def test_floors_keep_the_rules(problem: Problem) -> None:
    """Whatever is proposed is valid and comes twice the same; no proof of infeasibility is wrong."""
    for placer in PLACERS:
        proposal = run_placer(placer, problem, Budget(seed=1))
        assert proposal.placement == run_placer(placer, problem, Budget(seed=1)).placement
        if proposal.placement is not None:
            assert {violation.kind for violation in judge_placement(problem, proposal.placement).violations} <= {
                "calls"
            }
            continue
        assert proposal.notes or proposal.infeasible
        if proposal.infeasible:
            assert not any(keeps_the_rules(problem, device) for device, _ in placements(problem))


def test_round_robin_deals_in_turn() -> None:
    """Seven ops on three equal accelerators: 0, 1, 2, 0, 1, 2, 0."""
    proposal = run_placer(RandomPlacer(RandomOptions(draw="round_robin")), boxes([1] * 7, [9, 9, 9]), Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_makes_stages_of_equal_count() -> None:
    """Where stages must follow each other, seven ops become 3, 2 and 2."""
    problem = boxes([1] * 7, [9, 9, 9], constraints=Constraints(contiguous=True))
    proposal = run_placer(RandomPlacer(RandomOptions(draw="round_robin")), problem, Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("placer", PLACERS)
def test_stages_that_barely_fit(placer: RandomPlacer) -> None:
    """5, 1, 3 and 3 bytes in a row on devices of 6 bytes: only one cut fits, and it is found."""
    problem = boxes([5, 1, 3, 3], [6, 6], constraints=Constraints(contiguous=True))
    proposal = run_placer(placer, problem, Budget(seed=3))
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 0, 1, 1]


def test_random_is_uniform() -> None:
    """Of 3,000 ops about a third is on each of three devices: within five standard deviations."""
    proposal = run_placer(RandomPlacer(), boxes([0] * 3000, [9.0, 8.0, 7.0]), Budget(seed=5))
    assert proposal.placement is not None
    counts = np.bincount(proposal.placement.device, minlength=3)
    assert (abs(counts - 1000) < 5 * (3000 * 2 / 9) ** 0.5).all()


def test_more_samples_are_never_worse() -> None:
    """The best of eight draws is no worse than the first of them, which is the only draw otherwise."""
    problem = boxes([1, 2, 3, 4, 5, 6, 7, 8], [30, 30])
    one = run_placer(RandomPlacer(), problem, Budget(seed=2)).placement
    best = run_placer(RandomPlacer(RandomOptions(samples=8)), problem, Budget(seed=2)).placement
    assert one is not None and best is not None
    values = evaluate(problem, np.stack((one.device, best.device)))
    assert values[1] <= values[0]
    assert RandomPlacer(RandomOptions(samples=0)).supports(problem)
    assert RandomPlacer(RandomOptions(samples=2, draw="round_robin")).supports(problem)
