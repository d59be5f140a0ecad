"""`sequential` latency as a constraint program: the sum of ops, hops and overheads of pieces.

The judge's sum (`simulate/sequential.py`) does not depend on the order of the pieces: every op counts once, every
tensor crosses once to each location that needs it (staged: once to the host, and once from there), and every piece
pays the overhead of its device. Pieces are numbered as the judge numbers them, by the most changes of device on a
path to an op; where that would take too many literals, every device in use counts as one piece, which is less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import Groups, Homes, makers_of
from placewise.placers.shared.schedule_models.model import Literal, Program, Sum, negated
from placewise.placers.shared.schedule_models.time_units import Units
from placewise.simulate.problem_arrays import arrays_of

MOST_NUMBERS = 50_000
"""Beyond so many pairs of ops and numbers of pieces, pieces are not told apart."""


def estimate(problem: Problem) -> int:
    """About how many literals the program would have."""
    width = problem.n_devices
    hops = 2 * width if problem.cluster.transfers == "staged" else width * (width + 1)
    return problem.n_blocks * width + problem.graph.n_tensors * hops


class PieceProgram:
    """One literal per group and device, one per hop, and one per piece."""

    excess = 0

    def __init__(self, problem: Problem, groups: Groups, units: Units, capacity: Floats, horizon: int) -> None:
        self.problem, self.units = problem, units
        self.program = p = Program()
        self.homes = Homes(problem, groups, p, capacity)
        self._a = arrays_of(problem)
        self._host = problem.n_devices
        self._transfer = units.of(problem.costs.transfer_seconds)
        self._total = Sum()
        seconds = units.of(problem.costs.op_seconds)
        for op in range(problem.n_ops):
            for d, x in self.homes.at[groups.of[op]].items():
                self._total.add(int(seconds[op, d]), x)
        self._at = [self.homes.locations(op) for op in range(problem.n_ops)]
        for tensor in range(problem.graph.n_tensors):
            self._move(tensor)
        self._overheads()
        self.makespan = p.number(0, horizon)
        p.model.add(self.makespan >= self._total.expression())
        p.model.minimize(self.makespan)

    def _move(self, tensor: int) -> None:
        a, p, host = self._a, self.program, self._host
        maker, output = int(a.producer[tensor]), bool(a.output[tensor])
        made = self._at[maker] if maker >= 0 else {host: True}
        readers: dict[int, list[Literal]] = {host: [True]} if output else {}
        for reader in a.consumers[a.consumer_offsets[tensor] : a.consumer_offsets[tensor + 1]].tolist():
            for place, x in self._at[reader].items():
                readers.setdefault(place, []).append(x)
        for place, users in readers.items():
            if a.staged and place != host:
                self._pay(tensor, host, place, p.unless(users, made.get(place, False)))
        for source, x in made.items():
            if a.staged and source != host:
                away = [y for place, users in readers.items() if place != source for y in users]
                self._pay(tensor, source, host, p.unless_all(x, [negated(y) for y in away]))
            for place, users in readers.items() if not a.staged else ():
                if place != source:
                    self._pay(tensor, source, place, p.unless_all(x, [negated(y) for y in users]))

    def _pay(self, tensor: int, source: int, target: int, moves: Literal) -> None:
        self._total.add(int(self._transfer[tensor, self._a.link_class[source, target]]), moves)

    def _overheads(self) -> None:
        overhead = self.units.of(np.array([device.call_overhead for device in self.problem.cluster])).tolist()
        if not any(overhead):
            return
        most = _longest_path(self.problem)
        if self.problem.n_ops * most * self.problem.n_devices > MOST_NUMBERS:
            for d in np.flatnonzero(overhead).tolist():
                here = [row.get(d, False) for row in self.homes.at]
                self._total.add(overhead[d], self.program.unless(here, False))
            return
        number = self._numbers(most)
        for d in np.flatnonzero(overhead).tolist():
            for k in range(most):
                self._total.add(overhead[d], self._piece(d, k, number))

    def _numbers(self, most: int) -> list[list[Any]]:
        """number[v][k]: the piece of op v has number k."""
        p, model = self.program, self.program.model
        count: list[Any] = []
        for op, makers in enumerate(makers_of(self._a)):
            count.append(p.number(0, most - 1))
            steps = [count[maker] + self._change(maker, op) for maker in makers]
            model.add_max_equality(count[op], [*steps, 0])
        number = []
        for variable in count:
            literals = [p.literal() for _ in range(most)]
            model.add_exactly_one(literals)
            model.add(variable == sum(k * x for k, x in enumerate(literals)))
            number.append(literals)
        return number

    def _change(self, maker: int, reader: int) -> Any:
        """1 if two ops are on different devices, else 0."""
        p, of = self.program, self.homes.groups.of
        if of[maker] == of[reader]:
            return 0
        one, other = self.homes.at[of[maker]], self.homes.at[of[reader]]
        changes = p.literal()
        for d in one.keys() | other.keys():
            x, y = one.get(d, False), other.get(d, False)
            p.require(changes == 0, x, y)
            p.require(changes == 1, x, negated(y))
        return changes

    def _piece(self, device: int, k: int, number: list[list[Any]]) -> Literal:
        p = self.program
        here = [p.both(self.homes.of(op, device), number[op][k]) for op in range(self.problem.n_ops)]
        return p.unless(here, False)

    def start_from(self, home: Ints) -> None:
        """Tell the solver of the homes [n] of groups."""
        self.homes.hint(home)

    def placement(self, value: Callable[[Any], int]) -> Placement:
        """The placement that a solution means."""
        homes = [next(d for d, x in row.items() if x is True or value(x)) for row in self.homes.at]
        return Placement(np.array(homes, np.int32)[self.homes.groups.of])


def _longest_path(problem: Problem) -> int:
    """The most ops on a path."""
    graph = problem.graph
    depth = np.ones(problem.n_ops, np.int64)
    makers = graph.tensors.producer
    for tensor in np.flatnonzero(makers >= 0).tolist():
        for reader in graph.consumers_of(tensor).tolist():
            depth[reader] = max(depth[reader], depth[makers[tensor]] + 1)
    return int(depth.max(initial=1))
