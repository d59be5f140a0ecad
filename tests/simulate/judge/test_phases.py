"""The value of a training pipeline that flushes: against its twin, against 1f1b, and under its bounds."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from plain_rules import placements
from simulate_problems import random_placement, random_problem, seeded
from soak import examples, seeds
from strategies import problems
from twins import throughput_value

from placewise.errors import InputError
from placewise.model.problem import Objective, Problem
from placewise.simulate import Evaluator, judge_placement, lower_bound
from placewise.simulate.phases import phase_problems, two_phases

MODES = ("blocking", "overlap", "duplex")


def scheduled(problem: Problem, schedule: str) -> Problem:
    return problem.with_(objective=replace(problem.objective, schedule=schedule))


@pytest.mark.parametrize("mode", MODES)
def test_the_twin_agrees(mode: str) -> None:
    """Two hundred random training problems per mode, wires and several hosts among them: judge, evaluator, twin."""
    for seed in seeds(400):
        choose = seeded(seed)
        problem = random_problem(choose, objective=Objective("throughput", communication=mode), training=True)  # type: ignore[arg-type]
        problem, placement = scheduled(problem, "gpipe"), random_placement(problem, choose)
        judged = judge_placement(problem, placement)
        assert judged.value == throughput_value(problem, placement.device.tolist())
        assert judged.value == Evaluator(problem, threads=1)(placement.device[None])[0]


def test_batches_are_priced_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows on several threads get the values that they have alone."""
    monkeypatch.setattr(sys.modules[Evaluator.__module__], "LITTLE", 1)
    choose = seeded(7)
    problem = scheduled(random_problem(choose, objective=Objective("throughput"), training=True), "gpipe")
    rows = np.stack([random_placement(problem, choose).device for _ in range(50)])
    together, alone = Evaluator(problem, threads=3)(rows), Evaluator(problem, threads=1)
    assert together.tolist() == [float(alone(row[None])[0]) for row in rows]


@examples(80)
@given(problems(kind="throughput", max_ops=5))
def test_flushing_never_pays_and_changes_nothing_without_backward_ops(problem: Problem) -> None:
    """1f1b ≤ gpipe ≤ twice 1f1b for every placement; equal where the graph has one phase only."""
    flushing = scheduled(problem, "gpipe")
    assert two_phases(flushing) == problem.graph.ops.backward.any()
    for device, value in list(placements(problem))[:20]:
        found = throughput_value(flushing, device)
        assert value <= found <= 2 * value
        if not two_phases(flushing):
            assert found == value


@examples(50)
@given(problems(kind="throughput", training=True, max_ops=6))
def test_the_bound_holds(problem: Problem) -> None:
    """No placement that keeps the rules is below the bound, and the bound is no worse than that of 1f1b."""
    flushing = scheduled(problem, "gpipe")
    bound = lower_bound(flushing).value
    assert bound >= lower_bound(scheduled(problem, "1f1b")).value
    assert all(bound <= value for _, value in placements(flushing))


def test_loads_of_phases_add_up() -> None:
    """Per device the two phases make up the load, their maxima the value; with 1f1b there are no phases."""
    for seed in seeds(120):
        choose = seeded(1000 + seed)
        problem = random_problem(choose, objective=Objective("throughput"), training=True)
        placement, flushing = random_placement(problem, choose), scheduled(problem, "gpipe")
        judged = judge_placement(flushing, placement)
        phases = [judge_placement(phase, placement) for phase in phase_problems(flushing)]
        assert judged.value == sum(phase.value for phase in phases)
        for d, use in enumerate(judged.devices if two_phases(flushing) else ()):
            assert (use.forward, use.backward) == tuple(phase.devices[d].load for phase in phases)
            assert use.forward is not None and use.backward is not None
            assert use.load == use.forward + use.backward <= judged.value
            assert not use.waits_for or use.waits_for in {phase.bottleneck for phase in phases}
        assert all(use.forward is None for use in judge_placement(scheduled(problem, "1f1b"), placement).devices)


def test_an_unknown_schedule_is_refused() -> None:
    """The objective names the schedules that there are."""
    with pytest.raises(InputError, match="1f1b, gpipe"):
        Objective("throughput", schedule="pipedream")  # type: ignore[arg-type]
