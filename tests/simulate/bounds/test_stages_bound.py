"""The bound on pipelines whose ops may be split, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from piper_files import layers, problem_of

from placewise.model.problem import Rule
from placewise.simulate import lower_bound


@pytest.mark.parametrize(
    ("kind", "devices", "seconds", "method"),
    [
        ("throughput", 4, 3 * 2 / 4, "work over devices"),  # 2 s on one device are less work than 1.25 s on two
        ("throughput", 2, 3 * 2 / 2, "work over devices"),
        ("latency", 4, 3 * 1.25, "sum of best times"),
    ],
)
def test_three_layers(tmp_path: Path, kind: str, devices: int, seconds: float, method: str) -> None:
    """Three layers of 2 s, or 1.25 s on two devices: their work over all devices, or one after the other at best."""
    problem = problem_of(layers(3, devices), tmp_path)
    problem = problem.with_(objective=replace(problem.objective, kind=kind))  # type: ignore[arg-type]
    bound = lower_bound(problem)
    assert bound.value == pytest.approx(seconds, rel=1e-9) and bound.value <= seconds and bound.method == method


def test_what_may_run_nowhere_has_no_bound(tmp_path: Path) -> None:
    """A layer that no device may run in any way, by its times or by rules."""
    problem = problem_of(layers(2, 2), tmp_path)
    ways = problem.require_ways()
    never = np.where(ways.way_unit[:, None] == 1, np.inf, ways.seconds)
    rules = replace(problem.constraints, forbidden=tuple(Rule("^1$", name) for name in problem.cluster.names))
    for broken in (problem.with_(ways=replace(ways, seconds=never)), problem.with_(constraints=rules)):
        bound = lower_bound(broken)
        assert bound.value == 0 and bound.method == "no bound: some unit may run nowhere"
