"""`subgraph` latency as a constraint program: which call of which accelerator, or the host, has each op.

Exactly the judge's rules (`simulate/subgraph.py`). A call begins when its device's call before it has ended and all
tensors that it receives exist; it takes its overhead, what it receives, its ops and what it sends, and
at its end everything it made exists. A host op begins when its inputs exist. As many calls per accelerator as
ops of it make every placement with any calls a solution; with fewer, the optimum is no bound.

Costs are rounded down to whole units, so that no solution costs more than the judge says. Every call that is
used takes `SPARE` on top, so that calls of no duration cannot wait for each other in a circle, which the judge
refuses; `excess` is what all calls together may have too much, and is taken off the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import Groups, Homes, makers_of
from placewise.placers.shared.schedule_models.model import Literal, Program, Sum, negated
from placewise.placers.shared.schedule_models.time_units import Units
from placewise.simulate.problem_arrays import arrays_of

SPARE = 1


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The calls there are, sorted by device, each device's in running order; and where each op may be.

    `device` [n_calls]; `ops[v]` are the calls in which op v may be, on any device that its group may run on.
    """

    device: tuple[int, ...]
    ops: tuple[tuple[int, ...], ...]


def every_call(problem: Problem, groups: Groups, calls: int) -> Layout:
    """So many calls on each accelerator that some op may run on, but no more than ops, open to every op."""
    able = able_ops(problem, groups).tolist()
    device = [d for d in range(problem.n_devices) for _ in range(min(calls, able[d]))]
    at: dict[int, list[int]] = {}
    for j, d in enumerate(device):
        at.setdefault(d, []).append(j)
    ops = [
        tuple(j for d in groups.domains[groups.of[op]] for j in at.get(d, ()))
        for op in range(problem.n_ops)
    ]  # fmt: skip
    return Layout(tuple(device), tuple(ops))


def able_ops(problem: Problem, groups: Groups) -> Longs:
    """How many ops may run on each accelerator [n_devices], and so the most calls that it can have; 0 for hosts."""
    able = np.zeros(problem.n_devices, np.int64)
    for group in groups.of.tolist():
        able[list(groups.domains[group])] += 1
    able[problem.cluster.is_host] = 0
    return able


def estimate(problem: Problem, layout: Layout) -> int:
    """About how many literals the program would have."""
    width, staged = len(layout.device), problem.cluster.transfers == "staged"
    return sum(map(len, layout.ops)) + problem.graph.n_tensors * width * (2 if staged else 1 + width)


