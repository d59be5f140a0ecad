"""The critical path of a timeline: the ops and copies that lead, one after the other, to the end of the run.

It is read backwards from the last thing to finish. Before every step stands what ended when it began: what it needed
(an input, or the copy of one), else what held its device or link, else whatever ended last. Where nothing ended at that
moment, the time between is overhead, such as that of a call. The steps follow each other without a hole, so that their
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
"""Share of the makespan by which two moments may differ and still be the same."""

StepKind = Literal["op", "copy", "overhead"]


@dataclass(frozen=True, slots=True)
class Step:
    """Something on the critical path, from `start` to `finish` in seconds.

    `index` is an op, or the row of a copy among the timeline's transfers, −1 for overhead; `place` a device, or
    ``a → b`` for a copy from memory a to memory b. Overhead stands at the place of the step after it.
    """

    kind: StepKind
    index: int
    place: str
    start: float
    finish: float

    @property
    def seconds(self) -> float:
        return self.finish - self.start


def critical_path(problem: Problem, placement: Placement, timeline: Timeline) -> tuple[Step, ...]:
    """The steps from 0 to the makespan; none where nothing takes any time, or nothing can run."""
    end = timeline.makespan
    if not math.isfinite(end) or end <= 0:
        return ()
    return _Walk(problem, placement, timeline).steps(end)


class _Walk:
    """One walk back. An event is an op (its number), or a copy (n_ops + its row). Lists, because it looks at one
    event at a time.
    """

    def __init__(self, problem: Problem, placement: Placement, timeline: Timeline) -> None:
        graph, cluster = problem.graph, problem.cluster
        self._n, self._names = problem.n_ops, (*cluster.names, HOST)
        self._device: list[int] = placement.device.tolist()
        home: list[int] = cluster.location[placement.device].tolist()
        self._start: list[float] = [*timeline.start.tolist(), *timeline.sent.tolist()]
        self._end: list[float] = [*timeline.finish.tolist(), *timeline.arrived.tolist()]
        self._source: list[int] = [*home, *timeline.source.tolist()]
        self._target: list[int] = [*home, *timeline.target.tolist()]
        self._by_end: list[int] = np.argsort(self._end, kind="stable").tolist()
        self._ends = [self._end[event] for event in self._by_end]
        self._maker: list[int] = graph.tensors.producer.tolist()
        self._offsets: list[int] = graph.in_offsets.tolist()
        self._inputs: list[int] = graph.edges.value.tolist()
        self._tensor: list[int] = timeline.tensor.tolist()
        self._copies: dict[tuple[int, int], list[int]] = {}
        for row, way in enumerate(zip(self._tensor, timeline.target.tolist(), strict=True), self._n):
            self._copies.setdefault(way, []).append(row)
        self._seen = [False] * len(self._end)
        self._slack = ROUNDING * timeline.makespan

    def steps(self, end: float) -> tuple[Step, ...]:
        """All steps, the last one first found."""
        steps: list[Step] = []
        event, moment = self._by_end[-1], end
        while True:
            self._seen[event] = True
            begin = 0.0 if self._start[event] <= self._slack else min(self._start[event], moment)
            kind: StepKind = "op" if event < self._n else "copy"
            index = event if event < self._n else event - self._n
            steps.append(Step(kind, index, self._place(event), begin, moment))
            if begin == 0.0:
                break
            before = self._before(event, begin)
            ended = 0.0 if before is None else self._end[before]
            if ended < begin - self._slack:
                steps.append(Step("overhead", -1, self._place(event), ended, begin))
                begin = ended
            if before is None:
                break
            event, moment = before, begin
        return tuple(reversed(steps))

    def _before(self, event: int, begin: float) -> int | None:
        """What `event`, which began then, waited for; None where nothing ended before."""
        for needed in self._needed(event):
            if not self._seen[needed] and abs(self._end[needed] - begin) <= self._slack:
                return needed
        last = bisect_right(self._ends, begin + self._slack)
        first = bisect_left(self._ends, begin - self._slack)
        at_once = [other for other in self._by_end[first:last] if not self._seen[other]]
        if at_once:
            held = {self._source[event], self._target[event]}
            return min(at_once, key=lambda e: (held.isdisjoint((self._source[e], self._target[e])), self._start[e]))
        while first and self._seen[self._by_end[first - 1]]:
            first -= 1
        return self._by_end[first - 1] if first else None

    def _needed(self, event: int) -> Iterator[int]:
        """The events whose results `event` uses: copies of its inputs and their makers, or the maker of a copy."""
        home = self._source[event]
        if event < self._n:
            tensors = self._inputs[self._offsets[event] : self._offsets[event + 1]]
        else:
            tensors = [self._tensor[event - self._n]]
        for tensor in tensors:
            yield from self._copies.get((tensor, home), ())
            if self._maker[tensor] >= 0:
                yield self._maker[tensor]

    def _place(self, event: int) -> str:
        if event < self._n:
            return self._names[self._device[event]]
        return f"{self._names[self._source[event]]} → {self._names[self._target[event]]}"
