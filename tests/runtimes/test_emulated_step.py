"""A training step on an emulated cluster: processes that follow the schedule end when the judge says."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_runs import ATTEMPTS, run_on_time
from soak import later
from step_problems import random_step_pipeline, step_problem

from placewise.errors import InputError
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.base import Job
from placewise.runtimes.emulated.runtime import Emulated, PreparedEmulation
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract
from placewise.simulate.step.pipelines import placement_of_pipeline
from placewise.simulate.step.stage_costs import Pipeline


def drawn_step(seed: int, *, wires: bool = False) -> tuple[Problem, Placement]:
    """A problem and a pipeline of two stages or more that can run; where links share a wire, all seconds differ, since
    messages of one moment reach the wire one after the other.
    """
    for number in range(seed, seed + 100_000, 1000):
        problem = step_problem(number, wires=wires)
        problem = vary_seconds(problem, number) if wires else problem
        pipeline = random_step_pipeline(number, problem)
        if pipeline is None or pipeline.n_stages < 2:
            continue
        placement = placement_of_pipeline(pipeline)
        if np.isfinite(judge_placement(problem, placement).value):
            return problem, placement
    raise AssertionError("nothing that can run was drawn")


def vary_seconds(problem: Problem, seed: int) -> Problem:
    """The same problem, no two of whose ops or transfers take equally long."""
    rng, costs = np.random.default_rng(seed), problem.costs
    transfers = rng.uniform(0.2, 2.0, costs.transfer_seconds.shape)
    transfers[:, 0] = 0.0
    return problem.with_(costs=CostTable.given(costs.op_seconds * rng.uniform(0.8, 1.2, (problem.n_ops, 1)), transfers))


def require_end(prepared: PreparedEmulation, value: float, *, wires: bool) -> None:
    """The last task of all ends at a moment of the plan. A wire that hears of a transfer too late may take another one
    first, so that a few runs may differ there.
    """
    ends = []
    for _ in range(ATTEMPTS if wires else 1):
        seconds = run_on_time(prepared)
        ends.append(max(last for report in prepared.reports for _, _, _, last in report.spans))
        if ends[-1] == pytest.approx(value, abs=1e-9):
            break
    assert ends[-1] == pytest.approx(value, abs=1e-9), ends
    assert seconds == pytest.approx(value, rel=0.1)


STEPS = [(0, False), (1, False), (0, True)]
LATER = [*(later(seed, False) for seed in range(2, 60)), *(later(seed, True) for seed in range(1, 30))]


@pytest.mark.parametrize(("seed", "wires"), [*STEPS, *LATER])
def test_a_step_ends_when_the_judge_says(seed: int, wires: bool) -> None:
    """Schedules, transfers through host memory and directly, tied weights and updates; every value is as it follows.
    Wires that links share take what is ready first.
    """
    problem, placement = drawn_step(seed, wires=wires)
    value = judge_placement(problem, placement).value
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        require_end(prepared, value, wires=wires)


def test_steps_do_not_overlap() -> None:
    """A second step begins when the first has ended: several in flight are refused."""
    problem, placement = drawn_step(0)
    with Emulated().prepare(Job(problem, placement, ())) as prepared, pytest.raises(InputError, match="one after the"):
        prepared.time([{}] * 4, in_flight=2)


@pytest.mark.parametrize(
    ("seed", "wires"), [(0, False), later(1, False), later(2, False), (0, True), *(later(s, True) for s in range(1, 9))]
)
def test_copies_of_a_pipeline_share_its_micro_batches(seed: int, wires: bool) -> None:
    """Each copy has half of them; both wait for each other before the update, and at wires that their links share."""
    options = {"alike": True, "devices": 4, "microbatches": 4, "replicas": 2, "hosts": False, "schedule": "1f1b"}
    problem = step_problem(seed, wires=wires, **options)  # type: ignore[arg-type]
    problem = vary_seconds(problem, seed) if wires else problem
    graph = contract(problem)
    stage = (np.arange(graph.n) >= graph.n // 2)[graph.component].astype(np.int32)
    placement = placement_of_pipeline(Pipeline("1f1b", ((0, 2), (1, 3)), stage, 2))
    value = judge_placement(problem, placement).value
    assert np.isfinite(value)
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        require_end(prepared, value, wires=wires)
