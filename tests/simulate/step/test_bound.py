"""The bound on a training step, term by term from its definition, and reached where a device works alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from soak import seeds
from step_problems import step_problem

from placewise.model.placement import Placement
from placewise.model.problem import Problem, Rule
from placewise.model.result import Bound
from placewise.simulate import judge_placement, lower_bound
from placewise.simulate.step.bound import ALTERNATE, FLUSH, PATH, WORK, step_bound
from placewise.simulate.step.orders import BACKWARD, FORWARD, SCHEDULES, SPLITS_BACKWARD
from placewise.simulate.step.roles import UPDATE, op_roles


def spread_evenly(problem: Problem) -> Bound:
    """A stand-in for the bound of max-load: all work at its best, over the devices and the copies of a stage."""
    assert problem.objective.kind == "throughput" and not problem.costs.transfer_seconds.any()
    assert problem.objective.step_samples == problem.constraints.microbatches
    best = np.where(problem.allowed, problem.costs.op_seconds, np.inf).min(axis=1)
    return Bound(float(best[np.isfinite(best)].sum()) / problem.n_devices / problem.max_replicas, "stand-in")


def terms_of(problem: Problem, schedule: str) -> dict[str, float]:
    """The bounds of one schedule by their names, op by op."""
    m, copies, n = problem.constraints.microbatches, problem.max_replicas, int(problem.allowed.any(axis=0).sum())
    each, own = problem.n_devices * copies, math.ceil(m / copies)
    found = {WORK: 0.0, PATH: 0.0, FLUSH: 0.0, ALTERNATE: 0.0}
    for op, role in enumerate(op_roles(problem).tolist()):
        able = [float(problem.costs.op_seconds[op, d]) for d in range(problem.n_devices) if problem.allowed[op, d]]
        seconds = min(able, default=0.0)
        found[WORK] += seconds * (1 if role == UPDATE else m) / each
        if role == UPDATE:
            continue
        last = seconds if role in (FORWARD, BACKWARD) or schedule not in SPLITS_BACKWARD else 0.0
        found[PATH] += last
        found[FLUSH] += last + seconds * (own - 1) / problem.n_devices
        most = max(0, own - n) if role == FORWARD else own - 1
        found[ALTERNATE] += last + seconds * most / problem.n_devices
    for name, asked in ((FLUSH, "gpipe"), (ALTERNATE, "1f1b")):
        if schedule != asked or own == 1:
            del found[name]
    return found


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_bound_is_that_of_the_definition(replicas: int) -> None:
    """Under each schedule the largest of its terms, under an open one the least of these; the method is named."""
    methods = set()
    for seed in seeds(32):
        problem = step_problem(seed, replicas=replicas, layers=3)
        if seed % 3 == 0:
            rules = replace(problem.constraints, forbidden=(Rule(".", "d0"),) if problem.n_devices > 1 else ())
            problem = problem.with_(constraints=rules)
        if seed % 5 == 0:
            never = problem.costs.op_seconds.copy()
            never[1] = np.inf
            problem = problem.with_(costs=replace(problem.costs, op_seconds=never))
        values = {}
        for schedule in SCHEDULES:
            own = problem.with_(objective=replace(problem.objective, schedule=schedule))
            bound, terms = step_bound(own, spread_evenly), terms_of(problem, schedule)
            values[schedule] = max(terms.values())
            assert bound.value == pytest.approx(values[schedule], rel=1e-9) and bound.value <= values[schedule]
            assert terms[bound.method] == pytest.approx(values[schedule], rel=1e-9)
            methods.add(bound.method)
        assert step_bound(problem, spread_evenly).value == pytest.approx(min(values.values()), rel=1e-9)
    assert methods == {WORK, PATH, FLUSH, ALTERNATE}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_a_device_alone_takes_as_long_as_its_work(schedule: str) -> None:
    """One device that does all micro-batches one after the other, then the updates, and waits for its inputs only."""
    for seed in seeds(12):
        problem = step_problem(seed, devices=1, schedule=schedule, layers=4)
        bound, judged = lower_bound(problem), judge_placement(problem, Placement.on(0, problem.n_ops))
        assert bound.value == pytest.approx(judged.devices[0].compute, rel=1e-9) and bound.value <= judged.value
