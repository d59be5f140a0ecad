"""The judge: the only place where a placement gets a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise._util.cores import usable_cores
from placewise.errors import PlanError
from placewise.model.columns import Floats, Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement, PhaseUse, Timeline
from placewise.simulate.check.check import check_calls, check_coverage, check_placement
from placewise.simulate.judge import schedule, sequential, subgraph, throughput
from placewise.simulate.judge.memory import device_memory, piece_numbers
from placewise.simulate.judge.stages import judge_stages
from placewise.simulate.judge.waits import longest_waits
from placewise.simulate.phases import list_phases, summed_loads
from placewise.simulate.problem_arrays import native_problem
from placewise.simulate.replicas import replicated_loads
from placewise.simulate.step.judge import judge_step

Rows = Callable[[Ints, int, int, Floats], None]
LITTLE = 16_000
"""Ops of placements below which another thread does not pay."""
SLICE = 250_000
"""Ops of placements that are priced between two checks for Ctrl-C."""


class Evaluator:
    """Values of many placements of one problem, fast: seconds [K] of placements [K, n_ops], inf if one cannot run.

    It prices placements without checking them; up to `threads` (default: one per core) share a large batch. Calls and
    orders are the judge's own.
    """

    def __init__(self, problem: Problem, *, threads: int | None = None) -> None:
        self.problem, self._threads = problem, threads or usable_cores()
        self._rows = _rows_of(problem)

    def __call__(self, placements: Ints) -> Floats:
        rows = np.ascontiguousarray(np.atleast_2d(placements), np.int32)
        if rows.shape[1] != self.problem.n_ops or (
            rows.size and not 0 <= rows.min() <= rows.max() < self.problem.n_devices
        ):
            raise PlanError("placements must be [K, n_ops] device numbers of this problem")
        values = np.empty(len(rows))
        frozen_rows = frozen(rows, np.int32)
        threads = max(1, min(self._threads, len(rows), rows.size // LITTLE))
        parts = max(threads, -(-rows.size // SLICE))
        slices = list(pairwise(np.linspace(0, len(rows), min(parts, len(rows)) + 1).astype(int).tolist()))
        if threads == 1:
            for first, last in slices:
                self._rows(frozen_rows, first, last, values)
            return values
        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(self._rows, frozen_rows, *pair, values) for pair in slices]
            try:
                for job in jobs:
                    job.result()
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return values


def _rows_of(problem: Problem) -> Rows:
    objective = problem.objective
    if objective.kind == "step":
        return partial(_price_steps, problem)
    if objective.kind == "throughput":
        phases, mode = list_phases(problem), objective.communication
        return lambda rows, first, last, values: summed_loads(phases, rows, mode, first, last, values)
    if objective.op_by_op:
        return partial(schedule.makespans, schedule.schedule_inputs(problem))
    if objective.execution == "subgraph":
        return partial(subgraph.makespans, native_problem(problem))
    native, edges = native_problem(problem), (problem.graph.in_offsets, problem.graph.edges.value)
    return lambda rows, first, last, values: sequential.makespans(native, rows, edges, first, last, values)


def _price_steps(problem: Problem, rows: Ints, first: int, last: int, values: Floats) -> None:
    for row in range(first, last):
        values[row] = judge_step(problem, Placement(rows[row])).value


def evaluate(problem: Problem, placements: Ints) -> Floats:
    """Seconds [K] of placements [K, n_ops]; see `Evaluator`, which is quicker when called again."""
    return Evaluator(problem)(placements)


def judge_placement(problem: Problem, placement: Placement) -> Judgement:
    """Price any complete placement, even an invalid one, and list every rule that it breaks.

    Raises PlanError only if an op has no device.
    """
    if problem.ways is not None:
        return judge_stages(problem, placement)
    incomplete = check_coverage(problem, placement)
    if incomplete:
        raise PlanError(incomplete[0].message, remedy="a placement gives every op one of the cluster's devices")
    if problem.objective.kind == "step":
        return judge_step(problem, placement)
    if problem.objective.kind == "throughput":
        return _judge_throughput(problem, placement)
    return _judge_latency(problem, placement, *_latency(problem, placement))


def _latency(problem: Problem, placement: Placement) -> tuple[float, Timeline]:
    execution = problem.objective.execution
    if problem.objective.op_by_op:
        return schedule.timeline(problem, placement)
    if execution == "subgraph":
        return subgraph.timeline(problem, placement.device, placement.call)
    return sequential.timeline(problem, placement.device)


def _judge_throughput(problem: Problem, placement: Placement) -> Judgement:
    mode, names = problem.objective.communication, (*problem.cluster.names, *problem.cluster.wires)
    phases = list_phases(problem)
    parts = [replicated_loads(problem, phase, placement, syncs=phase is phases[-1]) for phase in phases]
    loads = np.array([throughput.combine(part, mode) for part in parts])
    wires = np.array([part.wires for part in parts])
    everything = np.concatenate((loads, wires), axis=1)
    slowest, value = everything.max(axis=1), float(everything.max(axis=1).sum())
    busiest = [names[k] for k in everything.argmax(axis=1).tolist()]
    spent = [np.sum([part[k] for part in parts], axis=0) for k in range(3)]
    idle = np.subtract(slowest[:, None], loads, out=np.zeros_like(loads), where=np.isfinite(loads))
    waits = _pace_makers(problem.cluster.names, busiest, idle)
    devices = _uses(problem, placement, None, (*spent, loads.sum(axis=0)), value, waits)
    if len(loads) == 2:
        both = loads.T.tolist()
        devices = tuple(replace(u, forward=f, backward=b) for u, (f, b) in zip(devices, both, strict=True))
    if placement.replicas is not None:
        devices = _shared_uses(problem, devices, placement.replicas, parts[-1].sync)
    violations = check_placement(problem, placement, piece_numbers(problem, placement), None)
    traffic = dict(zip(problem.cluster.wires, wires.sum(axis=0).tolist(), strict=True))
    return Judgement(value, devices, tuple(violations), traffic, None, busiest[int(slowest.argmax())])


def _shared_uses(problem: Problem, devices: Sequence[DeviceUse], stage: Ints, sync: Floats) -> tuple[DeviceUse, ...]:
    """The use of devices with replicas: members of a stage run the same ops."""
    names, count = problem.cluster.names, np.bincount(stage, minlength=problem.n_devices)
    found = []
    for d, e in enumerate(stage.tolist()):
        shared = {"ops": devices[e].ops, "waits_for": devices[e].waits_for, "repeats": "" if e == d else names[e]}
        found.append(replace(devices[d], sync=float(sync[d]), replicas=int(count[e]), **shared))
    return tuple(found)


def _pace_makers(names: Sequence[str], busiest: Sequence[str], idle: Floats) -> list[str]:
    """For whom each device waits: the busiest device of the phase in which it idles most; "" if that is itself.

    `busiest` names the device or wire that sets the pace of each phase, `idle` [n_phases, n_devices] is in seconds.
    """
    order = np.argsort(-idle, axis=0, kind="stable").T.tolist()
    return [
        next((busiest[p] for p in phases if busiest[p] != name), "") for name, phases in zip(names, order, strict=True)
    ]


def _judge_latency(problem: Problem, placement: Placement, value: float, timeline: Timeline) -> Judgement:
    count, device = problem.n_devices, placement.device
    seconds = problem.costs.op_seconds[np.arange(len(device)), device]
    compute = np.bincount(device, weights=seconds, minlength=count)
    ran = timeline if math.isfinite(value) else None
    spent = np.zeros(len(timeline.tensor)) if ran is None else ran.arrived - ran.sent
    send = np.bincount(timeline.source, weights=spent, minlength=count + 1)[:count]
    receive = np.bincount(timeline.target, weights=spent, minlength=count + 1)[:count]
    piece = piece_numbers(problem, placement)
    violations = check_calls(problem, device, value) + check_placement(
        problem, placement, piece, ran if piece is None else None
    )
    waits = [""] * count if ran is None else longest_waits(problem, placement, ran, piece)
    load = compute if problem.objective.op_by_op else compute + send + receive
    devices = _uses(problem, placement, ran, (compute, send, receive, load), value, waits)
    busiest = problem.cluster.names[int(load.argmax())]
    phases = _phase_uses(problem, ran) if ran is not None else ()
    return Judgement(value, devices, tuple(violations), {}, ran, busiest, phases)


def _phase_uses(problem: Problem, timeline: Timeline) -> tuple[PhaseUse, ...]:
    """The seconds of one run of each phase: from the end of the phase before to its own end, divided by its runs."""
    phases = problem.graph.phases
    end = np.zeros(len(phases) + 1)
    if phases:
        np.maximum.at(end, problem.graph.ops.phase + 1, timeline.finish)
        end[-1] = timeline.makespan
    spans = np.diff(np.maximum.accumulate(end)).tolist()
    return tuple(
        PhaseUse(phase.name, phase.repeats, span / phase.repeats) for phase, span in zip(phases, spans, strict=True)
    )


def _uses(
    problem: Problem,
    placement: Placement,
    timeline: Timeline | None,
    seconds: Sequence[npt.NDArray[Any]],
    value: float,
    waits: list[str],
) -> tuple[DeviceUse, ...]:
    compute, send, receive, load = (column.tolist() for column in seconds)
    resident, peak = device_memory(problem, placement, timeline)
    ops = np.bincount(placement.device, minlength=problem.n_devices)
    return tuple(
        DeviceUse(
            name, int(ops[d]), compute[d], send[d], receive[d], load[d], value - load[d] if load[d] < value else 0.0,
            float(resident[d]), float(peak[d]), float(problem.capacity[d]), waits[d],
        )
        for d, name in enumerate(problem.cluster.names)
    )  # fmt: skip
