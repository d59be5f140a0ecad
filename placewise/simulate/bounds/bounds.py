"""Lower bounds on the value of every placement, in floating point rounded down.

Throughput: *fractional assignment*. If max-load T can be reached, the blocks can be spread over the devices, CPUs
included, with Σ time ≤ T on each and within memory. For any prices λ ≥ 0 of device time (Σ m_c λ_c ≤ 1 over classes of
m_c equal devices) and μ ≥ 0 of memory, the Lagrangian Σ_b min_c (λ_c t[b,c] + μ_c w[b]) − Σ_c μ_c m_c M_c is a bound;
column generation (Dantzig and Wolfe 1960) finds good prices. Pairs with t[b,c] > T cannot occur, so that a bound
without them above T refutes T. Where r devices may share a stage, each runs an r-th of a block and holds all of its
bytes, which the fractions allow; then pairs with t[b,c] > r T cannot occur.

Latency: the *critical path* at each op's best time; where devices run one op at a time, also the fractional assignment
with one machine per stream; a *path of minimum cuts* in `subgraph` execution and a *path with hops* in the others
(`paths.py`); in `operator` execution *intervals of a path* (`intervals.py`); in `sequential` execution the sum of best
times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from ortools.linear_solver import pywraplp

from placewise import _native
from placewise.model.columns import Bools, Floats, Longs
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import DeviceClasses, block_bytes, block_seconds, device_classes, unshared_bytes
from placewise.simulate.bounds.intervals import interval_bound
from placewise.simulate.bounds.paths import WORK, hop_bound, path_bound
from placewise.simulate.bounds.stages import stages_bound
from placewise.simulate.phases import phase_problems
from placewise.simulate.problem_arrays import arrays_of, native_problem
from placewise.simulate.replicas import equal_devices
from placewise.simulate.step.bound import step_bound

_STEP = 0.2
"""How far prices move from the best ones towards those of the master program."""
_PENALTY = 1e6
INTERVAL_WORK = 0.5 / WORK
"""The seconds that intervals may take for each op and use of a tensor that cuts may process."""


def lower_bound(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> Bound:
    """The best lower bound, in seconds, on the value of any valid placement.

    `work` and `go_on` limit slow bounds, as in `path_bound`; in `operator` execution the default is half a second.
    """
    if not problem.n_ops:
        return Bound(0.0, "empty graph")
    if problem.ways is not None:
        return stages_bound(problem)
    if problem.objective.kind == "step":
        return step_bound(problem, lower_bound)
    classes = device_classes(problem)
    times = block_seconds(problem, classes.example)
    if not np.isfinite(times).any(axis=1).all():
        return Bound(0.0, "no bound: some group may run nowhere")
    times = np.where(block_bytes(problem)[:, None] <= problem.capacity[classes.example], times, np.inf)
    if not np.isfinite(times).any(axis=1).all():
        return Bound(0.0, "no bound: some group fits nowhere")
    objective = problem.objective
    candidates = [Bound(0.0, "nonnegative costs")]
    if objective.kind == "throughput":
        alone = (times / _sharers(problem, classes)).min(axis=1)
        candidates.append(Bound(_round_down(float(alone.max()), problem.n_ops), "largest group"))
        candidates.append(_assignment_bound(problem, classes, times, classes.count))
        candidates += _phase_bounds(problem)
    else:
        candidates.append(Bound(_round_down(_critical_path(problem, classes, times), problem.n_ops), "critical path"))
        if objective.execution == "subgraph":
            candidates.append(path_bound(problem, work=work, go_on=go_on))
        else:
            candidates.append(hop_bound(problem))
        if objective.execution == "operator" and work > 0 and go_on():
            candidates.append(interval_bound(problem, work=work * INTERVAL_WORK, go_on=go_on))
        streams = np.array([problem.cluster.devices[d].streams for d in classes.example.tolist()])
        if objective.execution == "sequential":
            candidates.append(Bound(_round_down(float(times.min(axis=1).sum()), problem.n_ops), "sum of best times"))
        elif objective.execution == "operator" or not problem.cluster.is_host.any():
            width = streams if objective.execution == "operator" else np.ones_like(streams)
            candidates.append(_assignment_bound(problem, classes, times, classes.count * width))
    return max(candidates, key=lambda bound: bound.value)


def _sharers(problem: Problem, classes: DeviceClasses) -> Longs:
    """The most devices that may share a stage, per device class [n_classes].

    Links between devices differ within a class: the largest number in it counts.
    """
    most = np.ones(len(classes.count), np.int64)
    if problem.max_replicas > 1:
        kind = equal_devices(problem)
        np.maximum.at(most, classes.of, np.bincount(kind, minlength=problem.n_devices)[kind])
    return np.minimum(most, problem.max_replicas)


def _phase_bounds(problem: Problem) -> list[Bound]:
    """The sum of the fractional assignments of forward and backward ops, where their loads add up."""
    phases = phase_problems(problem)
    if len(phases) < 2:
        return []
    each = [device_classes(phase) for phase in phases]
    bounds = [
        _assignment_bound(phase, own, block_seconds(phase, own.example), own.count).value
        for phase, own in zip(phases, each, strict=True)
    ]
    return [Bound(_round_down(sum(bounds), 2), "fractional assignment, phase by phase")]


def _round_down(value: float, terms: int) -> float:
    """A lower bound of the exact sum behind `value`, which has this many terms ≥ 0."""
    return value * (1 - 4 * sys.float_info.epsilon * (terms + 1000))


def _critical_path(problem: Problem, classes: DeviceClasses, times: Floats) -> float:
    usable = np.isfinite(times)
    seconds = np.full(problem.n_ops, np.inf)
    for c, d in enumerate(classes.example.tolist()):
        here = np.where(usable[problem.block, c], problem.costs.op_seconds[:, d], np.inf)
        seconds = np.minimum(seconds, here)
    native = native_problem(arrays_of(problem))
    before = _native.downward_ranks(native, seconds, np.zeros(problem.graph.n_tensors))
    return float((before + seconds).max())


def _assignment_bound(problem: Problem, classes: DeviceClasses, times: Floats, machines: Longs) -> Bound:
    """The fractional-assignment bound, sharpened by bisection: values of T above it are refuted."""
    weight = unshared_bytes(problem)
    capacity = problem.capacity[classes.example] * classes.count
    usable = np.isfinite(times)
    width = machines / classes.count * _sharers(problem, classes)
    known = {int(usable.sum()): _lagrangian_bound(times, usable, weight, capacity, machines)}
    best = max(*known.values(), float((times / width).min(axis=1).max()))
    if problem.objective.kind == "throughput" and times.size <= 200_000 and np.isfinite(best):
        low, high = best, 2 * best
        for _ in range(16):
            middle = (low + high) / 2
            allowed = times / width <= middle
            refuted = not allowed.any(axis=1).all()
            if not refuted and (count := int(allowed.sum())) not in known:  # fewer ops are allowed for a smaller T
                known[count] = _lagrangian_bound(times, allowed, weight, capacity, machines)
            if refuted or known[count] > middle:
                low = middle
            else:
                high = middle
        best = low
    return Bound(_round_down(best, problem.n_ops), "fractional assignment")


def _lagrangian_bound(
    times: Floats, usable: Bools, weight: Floats, capacity: Floats, machines: Longs, *, rounds: int = 60
) -> float:
    """The best Lagrangian over prices; each evaluation is a valid bound.

    The prices of the master program oscillate: two rounds of three use prices near the best so far (Wentges 1997), the
    third those of the program, which end the search on small problems.
    """
    priced = np.flatnonzero(np.isfinite(capacity))
    cost = np.where(usable, times, 0.0)
    unusable = np.where(usable, 0.0, np.inf)
    scale = float(np.where(usable, times, np.inf).min(axis=1).sum()) or 1.0
    unit = max(float(weight.sum()), 1.0)
    room = capacity[priced] / unit
    n_classes, rows = len(machines), np.arange(len(times))
    prices = np.concatenate((np.full(n_classes, 1.0 / machines.sum()), np.zeros(len(priced))))
    master, best, best_prices = AssignmentMaster(machines, room), 0.0, prices
    for round_ in range(rounds):
        reduced = cost * prices[:n_classes] + unusable
        reduced[:, priced] += weight[:, None] * (scale * prices[n_classes:] / unit)
        choice = reduced.argmin(axis=1)
        gained, paid = float(reduced[rows, choice].sum()), scale * float(prices[n_classes:] @ room)
        bound = _round_down(gained, len(times)) - paid * (1 + 1e-12)
        if bound > best:
            best, best_prices = bound, prices
        time_used = np.bincount(choice, weights=cost[rows, choice], minlength=n_classes) / scale
        memory_used = np.bincount(choice, weights=weight, minlength=n_classes)[priced] / unit
        column = np.concatenate((time_used, memory_used))
        master.add(column)
        target, ceiling = master.solve()
        if ceiling * scale - best <= 1e-7 * ceiling * scale:
            break
        target[:n_classes] /= max(float(machines @ target[:n_classes]), 1.0)
        prices = target if round_ % 3 == 0 else best_prices + _STEP * (target - best_prices)
    return best


class AssignmentMaster:
    """The master program of the fractional assignment: a linear program with generated columns, solved by GLOP.

    A column is an assignment: its seconds on each class of devices, then its bytes in limited memories. The program
    mixes columns such that no class needs more than T per device, with a penalty for missing memory, and minimizes T.
    Its dual variables are prices; they need not be exact, as the bound holds for any prices.
    """

    def __init__(self, machines: Longs, room: Floats) -> None:
        self._n_time = len(machines)
        self._solver = solver = pywraplp.Solver("master", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
        right = (*np.zeros(len(machines)).tolist(), *room.tolist())
        self._rows = [solver.Constraint(-solver.infinity(), bound) for bound in right]
        self._whole = solver.Constraint(1.0, 1.0)
        objective = solver.Objective()
        pace = solver.NumVar(0.0, solver.infinity(), "T")
        objective.SetCoefficient(pace, 1.0)
        for row, count in zip(self._rows, machines.tolist(), strict=False):
            row.SetCoefficient(pace, -float(count))
        for row in self._rows[self._n_time :]:
            missing = solver.NumVar(0.0, solver.infinity(), "")
            row.SetCoefficient(missing, -1.0)
            objective.SetCoefficient(missing, _PENALTY)
        objective.SetMinimization()

    def add(self, column: Floats) -> None:
        """Add an assignment: seconds per class, then bytes per limited memory."""
        share = self._solver.NumVar(0.0, self._solver.infinity(), "")
        for row, amount in zip(self._rows, column.tolist(), strict=True):
            row.SetCoefficient(share, amount)
        self._whole.SetCoefficient(share, 1.0)

    def solve(self) -> tuple[Floats, float]:
        """The prices of the classes' time and of memory, and the least T (with penalties) over all mixtures."""
        self._solver.Solve()
        duals = np.array([row.dual_value() for row in self._rows])
        return np.maximum(-duals, 0.0), float(self._solver.Objective().Value())
