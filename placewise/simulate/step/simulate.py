"""One training step of a pipeline, simulated: all micro-batches, then gradients that are shared, then the update.

A device runs its tasks in the order of the schedule, each as soon as the one before is done and its inputs are there. A
link carries one transfer at a time, beside the compute: what leaves a device in the order in which it is made, what
leaves host memory in the order in which its receiver needs it. A wire that links share carries one transfer at a time
too, the one that is ready first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.simulate.judge.memory import weight_bytes
from placewise.simulate.replicas import ring_bandwidth
from placewise.simulate.step.program import StepProgram, make_program, run_through, serve_wires
from placewise.simulate.step.stage_costs import (
    KINDS,
    NOWHERE,
    Hop,
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
    program: StepProgram
    starts: Floats
    ends: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """A simulated step: its seconds, inf if it cannot run, and its copies.

    By place along the pipeline: `sync` seconds of summing the gradients of the copies, `update` seconds of the
    optimizer. Of copies that do not disturb each other the first stands for all.
    """

    value: float
    microbatches: int
    pipeline: Pipeline
    copies: tuple[CopyRun, ...]
    sync: Floats
    update: Floats


def simulate_step(problem: Problem, pipeline: Pipeline, microbatches: int, *, blocking: bool = False) -> StepRun:
    """Simulate a step of so many micro-batches, which the copies of the pipeline share.

    With `blocking`, both devices of a transfer work for all of it. Then copies do not disturb each other.
    """
    count, places = len(pipeline.devices), pipeline.stage_places()
    own = microbatches // len(pipeline.replicas)
    costs = cost_stages(problem, pipeline)
    nothing = np.zeros(count)
    if not costs.runs or not np.isfinite(costs.seconds).all() or not np.isfinite(costs.update).all():
        return StepRun(np.inf, own, pipeline, (), nothing, nothing)
    costs = block_transfers(costs) if blocking else costs
    sync, update = sync_seconds(problem, pipeline), sum_by(places, costs.update, count)
    shares, copies = bool(problem.cluster.wires) and not blocking, [costs]
    copies += [cost_stages(problem, pipeline, copy) for copy in range(1, len(pipeline.replicas) if shares else 1)]
    programs = [
        make_program(pipeline.schedule, len(pipeline.devices), own, one.passed.hops, pipeline.orders) for one in copies
    ]
    links = {hop.link for one in copies for hops in (one.passed, one.gradients, one.renewals) for hop in hops.hops}
    if len({int(problem.cluster.queue[link]) for link in links}) < len(links):
        value, runs = _run_together(problem, pipeline, copies, programs, sync, update)
        return StepRun(value, own, pipeline, runs, sync, update)
    runs = tuple(_run_alone(one, program) for one, program in zip(copies, programs, strict=True))
    done = np.zeros(count)
    free: dict[tuple[int, int], float] = {}
    for run in runs:
        last = np.zeros(count + len(run.program.links))
        np.maximum.at(last, run.program.resource, run.ends)
        done = np.maximum(done, last[:count])
        free |= dict(zip(run.program.links, last[count:].tolist(), strict=True))
    arrived = _exchange(costs.gradients, done, free, places)
    updated = np.maximum(done, arrived) + sync + update
    renewed = _exchange(costs.renewals, updated, free, places)
    ends = [float(run.ends.max(initial=0.0)) for run in runs]
    value = max(*ends, float(updated.max()), float(renewed.max()), 0.0)
    return StepRun(value, own, pipeline, runs, sync, update)


def _run_alone(costs: StageCosts, program: StepProgram) -> CopyRun:
    """A copy that has its links to itself."""
    starts, ends = run_through(_list_seconds(costs, program), program.resource, program.before)
    return CopyRun(costs, program, starts, ends)


def _list_seconds(costs: StageCosts, program: StepProgram) -> list[float]:
    """The seconds [n_items] of the items of a program."""
    seconds: list[float] = np.concatenate((costs.seconds, costs.passed.seconds))[program.type].tolist()
    return seconds


@dataclass(slots=True)
class _SharedItems:
    """What happens in a step of copies that share wires; each item comes after those that it waits for.

    `tasks` are those of each place of a copy, `sent` the last transfer over each link.
    """

    wire_of: Ints
    duration: list[float] = field(default_factory=list)
    wire: list[int] = field(default_factory=list)
    before: list[tuple[int, ...]] = field(default_factory=list)
    rank: list[tuple[int, ...]] = field(default_factory=list)
    tasks: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    sent: dict[tuple[int, int], int] = field(default_factory=dict)

    def add_task(self, copy: int, place: int, seconds: float, after: Sequence[int]) -> None:
        """A task after the last one of its device."""
        own = self.tasks.setdefault((copy, place), [])
        own.append(self._add(seconds, -1, (*after, *own[-1:]), ()))

    def add_program(self, copy: int, costs: StageCosts, program: StepProgram, places: Sequence[int]) -> slice:
        """All micro-batches of a copy; where its items are, in the order of the program."""
        base, n = len(self.duration), costs.n_stages
        rows = zip(program.type.tolist(), program.before, _list_seconds(costs, program), strict=True)
        for type_, waits, seconds in rows:
            after = [base + other for other in waits]
            if type_ < KINDS * n:
                self.add_task(copy, places[type_ % n], seconds, after)
                continue
            hop = costs.passed.hops[type_ - KINDS * n]
            place = places[hop.end % n]
            position = len(self.tasks.get((copy, place), ())) - (not hop.by_receiver)
            self._add_hop(hop, seconds, after, (position, place, copy, type_ - KINDS * n))
        return slice(base, len(self.duration))

    def add_exchange(self, copy: int, hops: Hops, places: Sequence[int]) -> dict[int, list[int]]:
        """What passes once per step, after the last tasks of its makers; what arrives at each place."""
        items: list[int] = []
        arrived: dict[int, list[int]] = {}
        for number, (hop, seconds) in enumerate(zip(hops.hops, hops.seconds.tolist(), strict=True)):
            after = items[hop.after] if hop.after != NOWHERE else self.tasks[copy, places[hop.source]][-1]
            place = places[hop.end]
            rank = (len(self.tasks[copy, place]), place, copy, number)
            items.append(self._add_hop(hop, seconds, (after,), rank))
            for reader in hop.readers:
                arrived.setdefault(places[reader], []).append(items[-1])
        return arrived

    def _add_hop(self, hop: Hop, seconds: float, after: Sequence[int], rank: tuple[int, ...]) -> int:
        wire, before = int(self.wire_of[hop.link]), tuple(after)
        if (wire < 0 or hop.by_receiver) and hop.link in self.sent:
            before = (*before, self.sent[hop.link])
        self.sent[hop.link] = self._add(seconds, wire, before, rank)
        return self.sent[hop.link]

    def _add(self, seconds: float, wire: int, before: tuple[int, ...], rank: tuple[int, ...]) -> int:
        self.duration.append(seconds)
        self.wire.append(wire)
        self.before.append(before)
        self.rank.append(rank)
        return len(self.duration) - 1


def _run_together(
    problem: Problem, pipeline: Pipeline, copies: Sequence[StageCosts], programs: Sequence[StepProgram],
    sync: Floats, update: Floats,
) -> tuple[float, tuple[CopyRun, ...]]:  # fmt: skip
    """Seconds and copies where links share wires."""
    items, places, rows = _SharedItems(problem.cluster.wire), pipeline.stage_places(), range(len(copies))
    own = [items.add_program(copy, copies[copy], programs[copy], places) for copy in rows]
    arrived = [items.add_exchange(copy, copies[copy].gradients, places) for copy in rows]
    for place in range(len(pipeline.devices)):
        ready = [items.tasks[copy, place][-1] for copy in rows]
        ready += [item for there in arrived for item in there.get(place, ())]
        for copy in rows:
            items.add_task(copy, place, float(sync[place]), ready)
            items.add_task(copy, place, float(update[place]), ())
    for copy in rows:
        items.add_exchange(copy, copies[copy].renewals, places)
    starts, ends = serve_wires(items.duration, items.wire, items.before, items.rank)
    runs = tuple(CopyRun(copies[copy], programs[copy], starts[own[copy]], ends[own[copy]]) for copy in rows)
    return float(ends.max()), runs


def _exchange(hops: Hops, done: Floats, free: dict[tuple[int, int], float], places: Sequence[int]) -> Floats:
    """When what passes once per step has arrived [n_devices], from when each device is done; it occupies `free`."""
    arrived, ends = np.zeros(len(done)), [0.0] * len(hops.hops)
    for number, (hop, seconds) in enumerate(zip(hops.hops, hops.seconds.tolist(), strict=True)):
        ready = ends[hop.after] if hop.after != NOWHERE else float(done[places[hop.source]])
        ends[number] = free[hop.link] = max(ready, free.get(hop.link, 0.0)) + seconds
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
