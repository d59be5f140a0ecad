"""The ways of a stage's units: the least seconds whose bytes fit, against a knapsack over every number of bytes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from piper_files import problem_of
from soak import seeds
from tiny_problems import Draw

from placewise.core.place import place
from placewise.model.result import Outcome

Options = list[list[tuple[float, int]]]
"""Seconds and bytes of the ways of every unit."""


def instance_of(options: Options, memory: float) -> dict[str, Any]:
    """Units in a row on one device, hence all in one stage, with nothing to send."""
    nodes, last = [], len(options) - 1
    for number, ways in enumerate(options):
        free = {
            "syncTimeFw": {str(number - 1): 0} if number else {},
            "syncTimeBw": {str(number + 1): 0} if number < last else {},
            "parameterSize": 0,
            "memoryUsageA": 0,
        }
        listed = [
            {"id": f"way {w}", "timePerSample": seconds, "memoryUsageB": size, **free}
            for w, (seconds, size) in enumerate(ways)
        ]
        nodes.append({"id": number, "name": "", "TMPCs": {"1": listed}})
    edges = [{"sourceId": a, "destId": a + 1, "communicationCost": 0} for a in range(last)]
    top = {"maxMemoryPerDevice": memory, "maxDevices": 1, "bandwidth": 1.0, "mbsInBatch": 1}
    return {**top, "nodes": nodes, "edges": edges}


def least_seconds(options: Options, memory: int) -> float:
    """The least sum of seconds for every number of bytes up to `memory`, unit by unit."""
    best = np.zeros(memory + 1)
    for ways in options:
        grown = np.full(memory + 1, np.inf)
        for seconds, size in ways:
            if size <= memory:
                grown[size:] = np.minimum(grown[size:], best[: memory + 1 - size] + seconds)
        best = grown
    return float(best[-1])


def random_options(draw: Draw, units: int, most_ways: int, most_bytes: int, kinds: int = 0) -> Options:
    """Ways at random, some of them worse than others in both; with `kinds`, many units are equal."""
    known = [
        [(draw.whole(1, 1000) / 100, draw.whole(0, most_bytes)) for _ in range(draw.whole(1, most_ways))]
        for _ in range(kinds or units)
    ]
    return [draw.one(known) for _ in range(units)] if kinds else known


@pytest.mark.parametrize("shape", [(5, 4, 20, 0), (8, 3, 50, 0), (20, 2, 40, 3), (20, 4, 30, 2), (12, 5, 200, 0)])
def test_the_choice_is_exact(tmp_path: Path, shape: tuple[int, int, int, int]) -> None:
    """Few units and many, distinct and equal, two ways and more, in memory from too little to plenty."""
    outcomes = set()
    for seed in seeds(12):
        draw = Draw(seed)
        options = random_options(draw, *shape)
        least, most = (sum(pick(size for _, size in ways) for ways in options) for pick in (min, max))
        memory = draw.whole(max(least - 2, 0), max(most, least))
        best, result = least_seconds(options, memory), place(problem_of(instance_of(options, memory), tmp_path))
        if len(options) <= 5:
            sums = [(sum(s for s, _ in chosen), sum(b for _, b in chosen)) for chosen in itertools.product(*options)]
            assert best == pytest.approx(min((s for s, b in sums if b <= memory), default=math.inf))
        outcomes.add(result.status.outcome)
        if math.isinf(best):
            assert result.status.outcome is Outcome.INFEASIBLE
        else:
            assert result.status.outcome is Outcome.OPTIMAL
            assert result.value == pytest.approx(best, rel=1e-12) and result.lower_bound <= best
    assert Outcome.OPTIMAL in outcomes


def test_very_many_choices_are_relaxed(tmp_path: Path) -> None:
    """Where more sums matter than are kept, the bound is still one, the plan still fits, and both are close."""
    relaxed = 0
    for seed in seeds(2):
        draw, memory = Draw(seed), 500_000
        sizes = [[draw.whole(0, 20_000) for _ in range(6)] for _ in range(50)]
        options = [[(11 - size / 2_000 + draw.whole(0, 10**6) / 10**8, size) for size in row] for row in sizes]
        best, result = least_seconds(options, memory), place(problem_of(instance_of(options, memory), tmp_path))
        assert result.lower_bound <= best * (1 + 1e-12) and result.value >= best * (1 - 1e-12)
        assert result.value <= result.lower_bound * 1.05
        relaxed += any("were relaxed" in note for note in result.notes)
    assert relaxed


def test_sums_may_exceed_the_memory_by_their_own_rounding(tmp_path: Path) -> None:
    """0.1 + 2.7 + 0.2 is 3.0000000000000004, and three bytes hold it."""
    options = [[(1.0, 100), (2.0, size)] for size in (0.1, 2.7, 0.2)]
    result = place(problem_of(instance_of(options, 3.0), tmp_path))  # type: ignore[arg-type]
    assert result.status.outcome is Outcome.OPTIMAL and result.value == 6.0
