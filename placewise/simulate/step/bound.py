"""Lower bounds on the seconds of a training step, for any split over the devices (docs/judge.md).

With m micro-batches on one copy of the pipeline, f_s, b_s and w_s seconds of stage s, and T = Σ (f_s + b_s + w_s) at
every op's best time:

- a device works for all of its ops, m times each, and once for its updates: the fractional assignment of these times;
- one micro-batch goes through all stages and back;
- GPipe: a stage starts its last forward task after m − 1 others, which then goes on through all stages, and the same
  back: T + (m − 1) max (f_s + b_s + w_s);
- 1F1B on n devices: a stage has done n − s forward tasks at most when its first backward task starts:
  T + max ((m − 1) (b_s + w_s) + (m − n) f_s).

The best of the bounds of a schedule holds for it, and the least of those for `auto`. They follow from the order of each
device's tasks and from what tasks wait for: transfers, in whatever order wires carry them, only add to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from placewise.model.columns import Floats
from placewise.model.costs import CostTable
from placewise.model.problem import Objective, Problem
from placewise.model.result import Bound
from placewise.simulate.step.orders import BACKWARD, FORWARD, SCHEDULES, SPLITS_BACKWARD, WEIGHT
from placewise.simulate.step.pipelines import AUTO
from placewise.simulate.step.roles import UPDATE, op_roles

MaxLoad = Callable[[Problem], Bound]
"""A lower bound on the max-load of a problem of throughput."""
ROUNDED = 1 - 1e-12
WORK, PATH, FLUSH, ALTERNATE = (
    "work of the busiest device",
    "path of one micro-batch",
    "busiest stage and path (gpipe)",
    "busiest stage and path (1f1b)",
)


def step_bound(problem: Problem, max_load: MaxLoad) -> Bound:
    """The best lower bound on a step under the problem's schedule, or under every schedule."""
    asked = problem.objective.schedule
    schedules = SCHEDULES if asked == AUTO else (asked,)
    copies = problem.max_replicas
    total, n = problem.constraints.microbatches, int(problem.allowed.any(axis=0).sum())
    roles = op_roles(problem)
    counts = np.where(roles == UPDATE, 1.0, float(total))
    work = Bound(_scaled_load(problem, counts, max_load), WORK)
    return min(
        (max(work, *_schedule_bounds(problem, s, total, copies, n, max_load), key=_value) for s in schedules),
        key=_value,
    )


def _value(bound: Bound) -> float:
    return bound.value


def _schedule_bounds(
    problem: Problem, schedule: str, total: int, copies: int, n: int, max_load: MaxLoad
) -> list[Bound]:
    """What the order of a schedule proves beyond the work of a device; with replicas, for the fewest micro-batches."""
    roles = op_roles(problem)
    best = _best_seconds(problem)
    through = (FORWARD, BACKWARD) if schedule in SPLITS_BACKWARD else (FORWARD, BACKWARD, WEIGHT)
    path = float(best[np.isin(roles, through)].sum()) * ROUNDED
    bounds = [Bound(path, PATH)]
    alone = problem.with_(constraints=replace(problem.constraints, replicas=1))
    m = max(1, -(-total // copies))
    tasks = roles != UPDATE
    if schedule == "gpipe" and m > 1:
        load = _scaled_load(alone, np.where(tasks, m - 1.0, 0.0), max_load)
        bounds.append(Bound((path + load) * ROUNDED, FLUSH))
    if schedule == "1f1b" and m > 1:
        factors = np.where(roles == FORWARD, max(0.0, float(m - n)), m - 1.0)
        load = _scaled_load(alone, np.where(tasks, factors, 0.0), max_load)
        bounds.append(Bound((path + load) * ROUNDED, ALTERNATE))
    return bounds


def _best_seconds(problem: Problem) -> Floats:
    """The least seconds [n_ops] of every op where it may run; 0 for an op that may run nowhere."""
    best = np.where(problem.allowed, problem.costs.op_seconds, np.inf).min(axis=1)
    return np.where(np.isfinite(best), best, 0.0)


def _scaled_load(problem: Problem, factors: Floats, max_load: MaxLoad) -> float:
    """The bound of max-load where every op takes `factors` [n_ops] times its seconds and transfers take none."""
    with np.errstate(invalid="ignore"):
        seconds = np.where(np.isfinite(problem.costs.op_seconds), problem.costs.op_seconds * factors[:, None], np.inf)
    costs = CostTable.given(seconds, np.zeros_like(problem.costs.transfer_seconds))
    objective = Objective("throughput", memory=problem.objective.memory)
    samples = problem.constraints.microbatches
    scaled = problem.with_(costs=costs, objective=replace(objective, step_samples=samples))
    return max_load(scaled).value * ROUNDED