class CallProgram:
    """`inside[v][j]`: op v is in call j; `begin`, `end` of calls; `exists[v]`: when what v makes can be used."""

    def __init__(
        self, problem: Problem, groups: Groups, layout: Layout, units: Units, capacity: Floats, horizon: int
    ) -> None:
        self.problem, self.layout, self.units = problem, layout, units
        self.program = p = Program()
        self.homes = Homes(problem, groups, p, capacity)
        self._a = arrays_of(problem)
        self._seconds = units.of(problem.costs.op_seconds)
        self._transfer = units.of(problem.costs.transfer_seconds)
        self.excess = SPARE * len(layout.device)
        self.horizon = horizon = horizon + self.excess
        self.inside = [self._calls_of(op) for op in range(problem.n_ops)]
        self.on_host = [
            p.either(self.homes.of(op, d) for d in np.flatnonzero(problem.cluster.is_host).tolist())
            for op in range(problem.n_ops)
        ]
        self.begin = [p.number(0, horizon) for _ in layout.device]
        self.end = [p.number(0, horizon) for _ in layout.device]
        self.makespan = p.number(0, horizon)
        self.exists = [self._end_of(op) for op in range(problem.n_ops)]
        self._take = [Sum() for _ in layout.device]
        self._receive_and_send()
        self._compute()
        for j in range(1, len(layout.device)):
            if layout.device[j] == layout.device[j - 1]:
                p.model.add(self.begin[j] >= self.end[j - 1])
        self._host_ops()
        p.model.minimize(self.makespan)

    def _calls_of(self, op: int) -> dict[int, Literal]:
        p, by_device = self.program, dict[int, list[int]]()
        for j in self.layout.ops[op]:
            by_device.setdefault(self.layout.device[j], []).append(j)
        inside: dict[int, Literal] = {}
        for d, calls in by_device.items():
            here = self.homes.of(op, d)
            if len(calls) == 1 or here is False:
                inside |= dict.fromkeys(calls, here)
                continue
            literals = {j: p.literal() for j in calls}
            p.model.add(sum(literals.values()) == here)
            inside |= literals
        return {j: x for j, x in inside.items() if x is not False}

    def _end_of(self, op: int) -> Any:
        """When what the op makes exists."""
        only = [j for j, x in self.inside[op].items() if x is True]
        if only:
            return self.end[only[0]]
        exists = self.program.number(0, self.horizon)
        for j, x in self.inside[op].items():
            self.program.require(exists >= self.end[j], x)
        return exists

    def _receive_and_send(self) -> None:
        a, p = self._a, self.program
        for tensor in range(len(a.producer)):
            maker = int(a.producer[tensor])
            readers = a.consumers[a.consumer_offsets[tensor] : a.consumer_offsets[tensor + 1]].tolist()
            made = self.inside[maker] if maker >= 0 else {}
            entered: dict[int, Literal] = {}
            for j in sorted({j for reader in readers for j in self.inside[reader]}):
                entered[j] = p.unless((self.inside[reader].get(j, False) for reader in readers), made.get(j, False))
                if maker >= 0:
                    p.require(self.begin[j] >= self.exists[maker], entered[j])
            if a.staged:
                self._through_host(tensor, readers, made, entered)
            else:
                self._directly(tensor, maker, readers, made, entered)

    def _seconds_of(self, tensor: int, source: int, target: int) -> int:
        return int(self._transfer[tensor, self._a.link_class[source, target]])

    def _through_host(
        self, tensor: int, readers: list[int], made: dict[int, Literal], entered: dict[int, Literal]
    ) -> None:
        host = len(self._a.location)
        for j, x in entered.items():
            self._take[j].add(self._seconds_of(tensor, host, self.layout.device[j]), x)
        for j, x in made.items():
            stays = [self.inside[reader].get(j, False) for reader in readers]
            self._take[j].add(self._seconds_of(tensor, self.layout.device[j], host), self._leaves(tensor, x, stays))

    def _leaves(self, tensor: int, made: Literal, stays: list[Literal]) -> Literal:
        """A literal that must be true if the tensor is made here, and is an output or some reader does not stay."""
        if self._a.output[tensor] or any(x is False for x in stays):
            return made
        return self.program.unless_all(made, stays)

    def _directly(
        self, tensor: int, maker: int, readers: list[int], made: dict[int, Literal], entered: dict[int, Literal]
    ) -> None:
        """Once to every call, at the speed of its link, and once to the host for all who are there."""
        p, host, device = self.program, len(self._a.location), self.layout.device
        from_host = True if maker < 0 else self.on_host[maker]
        for j, x in entered.items():
            sources = [(y, device[i], i) for i, y in made.items() if i != j]
            sources += [] if from_host is False else [(from_host, host, -1)]
            received = [self._seconds_of(tensor, _via(source, device[j], host), device[j]) for _, source, _ in sources]
            least = min(received, default=0)
            self._take[j].add(least, x)
            for (y, source, i), seconds in zip(sources, received, strict=True):
                sent = self._seconds_of(tensor, source, host if source == device[j] else device[j]) if i >= 0 else 0
                crosses = p.both(x, y) if seconds > least or sent else False
                self._take[j].add(seconds - least, crosses)
                if i >= 0:
                    self._take[i].add(sent, crosses)
        for j, x in made.items():
            stays = [negated(self.on_host[reader]) for reader in readers]
            self._take[j].add(self._seconds_of(tensor, device[j], host), self._leaves(tensor, x, stays))

    def _compute(self) -> None:
        p = self.program
        members: list[list[Literal]] = [[] for _ in self.layout.device]
        for op, row in enumerate(self.inside):
            for j, x in row.items():
                self._take[j].add(int(self._seconds[op, self.layout.device[j]]), x)
                members[j].append(x)
        overhead = self.units.of(np.array([device.call_overhead for device in self.problem.cluster])).tolist()
        for j, d in enumerate(self.layout.device):
            used = p.unless(members[j], False)
            self._take[j].add(overhead[d] + SPARE, used)
            p.model.add(self.end[j] >= self.begin[j] + self._take[j].expression())
            p.model.add(self.makespan >= self.end[j])

    def _host_ops(self) -> None:
        p = self.program
        hosts = np.flatnonzero(self.problem.cluster.is_host).tolist()
        inputs = makers_of(self._a)
        for op, here in enumerate(self.on_host):
            if here is not False:
                p.model.add(self.makespan >= self.exists[op])
            for d in hosts:
                x, seconds = self.homes.of(op, d), int(self._seconds[op, d])
                for maker in inputs[op]:
                    p.require(self.exists[op] >= self.exists[maker] + seconds, x)
                p.require(self.exists[op] >= seconds, x)
            for maker in inputs[op]:
                if self.exists[op] is not self.exists[maker]:
                    p.model.add(self.exists[op] >= self.exists[maker])

    def number_calls(self) -> None:
        """Calls of a device are used without gaps: a call is empty only if those behind it are."""
        p, used = self.program, list[Any]()
        for j in range(len(self.layout.device)):
            members = [row[j] for row in self.inside if j in row]
            occupied = p.literal()
            for x in members:
                p.model.add(occupied >= x)
            p.model.add(occupied <= sum(members))
            used.append(occupied)
            if j and self.layout.device[j] == self.layout.device[j - 1]:
                p.model.add(used[j] <= used[j - 1])

    def start_from(self, home: Ints, call: Ints) -> None:
        """Tell the solver of a solution: homes [n] of groups, and the number [n_ops] of each op's call."""
        first: dict[int, int] = {}
        for j, d in enumerate(self.layout.device):
            first.setdefault(d, j)
        self.homes.hint(home)
        for op, row in enumerate(self.inside):
            d = int(home[self.homes.groups.of[op]])
            for j, x in row.items():
                if x is not True and len(self.layout.ops[op]) > 1 and not self._is_home(op, j, x):
                    self.program.model.add_hint(x, self.layout.device[j] == d and j - first[d] == call[op])

    def _is_home(self, op: int, call: int, x: Literal) -> bool:
        return x is self.homes.of(op, self.layout.device[call])

    def placement(self, value: Any) -> Placement:
        """The placement that a solution means; `value(literal)` reads it."""
        device = np.empty(self.problem.n_ops, np.int32)
        call = np.zeros(self.problem.n_ops, np.int32)
        for op, group in enumerate(self.homes.groups.of.tolist()):
            device[op] = next(d for d, x in self.homes.at[group].items() if x is True or value(x))
            for j, x in self.inside[op].items():
                if x is True or value(x):
                    call[op] = j
        return Placement(device, call)


def _via(source: int, target: int, host: int) -> int:
    """Where a tensor is received from: what one call of a device makes for another goes through the host."""
    return host if source == target else source
