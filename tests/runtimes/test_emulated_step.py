"""A training step on an emulated cluster: processes that follow the schedule end when the judge says."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_runs import run_on_time
from soak import later
from step_problems import random_step_pipeline, step_problem

from placewise.errors import InputError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.base import Job
from placewise.runtimes.emulated.runtime import Emulated
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract
from placewise.simulate.step.pipelines import placement_of_pipeline
from placewise.simulate.step.stage_costs import Pipeline


def drawn_step(seed: int, **options: object) -> tuple[Problem, Placement]:
    """A problem and a pipeline of two stages or more that can run."""
    for number in range(seed, seed + 100_000, 1000):
        problem = step_problem(number, **options)  # type: ignore[arg-type]
        pipeline = random_step_pipeline(number, problem)
        if pipeline is None or pipeline.n_stages < 2:
            continue
        placement = placement_of_pipeline(pipeline)
        if np.isfinite(judge_placement(problem, placement).value):
            return problem, placement
    raise AssertionError("nothing that can run was drawn")


@pytest.mark.parametrize("seed", [*range(6), *(later(seed) for seed in range(6, 60))])
def test_a_step_ends_when_the_judge_says(seed: int) -> None:
    """Schedules, transfers through host memory and directly, tied weights and updates; every value is as it follows."""
    problem, placement = drawn_step(seed)
    value = judge_placement(problem, placement).value
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        seconds = run_on_time(prepared)
        ends = [last for report in prepared.reports for _, _, _, last in report.spans]
    assert max(ends) == pytest.approx(value, abs=1e-9)
    assert seconds == pytest.approx(value, rel=0.1)


def test_steps_do_not_overlap() -> None:
    """A second step begins when the first has ended: several in flight are refused."""
    problem, placement = drawn_step(0)
    with Emulated().prepare(Job(problem, placement, ())) as prepared, pytest.raises(InputError, match="one after the"):
        prepared.time([{}] * 4, in_flight=2)


@pytest.mark.parametrize("seed", [0, later(1), later(2)])
def test_copies_of_a_pipeline_share_its_micro_batches(seed: int) -> None:
    """Each copy has half of them; both wait for each other before the update."""
    problem = step_problem(seed, alike=True, devices=4, microbatches=4, replicas=2, hosts=False, schedule="1f1b")
    graph = contract(problem)
    stage = (np.arange(graph.n) >= graph.n // 2)[graph.component].astype(np.int32)
    placement = placement_of_pipeline(Pipeline("1f1b", ((0, 2), (1, 3)), stage, 2))
    value = judge_placement(problem, placement).value
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        run_on_time(prepared)
        ends = [last for report in prepared.reports for _, _, _, last in report.spans]
    assert np.isfinite(value) and max(ends) == pytest.approx(value, abs=1e-9)
