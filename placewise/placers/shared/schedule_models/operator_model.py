"""`operator` latency as a constraint program: ops on devices and transfers in queues, neither of which overlap.

Every schedule of the judge (`simulate/judge/schedule.py`) is a solution: ops of a device run one after another (or
share its streams), and so do transfers of a queue; a tensor leaves when its producer has finished, and nothing starts
before its inputs have arrived. The judge has two more rules: queues are first in first out, and devices never idle
while an op is ready. The model leaves these out, because they do not survive rounding: with all costs and moments
rounded down, a schedule of the judge still has no overlap, and the optimum bounds every placement and order; but which
of two tensors is ready first may change. The optimum can therefore be below what any order reaches. The order of the
starts becomes the placement's order, and the judge prices it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import AssignmentVariables, OpGroups, hop_count
from placewise.placers.shared.schedule_models.model_builder import Literal, ModelBuilder, Sum, TimeScale, negated
from placewise.simulate.problem_arrays import arrays_of


def estimate(problem: Problem) -> int:
    """About how many intervals and literals the model would have."""
    return 2 * (problem.n_ops * problem.n_devices + hop_count(problem))


class OperatorModel:
    """Variables: `start` and `end` of ops; transfers are intervals in the queue of their link."""

    excess = 0

    def __init__(self, problem: Problem, groups: OpGroups, scale: TimeScale, capacity: Floats, horizon: int) -> None:
        self.problem, self.scale, self.horizon = problem, scale, horizon
        self.builder = b = ModelBuilder()
        self.assignment = AssignmentVariables(problem, groups, b, capacity)
        self._a = arrays_of(problem)
        self._host = problem.n_devices
        self._seconds = scale.round_down(problem.costs.op_seconds)
        self._transfer = scale.round_down(problem.costs.transfer_seconds)
        self._queue: list[list[Any]] = [[] for _ in range(self._a.n_queues)]
        self.start = [b.number(0, horizon) for _ in range(problem.n_ops)]
        self.end = [b.number(0, horizon) for _ in range(problem.n_ops)]
        self.makespan = b.number(0, horizon)
        self._at = [self.assignment.locations(op) for op in range(problem.n_ops)]
        self._schedule_ops()
        for tensor in range(problem.graph.n_tensors):
            self._transfer_tensor(tensor)
        for queue in self._queue:
            if len(queue) > 1:
                b.model.add_no_overlap(queue)
        b.model.minimize(self.makespan)

    def _schedule_ops(self) -> None:
        b, model = self.builder, self.builder.model
        devices: list[list[Any]] = [[] for _ in range(self.problem.n_devices)]
        for op in range(self.problem.n_ops):
            seconds = Sum()
            for d, x in self.assignment.at[self.assignment.groups.of[op]].items():
                length = int(self._seconds[op, d])
                seconds.add(length, x)
                devices[d].append(model.new_optional_fixed_size_interval_var(self.start[op], length, x, ""))
            model.add(self.end[op] == self.start[op] + seconds.expression())
            model.add(self.makespan >= self.end[op])
        for intervals, streams in zip(devices, self._a.streams.tolist(), strict=True):
            if streams == 1 and len(intervals) > 1:
                model.add_no_overlap(intervals)
            elif len(intervals) > streams:
                model.add_cumulative(intervals, [1] * len(intervals), streams)
        for tensor, reader in zip(self._a.consumed.tolist(), self._a.consumers.tolist(), strict=True):
            if self._a.producer[tensor] >= 0:
                b.model.add(self.start[reader] >= self.end[self._a.producer[tensor]])

    def _transfer_tensor(self, tensor: int) -> None:
        a = self._a
        maker = int(a.producer[tensor])
        made = self._at[maker] if maker >= 0 else {self._host: True}
        finished = self.end[maker] if maker >= 0 else 0
        readers: dict[int, list[tuple[int, Literal]]] = {}
        for reader in a.consumers[a.consumer_offsets[tensor] : a.consumer_offsets[tensor + 1]].tolist():
            for place, x in self._at[reader].items():
                readers.setdefault(place, []).append((reader, x))
        if a.staged:
            self._through_host(tensor, made, finished, readers)
        else:
            self._directly(tensor, made, finished, readers)

    def _through_host(
        self, tensor: int, made: dict[int, Literal], finished: Any, readers: dict[int, list[tuple[int, Literal]]]
    ) -> None:
        """Move a tensor to the host once if it is needed elsewhere, and from there once to each accelerator."""
        b, host, output = self.builder, self._host, bool(self._a.output[tensor])
        home = b.number(0, self.horizon)
        b.model.add(home >= finished)
        for source, x in made.items():
            if source != host:
                away = [y for place, users in readers.items() if place != source for _, y in users]
                up = x if output else b.unless_all(x, [negated(y) for y in away])
                arrival = self._connect(tensor, (source, host), up, finished)
                b.require(home >= arrival, up)
        if output:
            b.model.add(self.makespan >= home)
        for place, users in readers.items():
            elsewhere = negated(made.get(place, False))
            if place == host:
                for reader, y in users:
                    b.require(self.start[reader] >= home, y)
                continue
            down = b.unless((y for _, y in users), negated(elsewhere))
            arrival = self._connect(tensor, (host, place), down, home)
            self._wake(users, elsewhere, arrival)

    def _directly(
        self, tensor: int, made: dict[int, Literal], finished: Any, readers: dict[int, list[tuple[int, Literal]]]
    ) -> None:
        """Move a tensor once to each location that needs it, by the link from where it is made."""
        b, host, output = self.builder, self._host, bool(self._a.output[tensor])
        places = {**readers, **({host: readers.get(host, [])} if output else {})}
        for source, x in made.items():
            for place, users in places.items():
                if place == source:
                    continue
                goes_home = output and place == host
                moves = x if goes_home else b.unless_all(x, [negated(y) for _, y in users])
                arrival = self._connect(tensor, (source, place), moves, finished)
                self._wake(users, x, arrival)
                if goes_home:
                    b.require(self.makespan >= arrival, x)

    def _wake(self, users: list[tuple[int, Literal]], away: Literal, arrival: Any) -> None:
        """Let the `users` that are at the location wait for an arrival, if the tensor comes from `away`."""
        for reader, y in users:
            self.builder.require(self.start[reader] >= arrival, y, away)

    def _connect(self, tensor: int, way: tuple[int, int], present: Literal, ready: Any) -> Any:
        """Queue a hop on its link, if it is `present`; the moment of its arrival."""
        if present is False:
            return 0
        length = int(self._transfer[tensor, self._a.link_class[way]])
        leaves = self.builder.number(0, self.horizon)
        interval = self.builder.model.new_optional_fixed_size_interval_var(leaves, length, present, "")
        if self._queue:
            self._queue[int(self._a.queue[way])].append(interval)
        self.builder.require(leaves >= ready, present)
        return leaves + length

    def start_from(self, home: Ints, start: Floats | None = None) -> None:
        """Hint a solution: devices [n] of groups and, if known, when ops start [n_ops], in seconds."""
        self.assignment.hint(home)
        moments = [] if start is None else self.scale.round_down(start).tolist()
        for moment, variable in zip(moments, self.start, strict=False):
            self.builder.model.add_hint(variable, min(moment, self.horizon))

    def placement(self, value: Callable[[Any], int]) -> Placement:
        """The placement of a solution, with ops ordered by their starts."""
        order = np.empty(self.problem.n_ops, np.int32)
        order[np.argsort([value(start) for start in self.start], kind="stable")] = np.arange(self.problem.n_ops)
        return Placement(self.assignment.devices(value), order=order)
