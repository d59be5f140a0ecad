"""The critical path of a timeline: the chain of ops and copies that determines the makespan.

The search walks backwards from the last event to finish. The predecessor of an event is one that ended when it began:
an event whose result it uses, else one that occupied its device or link, else the latest that ended before. Where
nothing ended at that moment, the gap is overhead, such as that of a call. Steps have no gaps between them, so their
seconds add up to the makespan.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline

ROUNDING = 1e-9
"""Moments that differ by less than this share of the makespan are equal."""

StepKind = Literal["op", "copy", "overhead"]


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """One step of the critical path, from `start` to `finish` in seconds.

    `index` is an op, the row of a copy in the timeline, or −1 for overhead. `place` is a device, or ``a → b`` for a
    copy from memory a to memory b; overhead has the place of the step after it.
    """

    kind: StepKind
    index: int
    place: str
    start: float
    finish: float

    @property
    def seconds(self) -> float:
        return self.finish - self.start


def critical_path(problem: Problem, placement: Placement, timeline: Timeline) -> tuple[CriticalStep, ...]:
    """The steps from 0 to the makespan; empty where nothing takes any time, or nothing can run."""
    end = timeline.makespan
    if not math.isfinite(end) or end <= 0:
        return ()
    return _BackwardWalk(problem, placement, timeline).list_steps(end)


class _BackwardWalk:
    """An event is an op (its number) or a copy (n_ops + its row). Columns are lists: the walk reads single entries."""

    def __init__(self, problem: Problem, placement: Placement, timeline: Timeline) -> None:
        graph, cluster = problem.graph, problem.cluster
        self._n, self._names = problem.n_ops, (*cluster.names, HOST)
        self._device: list[int] = placement.device.tolist()
        location: list[int] = cluster.location[placement.device].tolist()
        self._start: list[float] = [*timeline.start.tolist(), *timeline.sent.tolist()]
        self._end: list[float] = [*timeline.finish.tolist(), *timeline.arrived.tolist()]
        self._source: list[int] = [*location, *timeline.source.tolist()]
        self._target: list[int] = [*location, *timeline.target.tolist()]
        self._by_end: list[int] = np.argsort(self._end, kind="stable").tolist()
        self._ends = [self._end[event] for event in self._by_end]
        self._producer: list[int] = graph.tensors.producer.tolist()
        self._offsets: list[int] = graph.in_offsets.tolist()
        self._inputs: list[int] = graph.edges.value.tolist()
        self._tensor: list[int] = timeline.tensor.tolist()
        self._copies: dict[tuple[int, int], list[int]] = {}
        for row, route in enumerate(zip(self._tensor, timeline.target.tolist(), strict=True), self._n):
            self._copies.setdefault(route, []).append(row)
        self._visited = [False] * len(self._end)
        self._slack = ROUNDING * timeline.makespan

    def list_steps(self, end: float) -> tuple[CriticalStep, ...]:
        """All steps in order of time."""
        steps: list[CriticalStep] = []
        event, moment = self._by_end[-1], end
        while True:
            self._visited[event] = True
            begin = 0.0 if self._start[event] <= self._slack else min(self._start[event], moment)
            kind: StepKind = "op" if event < self._n else "copy"
            index = event if event < self._n else event - self._n
            steps.append(CriticalStep(kind, index, self._place(event), begin, moment))
            if begin == 0.0:
                break
            before = self._find_predecessor(event, begin)
            ended = 0.0 if before is None else self._end[before]
            if ended < begin - self._slack:
                steps.append(CriticalStep("overhead", -1, self._place(event), ended, begin))
                begin = ended
            if before is None:
                break
            event, moment = before, begin
        return tuple(reversed(steps))

    def _find_predecessor(self, event: int, begin: float) -> int | None:
        """The event that `event`, which began at `begin`, waited for; None if nothing ended before."""
        for needed in self._list_inputs(event):
            if not self._visited[needed] and abs(self._end[needed] - begin) <= self._slack:
                return needed
        last = bisect_right(self._ends, begin + self._slack)
        first = bisect_left(self._ends, begin - self._slack)
        at_once = [other for other in self._by_end[first:last] if not self._visited[other]]
        if at_once:
            occupied = {self._source[event], self._target[event]}
            return min(at_once, key=lambda e: (occupied.isdisjoint((self._source[e], self._target[e])), self._start[e]))
        while first and self._visited[self._by_end[first - 1]]:
            first -= 1
        return self._by_end[first - 1] if first else None

    def _list_inputs(self, event: int) -> Iterator[int]:
        """The events whose results `event` uses: copies and producers of its inputs, or of a copied tensor."""
        location = self._source[event]
        if event < self._n:
            tensors = self._inputs[self._offsets[event] : self._offsets[event + 1]]
        else:
            tensors = [self._tensor[event - self._n]]
        for tensor in tensors:
            yield from self._copies.get((tensor, location), ())
            if self._producer[tensor] >= 0:
                yield self._producer[tensor]

    def _place(self, event: int) -> str:
        if event < self._n:
            return self._names[self._device[event]]
        return f"{self._names[self._source[event]]} → {self._names[self._target[event]]}"
