"""`sequential` latency as a constraint program: the sum of ops, hops and overheads of pieces.

The judge's sum (`simulate/judge/sequential.py`) does not depend on the order of the pieces: each op counts once, each
tensor crosses once to each location that needs it (staged: once to the host, and once from there), and each piece pays
the overhead of its device. Pieces have the judge's numbers, the most changes of device on a path to an op; where that
takes too many literals, each device in use counts as one piece, which bounds the sum from below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import AssignmentVariables, OpGroups, hop_count, makers_of
from placewise.placers.shared.schedule_models.model_builder import Literal, ModelBuilder, Sum, TimeScale, negated
from placewise.simulate.problem_arrays import arrays_of

MAX_NUMBERS = 50_000
"""The most pairs of ops and piece numbers for which the model tells pieces apart."""


def estimate(problem: Problem) -> int:
    """About how many literals the model would have."""
    return problem.n_blocks * problem.n_devices + hop_count(problem)


class SequentialModel:
    """Variables: a literal per group and device, per hop, and per piece."""

    excess = 0

    def __init__(self, problem: Problem, groups: OpGroups, scale: TimeScale, capacity: Floats, horizon: int) -> None:
        self.problem, self.scale = problem, scale
        self.builder = b = ModelBuilder()
        self.assignment = AssignmentVariables(problem, groups, b, capacity)
        self._a = arrays_of(problem)
        self._host = problem.n_devices
        self._transfer = scale.round_down(problem.costs.transfer_seconds)
        self._total = Sum()
        seconds = scale.round_down(problem.costs.op_seconds)
        for op in range(problem.n_ops):
            for d, x in self.assignment.at[groups.of[op]].items():
                self._total.add(int(seconds[op, d]), x)
        self._at = [self.assignment.locations(op) for op in range(problem.n_ops)]
        for tensor in range(problem.graph.n_tensors):
            self._transfer_tensor(tensor)
        self._overheads()
        self.makespan = b.number(0, horizon)
        b.model.add(self.makespan >= self._total.expression())
        b.model.minimize(self.makespan)

    def _transfer_tensor(self, tensor: int) -> None:
        a, b, host = self._a, self.builder, self._host
        maker, output = int(a.producer[tensor]), bool(a.output[tensor])
        made = self._at[maker] if maker >= 0 else {host: True}
        readers: dict[int, list[Literal]] = {host: [True]} if output else {}
        for reader in a.consumers[a.consumer_offsets[tensor] : a.consumer_offsets[tensor + 1]].tolist():
            for place, x in self._at[reader].items():
                readers.setdefault(place, []).append(x)
        for place, users in readers.items():
            if a.staged and place != host:
                self._pay(tensor, host, place, b.unless(users, made.get(place, False)))
        for source, x in made.items():
            if a.staged and source != host:
                away = [y for place, users in readers.items() if place != source for y in users]
                self._pay(tensor, source, host, b.unless_all(x, [negated(y) for y in away]))
            for place, users in readers.items() if not a.staged else ():
                if place != source:
                    self._pay(tensor, source, place, b.unless_all(x, [negated(y) for y in users]))

    def _pay(self, tensor: int, source: int, target: int, moves: Literal) -> None:
        self._total.add(int(self._transfer[tensor, self._a.link_class[source, target]]), moves)

    def _overheads(self) -> None:
        overhead = self.scale.round_down(np.array([device.call_overhead for device in self.problem.cluster])).tolist()
        if not any(overhead):
            return
        most = _longest_path(self.problem)
        if self.problem.n_ops * most * self.problem.n_devices > MAX_NUMBERS:
            for d in np.flatnonzero(overhead).tolist():
                here = [row.get(d, False) for row in self.assignment.at]
                self._total.add(overhead[d], self.builder.unless(here, False))
            return
        number = self._numbers(most)
        for d in np.flatnonzero(overhead).tolist():
            for k in range(most):
                self._total.add(overhead[d], self._piece(d, k, number))

    def _numbers(self, most: int) -> list[list[Any]]:
        """Literals `number[v][k]`: the piece of op v has number k."""
        b, model = self.builder, self.builder.model
        count: list[Any] = []
        for op, makers in enumerate(makers_of(self._a)):
            count.append(b.number(0, most - 1))
            steps = [count[maker] + self._change(maker, op) for maker in makers]
            model.add_max_equality(count[op], [*steps, 0])
        number = []
        for variable in count:
            literals = [b.literal() for _ in range(most)]
            model.add_exactly_one(literals)
            model.add(variable == sum(k * x for k, x in enumerate(literals)))
            number.append(literals)
        return number

    def _change(self, maker: int, reader: int) -> Any:
        """1 if two ops are on different devices, else 0."""
        b, of = self.builder, self.assignment.groups.of
        if of[maker] == of[reader]:
            return 0
        one, other = self.assignment.at[of[maker]], self.assignment.at[of[reader]]
        changes = b.literal()
        for d in one.keys() | other.keys():
            x, y = one.get(d, False), other.get(d, False)
            b.require(changes == 0, x, y)
            b.require(changes == 1, x, negated(y))
        return changes

    def _piece(self, device: int, k: int, number: list[list[Any]]) -> Literal:
        b = self.builder
        here = [b.both(self.assignment.of(op, device), number[op][k]) for op in range(self.problem.n_ops)]
        return b.unless(here, False)

    def start_from(self, assignment: Ints) -> None:
        """Hint the devices [n] of groups to the solver."""
        self.assignment.hint(assignment)

    def placement(self, value: Callable[[Any], int]) -> Placement:
        """The placement of a solution."""
        return Placement(self.assignment.devices(value))


def _longest_path(problem: Problem) -> int:
    """The most ops on a path."""
    graph = problem.graph
    depth = np.ones(problem.n_ops, np.int64)
    makers = graph.tensors.producer
    for tensor in np.flatnonzero(makers >= 0).tolist():
        for reader in graph.consumers_of(tensor).tolist():
            depth[reader] = max(depth[reader], depth[makers[tensor]] + 1)
    return int(depth.max(initial=1))
