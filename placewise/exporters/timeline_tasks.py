"""The timeline of a placement as tasks: a run of the judge, or the steady state of a pipeline.

In the steady state, every device repeats the same tasks in every period, which is as long as the value: its ops in
order, each after the copies that it receives and before those that it sends. The position of a task in the period is
fixed. It runs the least number of periods after the start of its sample for which its inputs are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise.exporters.stage_timeline import schedule_stages
from placewise.exporters.stage_work import COMPUTE, track_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Timeline

_SLACK = 1e-9
"""A task may start before its inputs are there by this share of a period: rounding."""


@dataclass(frozen=True, slots=True)
class TimelineTask:
    """An op, or the copy of a tensor, on a track of a place: a device, or ``links`` for the copies of a run.

    Times are in seconds. `after` are the numbers of the tasks, of the same sample, that it receives tensors from.
    `what` says what else it is, of stages whose ops are split (`stage_work.py`).
    """

    place: str
    track: str
    start: float
    seconds: float
    op: int = -1
    tensor: int = -1
    after: tuple[int, ...] = ()
    sample: int = 0
    what: str = ""

    @property
    def finish(self) -> float:
        return self.start + self.seconds


LINKS = "links"
"""The place of the copies of a run."""


def schedule_tasks(problem: Problem, placement: Placement, judged: Judgement, samples: int) -> list[TimelineTask]:
    """The tasks of a placement that can run, ops first and in order; for a pipeline, those of several samples.

    Stages whose ops are split have theirs in the order of their starts.
    """
    if placement.stages and problem.ways is not None:
        return _list_stage_tasks(problem, placement, judged, samples)
    if judged.timeline is not None:
        return _list_run_tasks(problem, placement, judged.timeline)
    first = _PipelinePeriod(problem, placement, judged.value).list_tasks()
    count = len(first)
    return [
        replace(
            task,
            start=task.start + sample * judged.value,
            after=tuple(number + sample * count for number in task.after),
            sample=sample,
        )
        for sample in range(samples)
        for task in first
    ]


def _list_stage_tasks(problem: Problem, placement: Placement, judged: Judgement, samples: int) -> list[TimelineTask]:
    """What every device does with some micro-batches, one after the other; all devices of a replica do the same."""
    made = schedule_stages(problem, placement, judged)
    names, tasks = problem.cluster.names, list[TimelineTask]()
    for sample in range(samples if made.period else 1):
        numbers = list[tuple[int, ...]]()
        for task, stage, start, after in zip(made.tasks, made.stage, made.start.tolist(), made.after, strict=True):
            group = placement.stages[stage]
            t, replica = group.tensor_parallel, sample % group.data_parallel
            devices = group.devices[replica * t : (replica + 1) * t]
            begin, what = start + sample * (made.period or 0.0), "" if task.what == COMPUTE else task.what
            waits = tuple(numbers[before][0] for before in after)
            numbers.append(tuple(range(len(tasks), len(tasks) + t)))
            tasks += (
                TimelineTask(names[d], track_of(task), begin, task.seconds, task.op, task.tensor, waits, sample, what)
                for d in devices
            )
    return tasks


def _list_run_tasks(problem: Problem, placement: Placement, timeline: Timeline) -> list[TimelineTask]:
    graph, cluster = problem.graph, problem.cluster
    host, names = len(cluster), (*cluster.names, "host")
    place = cluster.location[placement.device].tolist()
    maker = graph.tensors.producer.tolist()
    copies = np.lexsort((timeline.arrived, timeline.sent)).tolist()
    number = {copy: problem.n_ops + rank for rank, copy in enumerate(copies)}
    arrivals: dict[tuple[int, int], list[int]] = {}
    for copy in copies:
        arrivals.setdefault((int(timeline.tensor[copy]), int(timeline.target[copy])), []).append(copy)

    def last_arrival(tensor: int, there: int, moment: float) -> tuple[int, ...]:
        """The copy that brought a tensor to a place by a moment, if any."""
        earlier = [c for c in arrivals.get((tensor, there), ()) if timeline.arrived[c] <= moment * (1 + _SLACK)]
        return (number[earlier[-1]],) if earlier else ()

    tasks = []
    for op in range(problem.n_ops):
        begin = float(timeline.start[op])
        needs = [copy for tensor in graph.inputs_of(op).tolist() for copy in last_arrival(tensor, place[op], begin)]
        name = names[int(placement.device[op])]
        seconds = float(timeline.finish[op]) - begin
        tasks.append(TimelineTask(name, "compute", begin, seconds, op, after=tuple(dict.fromkeys(needs))))
    for copy in copies:
        tensor, source, sent = int(timeline.tensor[copy]), int(timeline.source[copy]), float(timeline.sent[copy])
        is_local = maker[tensor] >= 0 and place[maker[tensor]] == source
        after = (maker[tensor],) if is_local else last_arrival(tensor, source, sent)
        track = f"{names[source]} → {names[min(int(timeline.target[copy]), host)]}"
        tasks.append(TimelineTask(LINKS, track, sent, float(timeline.arrived[copy]) - sent, tensor=tensor, after=after))
    return tasks


class _PipelinePeriod:
    """Builds one period of a pipeline: the clocks of all tracks, and the tasks so far."""

    def __init__(self, problem: Problem, placement: Placement, period: float) -> None:
        self._problem, self._period = problem, period
        self._device = placement.device.tolist()
        self._place = problem.cluster.location[placement.device].tolist()
        self._clock: dict[tuple[str, str], float] = {}
        self._ops: list[TimelineTask] = []
        self._copies: list[TimelineTask] = []
        self._there: dict[tuple[int, int], int] = {}

    def list_tasks(self) -> list[TimelineTask]:
        """Ops in order, then copies; task numbers count through both."""
        graph, host = self._problem.graph, len(self._problem.cluster)
        for op in range(self._problem.n_ops):
            home = self._place[op]
            needed = [self._receive(tensor, home) for tensor in graph.inputs_of(op).tolist()]
            local = [maker for maker in graph.tensors.producer[graph.inputs_of(op)].tolist() if maker >= 0]
            waits = [number for number in dict.fromkeys(needed) if number >= 0]
            name = self._problem.cluster.names[self._device[op]]
            seconds = float(self._problem.costs.op_seconds[op, self._device[op]])
            same = [maker for maker in local if self._place[maker] == home]
            self._ops.append(self._append_task(name, "compute", seconds, waits, same, op=op))
            for tensor in graph.outputs_of(op):
                self._send(tensor, op, home, host)
        return self._ops + self._copies

    def _send(self, tensor: int, op: int, home: int, host: int) -> None:
        """Send a tensor from its producer: once to the host if transfers are staged, else to all its readers."""
        graph, cluster = self._problem.graph, self._problem.cluster
        readers = {self._place[user] for user in graph.consumers_of(tensor).tolist()}
        targets = sorted((readers | ({host} if graph.tensors.output[tensor] else set())) - {home})
        if home == host or not targets:
            return
        for target in [host] if cluster.transfers == "staged" else targets:
            self._there[tensor, target] = self._copy(tensor, home, target, home, [op])

    def _receive(self, tensor: int, home: int) -> int:
        """The copy that brings a tensor to a place, on the track of a receiving accelerator; −1 if it is there."""
        maker, host = int(self._problem.graph.tensors.producer[tensor]), len(self._problem.cluster)
        source = host if maker < 0 else self._place[maker]
        if source == home:
            return -1
        known = self._there.get((tensor, home), -1)
        if home == host or (known >= 0 and self._copies[known - self._problem.n_ops].place != self._name(source)):
            return known
        via = host if self._problem.cluster.transfers == "staged" else source
        sent = self._there.get((tensor, host), known) if via == host else known
        after = [sent] if sent >= 0 else [maker] if maker >= 0 else []
        self._there[tensor, home] = self._copy(tensor, via, home, home, after)
        return self._there[tensor, home]

    def _copy(self, tensor: int, source: int, target: int, payer: int, after: Sequence[int]) -> int:
        costs, link_class = self._problem.costs, self._problem.cluster.link_class
        seconds = float(costs.transfer_seconds[tensor, link_class[source, target]])
        track = {"blocking": "compute", "overlap": "copies"}.get(
            self._problem.objective.communication, "send" if payer == source else "receive"
        )
        self._copies.append(self._append_task(self._name(payer), track, seconds, after, (), tensor=tensor))
        return self._problem.n_ops + len(self._copies) - 1

    def _append_task(
        self, place: str, track: str, seconds: float, after: Sequence[int], local: Sequence[int], *,
        op: int = -1, tensor: int = -1,
    ) -> TimelineTask:  # fmt: skip
        """A task that is next on its track, delayed by whole periods until its inputs are there."""
        begin = self._clock.get((place, track), 0.0)
        self._clock[place, track] = begin + seconds
        ready = max((self._task(number).finish for number in (*after, *local)), default=0.0)
        late = math.ceil((ready - begin) / self._period - _SLACK) if self._period > 0 else 0
        return TimelineTask(place, track, begin + max(late, 0) * self._period, seconds, op, tensor, tuple(after))

    def _task(self, number: int) -> TimelineTask:
        count = self._problem.n_ops
        return self._ops[number] if number < count else self._copies[number - count]

    def _name(self, place: int) -> str:
        return self._problem.cluster.names[place] if place < len(self._problem.cluster) else "host"
