"""Lower bounds on the value of every placement, in floating point rounded down; docs/judge.md explains each.

Throughput: fractional assignment (`assignment.py`); with one device per stage also groups that cannot part and the
largest group with its transfers (`crossings.py`), and fractional assignment and transfers (`spreading.py`). Where r
devices may share a stage, each runs an r-th of a block and holds all of its bytes, which the fractions allow; then
pairs with t[b,c] > r T cannot occur.

Latency: critical path; where devices run one op at a time, also the fractional assignment with one machine per stream;
paths (`paths.py`, `parallel_chains.py`); in `operator` execution intervals of a path (`intervals.py`), ops that must
share a device (`sharing.py`; in `subgraph`, a call) and load between heads and tails (`windows.py`); in `sequential`
execution the sum of best times and a minimum cut to the host (`host_cut.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Longs
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import (
    DeviceClasses,
    block_bytes,
    block_seconds,
    device_classes,
    unshared_bytes,
)
from placewise.simulate.bounds.assignment import block_prices_bound, round_down
from placewise.simulate.bounds.crossings import alone_bound, parting_bound
from placewise.simulate.bounds.host_cut import cut_bound
from placewise.simulate.bounds.intervals import METHOD as INTERVALS
from placewise.simulate.bounds.intervals import NOTHING, QUICK, SOLVED, begin_chain
from placewise.simulate.bounds.intervals import WORK as INTERVAL_WORK
from placewise.simulate.bounds.parallel_chains import chains_bound
from placewise.simulate.bounds.paths import WORK, hop_bound, path_bound
from placewise.simulate.bounds.sharing import METHOD as SHARING
from placewise.simulate.bounds.sharing import WORK as SHARING_WORK
from placewise.simulate.bounds.sharing import sharing_bound
from placewise.simulate.bounds.spreading import WORK as TRANSFER_WORK
from placewise.simulate.bounds.spreading import transfer_bound
from placewise.simulate.bounds.stages import stages_bound
from placewise.simulate.bounds.windows import METHOD as LOAD
from placewise.simulate.bounds.windows import WORK as LOAD_WORK
from placewise.simulate.bounds.windows import bound_paths, load_bound
from placewise.simulate.phases import phase_problems
from placewise.simulate.problem_arrays import native_problem
from placewise.simulate.replicas import equal_devices
from placewise.simulate.step.bound import step_bound

SOON = 5.0
"""Seconds for the bound of a placement that is only judged."""


def bound_soon(problem: Problem) -> Bound:
    """The best lower bound found within `SOON`."""
    end = time.monotonic() + SOON
    return lower_bound(problem, go_on=lambda: time.monotonic() < end)


def lower_bound(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> Bound:
    """The best lower bound, in seconds, on the value of any valid placement.

    `work` and `go_on` limit slow bounds, as in `path_bound`; for throughput and in `operator` execution the default is
    about a second.
    """
    if not problem.n_ops:
        return Bound(0.0, "empty graph")
    if problem.ways is not None:
        return stages_bound(problem)
    if problem.objective.kind == "step":
        return step_bound(problem, partial(lower_bound, work=work, go_on=go_on))
    classes = device_classes(problem)
    times = block_seconds(problem, classes.example)
    if not np.isfinite(times).any(axis=1).all():
        return Bound(0.0, "no bound: some group may run nowhere")
    times = possible_seconds(problem, classes)
    if not np.isfinite(times).any(axis=1).all():
        return Bound(0.0, "no bound: some group fits nowhere")
    objective = problem.objective
    candidates = [Bound(0.0, "nonnegative costs")]
    if objective.kind == "throughput":
        alone = (times / _sharers(problem, classes)).min(axis=1)
        candidates.append(Bound(round_down(float(alone.max()), problem.n_ops), "largest group"))
        candidates.append(_assignment_bound(problem, classes, times, classes.count, go_on))
        candidates += _phase_bounds(problem, go_on)
        if problem.max_replicas == 1:
            candidates += _crossing_bounds(problem, classes, times, candidates, work, go_on)
    else:
        candidates.append(Bound(round_down(_critical_path(problem, classes, times), problem.n_ops), "critical path"))
        if objective.execution == "subgraph":
            candidates.append(chains_bound(problem, work=work, go_on=go_on))
            candidates.append(path_bound(problem, work=work, go_on=go_on))
        else:
            candidates.append(hop_bound(problem))
        streams = np.array([problem.cluster.devices[d].streams for d in classes.example.tolist()])
        if objective.execution == "sequential":
            candidates.append(Bound(round_down(float(times.min(axis=1).sum()), problem.n_ops), "sum of best times"))
            if work > 0 and go_on():
                candidates.append(cut_bound(problem, classes, times, go_on))
        elif objective.op_by_op or not problem.cluster.is_host.any():
            width = streams if objective.op_by_op else np.ones_like(streams)
            candidates.append(_assignment_bound(problem, classes, times, classes.count * width, go_on))
        if objective.op_by_op and work > 0 and go_on():
            above = max(bound.value for bound in candidates)
            candidates += operator_bounds(problem, above, work=work, go_on=go_on)
        if objective.execution == "subgraph" and work > 0 and go_on():
            above, paths = max(bound.value for bound in candidates), bound_paths(problem)
            candidates.append(sharing_bound(problem, classes, times, paths, above=above, go_on=go_on))
    return max(candidates, key=lambda bound: bound.value)


def _crossing_bounds(
    problem: Problem,
    classes: DeviceClasses,
    times: Floats,
    known: list[Bound],
    work: float,
    go_on: Callable[[], bool],
) -> list[Bound]:
    """The bounds of throughput that count transfers, 0 where they are no larger than those before; slow ones last."""
    above, found = max(bound.value for bound in known), list[Bound]()
    for find in (parting_bound, alone_bound):
        found.append(find(problem, classes, times, above=above, go_on=go_on))
        above = max(above, found[-1].value)
    share = work / WORK * TRANSFER_WORK
    return [*found, transfer_bound(problem, classes, times, above=above, work=share, go_on=go_on)]


def operator_bounds(
    problem: Problem, above: float, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True
) -> list[Bound]:
    """The slow bounds of `operator` execution, in seconds: intervals, shared devices, and load.

    Intervals are bounded quickly first. What they prove makes the other bounds larger, which are 0 if none is found
    above the others or `above`. The default `work` takes about a second, of which intervals have two thirds.
    """
    classes, chain, share = device_classes(problem), begin_chain(problem), work / WORK
    times = possible_seconds(problem, classes)
    best = {INTERVALS: 0.0, SHARING: 0.0, LOAD: 0.0}
    left = share * INTERVAL_WORK
    for level in (QUICK, SOLVED):
        known = NOTHING
        if chain is not None:
            left -= chain.improve(level, left / 2 if level == QUICK else left, go_on)
            known = chain.list_times()
        if level == SOLVED and known.value <= best[INTERVALS]:
            break
        best[INTERVALS] = known.value
        paths, above = bound_paths(problem, known), max(above, *best.values())
        shared = sharing_bound(problem, classes, times, paths, above=above, work=share * SHARING_WORK / 2, go_on=go_on)
        best[SHARING] = max(best[SHARING], shared.value)
        if level == QUICK:
            above = max(above, shared.value)
            load = load_bound(problem, classes, times, paths, above=above, work=share * LOAD_WORK, go_on=go_on)
            best[LOAD] = load.value
    return [Bound(value, method) for method, value in best.items()]


def possible_seconds(problem: Problem, classes: DeviceClasses) -> Floats:
    """Time of each block on each class of devices [n_blocks, n_classes]; inf where it may not run or does not fit."""
    times = block_seconds(problem, classes.example)
    return np.where(block_bytes(problem)[:, None] <= problem.capacity[classes.example], times, np.inf)


def _sharers(problem: Problem, classes: DeviceClasses) -> Longs:
    """The most devices that may share a stage, per device class [n_classes].

    Links between devices differ within a class: the largest number in it counts.
    """
    most = np.ones(len(classes.count), np.int64)
    if problem.max_replicas > 1:
        kind = equal_devices(problem)
        np.maximum.at(most, classes.of, np.bincount(kind, minlength=problem.n_devices)[kind])
    return np.minimum(most, problem.max_replicas)


def _phase_bounds(problem: Problem, go_on: Callable[[], bool]) -> list[Bound]:
    """The sum of the fractional assignments of forward and backward ops, where their loads add up."""
    phases = phase_problems(problem)
    if len(phases) < 2:
        return []
    each = [device_classes(phase) for phase in phases]
    bounds = [
        _assignment_bound(phase, own, block_seconds(phase, own.example), own.count, go_on).value
        for phase, own in zip(phases, each, strict=True)
    ]
    return [Bound(round_down(sum(bounds), 2), "fractional assignment, phase by phase")]


def _critical_path(problem: Problem, classes: DeviceClasses, times: Floats) -> float:
    usable = np.isfinite(times)
    seconds = np.full(problem.n_ops, np.inf)
    for c, d in enumerate(classes.example.tolist()):
        here = np.where(usable[problem.block, c], problem.costs.op_seconds[:, d], np.inf)
        seconds = np.minimum(seconds, here)
    native = native_problem(problem)
    before = _native.downward_ranks(native, seconds, np.zeros(problem.graph.n_tensors))
    return float((before + seconds).max())


def _assignment_bound(
    problem: Problem, classes: DeviceClasses, times: Floats, machines: Longs, go_on: Callable[[], bool]
) -> Bound:
    """The fractional-assignment bound, sharpened by bisection: values of T above it are refuted."""
    weight = unshared_bytes(problem)
    capacity = problem.capacity[classes.example] * classes.count
    usable = np.isfinite(times)
    width = machines / classes.count * _sharers(problem, classes)
    known = {int(usable.sum()): block_prices_bound(times, usable, weight, capacity, machines, go_on)}
    best = max(*known.values(), float((times / width).min(axis=1).max()))
    if problem.objective.kind == "throughput" and times.size <= 200_000 and np.isfinite(best):
        low, high = best, 2 * best
        for _ in range(16):
            if not go_on():
                break
            middle = (low + high) / 2
            allowed = times / width <= middle
            refuted = not allowed.any(axis=1).all()
            if not refuted and (count := int(allowed.sum())) not in known:  # fewer ops are allowed for a smaller T
                known[count] = block_prices_bound(times, allowed, weight, capacity, machines, go_on)
            if refuted or known[count] > middle:
                low = middle
            else:
                high = middle
        best = low
    return Bound(round_down(best, problem.n_ops), "fractional assignment")
