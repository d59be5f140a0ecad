"""The timeline in the terminal of stages whose ops are split: a lane per stage, collectives apart from compute."""

from __future__ import annotations

import pytest
from soak import seeds
from split_problems import random_pipeline, split_problem
from tiny_problems import Draw

from placewise.reporting.gantt import Gantt
from placewise.reporting.lanes import lanes_of
from placewise.simulate import judge_placement

SLOTS = 400


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_lanes_add_up_to_the_judges_seconds(kind: str) -> None:
    """Busy is what the stage takes, marked is its compute; the stages of a request follow each other."""
    tried = 0
    for seed in seeds(240):
        problem = split_problem(seed, kind=kind)
        placement = random_pipeline(Draw(seed), problem)
        judged = judge_placement(problem, placement)
        if not judged.valid or judged.value <= 0:
            continue
        tried += 1
        lanes = lanes_of(problem, placement, judged, SLOTS)
        assert len(lanes) == len(judged.stages)
        for lane, use in zip(lanes, judged.stages, strict=True):
            assert lane.busy.mean() * judged.value == pytest.approx(use.seconds, abs=1e-9 * judged.value)
            computes = use.compute - use.collective
            assert lane.marked.mean() * judged.value == pytest.approx(computes, abs=1e-9 * judged.value)
        if kind == "latency":
            assert sum(lane.busy for lane in lanes) == pytest.approx(1.0)
        assert "collectives" in str(Gantt(problem, placement, judged))
    assert tried > 5
