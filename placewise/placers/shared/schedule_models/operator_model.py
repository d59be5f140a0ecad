"""`operator` latency as a constraint program: ops on devices without overlap, transfers in queues without overlap.

Every schedule of the judge (`simulate/schedule.py`) is a solution: ops of a device take turns (or share its streams),
transfers of a queue too, a tensor leaves when its maker has finished, and nothing starts before its inputs are
there. The judge's schedules are fewer: its queues are first in first out, and its devices never idle
while an op is ready. That is left out on purpose. It would not survive rounding: with every cost rounded down, a
schedule of the judge, its moments rounded down too, still has no overlap, so that the optimum is a bound for every
placement and every order; but which of two tensors is ready first may change. Hence the optimum here can be below
what any order reaches. The order of its starts becomes the placement's order, and the judge says what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import Groups, Homes
from placewise.placers.shared.schedule_models.model import Literal, Program, Sum, negated
from placewise.placers.shared.schedule_models.time_units import Units
from placewise.simulate.problem_arrays import arrays_of


def estimate(problem: Problem) -> int:
    """About how many intervals and literals the program would have."""
    width = problem.n_devices
    hops = 2 * width if problem.cluster.transfers == "staged" else width * (width + 1)
    return 2 * (problem.n_ops * width + problem.graph.n_tensors * hops)


class QueueProgram:
    """`start`, `end` of ops; transfers are intervals in the queue of their link."""

    excess = 0

    def __init__(self, problem: Problem, groups: Groups, units: Units, capacity: Floats, horizon: int) -> None:
        self.problem, self.units, self.horizon = problem, units, horizon
        self.program = p = Program()
        self.homes = Homes(problem, groups, p, capacity)
        self._a = arrays_of(problem)
        self._host = problem.n_devices
        self._seconds = units.of(problem.costs.op_seconds)
        self._transfer = units.of(problem.costs.transfer_seconds)
        self._queue: list[list[Any]] = [[] for _ in range(self._a.n_queues)]
        self.start = [p.number(0, horizon) for _ in range(problem.n_ops)]
        self.end = [p.number(0, horizon) for _ in range(problem.n_ops)]
        self.makespan = p.number(0, horizon)
        self._at = [self.homes.locations(op) for op in range(problem.n_ops)]
        self._ops()
        for tensor in range(problem.graph.n_tensors):
            self._move(tensor)
        for queue in self._queue:
            if len(queue) > 1:
                p.model.add_no_overlap(queue)
        p.model.minimize(self.makespan)

    def _ops(self) -> None:
        p, model = self.program, self.program.model
        devices: list[list[Any]] = [[] for _ in range(self.problem.n_devices)]
        for op in range(self.problem.n_ops):
            seconds = Sum()
            for d, x in self.homes.at[self.homes.groups.of[op]].items():
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
                p.model.add(self.start[reader] >= self.end[self._a.producer[tensor]])

    def _move(self, tensor: int) -> None:
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
        """To the host once, wherever else it is needed, and from there once to every accelerator."""
        p, host, output = self.program, self._host, bool(self._a.output[tensor])
        home = p.number(0, self.horizon)
        p.model.add(home >= finished)
        for source, x in made.items():
            if source != host:
                away = [y for place, users in readers.items() if place != source for _, y in users]
                up = x if output else p.unless_all(x, [negated(y) for y in away])
                arrival = self._connect(tensor, (source, host), up, finished)
                p.require(home >= arrival, up)
        if output:
            p.model.add(self.makespan >= home)
        for place, users in readers.items():
            elsewhere = negated(made.get(place, False))
            if place == host:
                for reader, y in users:
                    p.require(self.start[reader] >= home, y)
                continue
            down = p.unless((y for _, y in users), negated(elsewhere))
            arrival = self._connect(tensor, (host, place), down, home)
            self._wake(users, elsewhere, arrival)

    def _directly(
        self, tensor: int, made: dict[int, Literal], finished: Any, readers: dict[int, list[tuple[int, Literal]]]
    ) -> None:
        """Once to every location where it is needed, by the link from where it is made."""
        p, host, output = self.program, self._host, bool(self._a.output[tensor])
        places = {**readers, **({host: readers.get(host, [])} if output else {})}
        for source, x in made.items():
            for place, users in places.items():
                if place == source:
                    continue
                goes_home = output and place == host
                moves = x if goes_home else p.unless_all(x, [negated(y) for _, y in users])
                arrival = self._connect(tensor, (source, place), moves, finished)
                self._wake(users, x, arrival)
                if goes_home:
                    p.require(self.makespan >= arrival, x)

    def _wake(self, users: list[tuple[int, Literal]], away: Literal, arrival: Any) -> None:
        """Those of `users` that are there wait for an arrival, where it comes from `away`."""
        for reader, y in users:
            self.program.require(self.start[reader] >= arrival, y, away)

    def _connect(self, tensor: int, way: tuple[int, int], present: Literal, ready: Any) -> Any:
        """One hop by the queue of its link, if it is `present`; when it arrives."""
        if present is False:
            return 0
        length = int(self._transfer[tensor, self._a.link_class[way]])
        leaves = self.program.number(0, self.horizon)
        interval = self.program.model.new_optional_fixed_size_interval_var(leaves, length, present, "")
        self._queue[int(self._a.queue[way])].append(interval)
        self.program.require(leaves >= ready, present)
        return leaves + length

    def start_from(self, home: Ints, start: Floats | None = None) -> None:
        """Tell the solver of the homes [n] of groups, and perhaps of when ops start [n_ops], in seconds."""
        self.homes.hint(home)
        for moment, variable in zip([] if start is None else self.units.of(start).tolist(), self.start, strict=False):
            self.program.model.add_hint(variable, min(moment, self.horizon))

    def placement(self, value: Callable[[Any], int]) -> Placement:
        """The placement that a solution means: ops that start earlier come first."""
        device = np.empty(self.problem.n_ops, np.int32)
        for op, group in enumerate(self.homes.groups.of.tolist()):
            device[op] = next(d for d, x in self.homes.at[group].items() if x is True or value(x))
        order = np.empty(self.problem.n_ops, np.int32)
        order[np.argsort([value(start) for start in self.start], kind="stable")] = np.arange(self.problem.n_ops)
        return Placement(device, order=order)
