"""Time limits that are over before anything began: what is asked for is answered all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulate_problems import random_problem, seeded
from soak import seeds
from split_problems import split_problem
from step_problems import step_problem

from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers import registry
from placewise.placers.base import Budget, run_placer
from placewise.simulate import judge_placement

OVER = Budget(seconds=1e-9)
KINDS: dict[str, tuple[Callable[[int], Problem], str]] = {
    "whole ops": (lambda seed: random_problem(seeded(seed)), "single"),
    "split ops": (split_problem, "uniform"),
    "training steps": (lambda seed: step_problem(seed, layers=6, devices=3, microbatches=3, hosts=False), "single"),
}
"""Problems, and the naive placer that answers where one device, or equal stages, will do."""


def answers(problem: Problem, naive: str) -> bool:
    """Whether the naive placer, with all time, has a placement that keeps the rules; for a step, the first device."""
    whole = problem.objective.kind == "step"
    placement = Placement.on(0, problem.n_ops) if whole else run_placer(registry.create(naive), problem).placement
    return placement is not None and judge_placement(problem, placement).valid


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_however_short_the_time(kind: str) -> None:
    """Where the naive placer has an answer, `auto` has one although its time is over at once."""
    make, naive = KINDS[kind]
    answered = 0
    for seed in seeds(40):
        problem = make(seed)
        if not answers(problem, naive):
            continue
        answered += 1
        result = place(problem, budget=OVER)
        assert result.placement is not None, f"seed {seed}: {result.status}"
        assert judge_placement(problem, result.placement).valid
    assert answered >= 5
