"""One training step of a pipeline, simulated: all micro-batches, then gradients that are shared, then the update.

A device runs its tasks in the order of the schedule, each as soon as the one before is done and its inputs are there. A
link carries one transfer at a time, beside the compute: what leaves a device in the order in which it is made, what
leaves host memory in the order in which its receiver needs it. Links that share a wire carry their transfers in the
order in which these would start if every link had a wire of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.simulate.judge.memory import weight_bytes
from placewise.simulate.replicas import ring_bandwidth
from placewise.simulate.step.program import Program, make_program, run_through
from placewise.simulate.step.stage_costs import (
    NOWHERE,
    Hops,
    Pipeline,
    StageCosts,
    block_transfers,
    cost_stages,
    sum_by,
)


@dataclass(frozen=True, slots=True, eq=False)
class CopyRun:
    """One copy of the pipeline in a step: its figures, and when its items start and end [n_items]."""

    costs: StageCosts
    program: Program
    starts: Floats
    ends: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """A simulated step: its seconds, inf if it cannot run, and its copies.

    By place along the pipeline: `sync` seconds of summing the gradients of the copies, `update` seconds of the
    optimizer, and `updated`, when it ends; of copies that do not disturb each other the first stands for all.
    """

    value: float
    microbatches: int
    pipeline: Pipeline
    copies: tuple[CopyRun, ...]
    sync: Floats
    update: Floats
    updated: Floats


def simulate_step(problem: Problem, pipeline: Pipeline, microbatches: int, *, blocking: bool = False) -> StepRun:
    """Simulate a step of so many micro-batches, which the copies of the pipeline share.

    With `blocking`, both devices of a transfer work for all of it. Then copies do not disturb each other.
    """
    count, places = len(pipeline.devices), pipeline.stage_places()
    own = microbatches // len(pipeline.replicas)
    costs = cost_stages(problem, pipeline)
    nothing = np.zeros(count)
    if not costs.runs or not np.isfinite(costs.seconds).all() or not np.isfinite(costs.update).all():
        return StepRun(np.inf, own, pipeline, (), nothing, nothing, nothing)
    costs = block_transfers(costs) if blocking else costs
    runs, queue = _run_copies(problem, pipeline, own, costs, alone=blocking or not problem.cluster.wires)
    done = np.zeros(count)
    free: dict[int, float] = {}
    for run in runs:
        last = np.zeros(count + len(run.program.links))
        np.maximum.at(last, run.program.resource, run.ends)
        done = np.maximum(done, last[:count])
        for k, link in enumerate(run.program.links):
            key = int(queue[link])
            free[key] = max(free.get(key, 0.0), float(last[count + k]))
    arrived = _exchange(runs[0].costs.gradients, done, free, queue, places)
    sync = sync_seconds(problem, pipeline)
    update = sum_by(places, costs.update, count)
    updated = np.maximum(done, arrived) + sync + update
    renewed = _exchange(runs[0].costs.renewals, updated, free, queue, places)
    ends = [float(run.ends.max(initial=0.0)) for run in runs]
    value = max(*ends, float(updated.max()), float(renewed.max()), 0.0)
    return StepRun(value, own, pipeline, runs, sync, update, updated)


def _run_copies(
    problem: Problem, pipeline: Pipeline, microbatches: int, costs: StageCosts, *, alone: bool
) -> tuple[tuple[CopyRun, ...], Ints]:
    """The copies of a pipeline, or the first `alone` where none disturbs another; and the queue of every link."""
    queue = problem.cluster.queue
    first = _run_alone(pipeline, microbatches, costs)
    if alone:
        return (first,), queue
    rest = range(1, len(pipeline.replicas))
    runs = (first, *(_run_alone(pipeline, microbatches, cost_stages(problem, pipeline, copy)) for copy in rest))
    links = [link for run in runs for link in run.program.links]
    if len({int(queue[link]) for link in links}) == len(links):
        return runs, queue
    return _run_together(runs, queue, len(pipeline.devices)), queue


def _run_alone(pipeline: Pipeline, microbatches: int, costs: StageCosts) -> CopyRun:
    program = make_program(pipeline.schedule, len(pipeline.devices), microbatches, costs.passed.hops, pipeline.orders)
    duration = np.concatenate((costs.seconds, costs.passed.seconds))[program.type]
    starts, ends = run_through(duration.tolist(), program.resource, program.before)
    return CopyRun(costs, program, starts, ends)


def _run_together(runs: Sequence[CopyRun], queue: Ints, count: int) -> tuple[CopyRun, ...]:
    """The same copies on shared wires, which take transfers in the order of their starts without sharing."""
    sizes = [len(run.starts) for run in runs]
    base = np.concatenate(([0], np.cumsum(sizes))).tolist()
    numbers: dict[object, int] = {}
    resource, before, duration = [], [], []
    for copy, run in enumerate(runs):
        own: list[object] = [(copy, place) for place in range(count)]
        own += [int(queue[link]) for link in run.program.links]
        resource += [numbers.setdefault(own[r], len(numbers)) for r in run.program.resource]
        before += [tuple(base[copy] + other for other in waits) for waits in run.program.before]
        duration += (run.ends - run.starts).tolist()
    order = np.argsort(np.concatenate([run.starts for run in runs]), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    at = place.tolist()
    listed = order.tolist()
    starts, ends = run_through(
        [duration[item] for item in listed],
        [resource[item] for item in listed],
        [tuple(at[other] for other in before[item]) for item in listed],
    )
    starts, ends = starts[place], ends[place]
    return tuple(
        CopyRun(run.costs, run.program, starts[low:high], ends[low:high])
        for run, low, high in zip(runs, base, base[1:], strict=False)
    )


def _exchange(hops: Hops, done: Floats, free: dict[int, float], queue: Ints, places: Sequence[int]) -> Floats:
    """When what passes once per step has arrived [n_devices], from when each device is done; it occupies `free`."""
    arrived, ends = np.zeros(len(done)), [0.0] * len(hops.hops)
    for number, (hop, seconds) in enumerate(zip(hops.hops, hops.seconds.tolist(), strict=True)):
        ready = ends[hop.after] if hop.after != NOWHERE else float(done[places[hop.source]])
        key = int(queue[hop.link])
        ends[number] = free[key] = max(ready, free.get(key, 0.0)) + seconds
        for reader in hop.readers:
            arrived[places[reader]] = max(arrived[places[reader]], ends[number])
    return arrived


def sync_seconds(problem: Problem, pipeline: Pipeline) -> Floats:
    """Seconds [n_devices along the pipeline] of summing the gradients of the copies in a ring, once per step."""
    count, copies = len(pipeline.devices), len(pipeline.replicas)
    if copies < 2:
        return np.zeros(count)
    size = weight_bytes(problem, pipeline.stage_devices()[pipeline.stage])
    seconds = np.zeros(count)
    for place, device in enumerate(pipeline.devices):
        members = [own[place] for own in pipeline.replicas]
        seconds[place] = 2 * (copies - 1) / copies * size[device] / ring_bandwidth(problem, members)
    return seconds
