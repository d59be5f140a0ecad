"""`subgraph` latency as a constraint program: each op is in a call of an accelerator, or on the host.

The rules are exactly the judge's (`simulate/judge/subgraph.py`). A call begins when the previous call of its device has
ended and all tensors that it receives exist. It takes its overhead, what it receives, its ops and what it sends; at its
end all its results exist. A host op begins when its inputs exist. With as many calls per accelerator as it has ops,
every placement with any calls is a solution; with fewer, the optimum is no bound.

Costs are rounded down to whole units: no solution costs more than the judge's value. Each call in use takes `SPARE`
units more, so that calls without duration cannot wait for each other in a circle, which the judge rejects; `excess`
is the total of these units, and is subtracted from the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import AssignmentVariables, OpGroups, makers_of
from placewise.placers.shared.schedule_models.model_builder import Literal, ModelBuilder, Sum, TimeScale, negated
from placewise.simulate.problem_arrays import arrays_of

SPARE = 1


@dataclass(frozen=True, slots=True, eq=False)
class CallLayout:
    """The calls, sorted by device and then by running order, and the calls in which each op may be.

    `device` [n_calls]; `ops[v]` are the calls of op v, on any device in the domain of its group.
    """

    device: tuple[int, ...]
    ops: tuple[tuple[int, ...], ...]


def every_call(problem: Problem, groups: OpGroups, calls: int) -> CallLayout:
    """`calls` calls on each accelerator, but no more than ops that it can run, open to every op."""
    able = able_ops(problem, groups).tolist()
    device = [d for d in range(problem.n_devices) for _ in range(min(calls, able[d]))]
    at: dict[int, list[int]] = {}
    for j, d in enumerate(device):
        at.setdefault(d, []).append(j)
    ops = [
        tuple(j for d in groups.domains[groups.of[op]] for j in at.get(d, ()))
        for op in range(problem.n_ops)
    ]  # fmt: skip
    return CallLayout(tuple(device), tuple(ops))


def able_ops(problem: Problem, groups: OpGroups) -> Longs:
    """The ops that may run on each accelerator [n_devices], which limit its calls; 0 for hosts."""
    able = np.zeros(problem.n_devices, np.int64)
    for group in groups.of.tolist():
        able[list(groups.domains[group])] += 1
    able[problem.cluster.is_host] = 0
    return able


def estimate(problem: Problem, layout: CallLayout) -> int:
    """About how many literals the model would have."""
    width, staged = len(layout.device), problem.cluster.transfers == "staged"
    return sum(map(len, layout.ops)) + problem.graph.n_tensors * width * (2 if staged else 1 + width)


class SubgraphModel:
    """Variables: `inside[v][j]`, op v is in call j; `begin` and `end` of calls; `exists[v]`, when v's results exist."""

    def __init__(
        self, problem: Problem, groups: OpGroups, layout: CallLayout, scale: TimeScale, capacity: Floats, horizon: int
    ) -> None:
        self.problem, self.layout, self.scale = problem, layout, scale
        self.builder = b = ModelBuilder()
        self.assignment = AssignmentVariables(problem, groups, b, capacity)
        self._a = arrays_of(problem)
        self._seconds = scale.round_down(problem.costs.op_seconds)
        self._transfer = scale.round_down(problem.costs.transfer_seconds)
        self.excess = SPARE * len(layout.device)
        self.horizon = horizon = horizon + self.excess
        self.inside = [self._calls_of(op) for op in range(problem.n_ops)]
        self.on_host = [
            b.either(self.assignment.of(op, d) for d in np.flatnonzero(problem.cluster.is_host).tolist())
            for op in range(problem.n_ops)
        ]
        self.begin = [b.number(0, horizon) for _ in layout.device]
        self.end = [b.number(0, horizon) for _ in layout.device]
        self.makespan = b.number(0, horizon)
        self.exists = [self._end_of(op) for op in range(problem.n_ops)]
        self._take = [Sum() for _ in layout.device]
        self._receive_and_send()
        self._compute()
        for j in range(1, len(layout.device)):
            if layout.device[j] == layout.device[j - 1]:
                b.model.add(self.begin[j] >= self.end[j - 1])
        self._host_ops()
        b.model.minimize(self.makespan)

    def _calls_of(self, op: int) -> dict[int, Literal]:
        b, by_device = self.builder, dict[int, list[int]]()
        for j in self.layout.ops[op]:
            by_device.setdefault(self.layout.device[j], []).append(j)
        inside: dict[int, Literal] = {}
        for d, calls in by_device.items():
            here = self.assignment.of(op, d)
            if len(calls) == 1 or here is False:
                inside |= dict.fromkeys(calls, here)
                continue
            literals = {j: b.literal() for j in calls}
            b.model.add(sum(literals.values()) == here)
            inside |= literals
        return {j: x for j, x in inside.items() if x is not False}

    def _end_of(self, op: int) -> Any:
        """When the op's results exist."""
        only = [j for j, x in self.inside[op].items() if x is True]
        if only:
            return self.end[only[0]]
        exists = self.builder.number(0, self.horizon)
        for j, x in self.inside[op].items():
            self.builder.require(exists >= self.end[j], x)
        return exists

    def _receive_and_send(self) -> None:
        a, b = self._a, self.builder
        for tensor in range(len(a.producer)):
            maker = int(a.producer[tensor])
            readers = a.consumers[a.consumer_offsets[tensor] : a.consumer_offsets[tensor + 1]].tolist()
            made = self.inside[maker] if maker >= 0 else {}
            entered: dict[int, Literal] = {}
            for j in sorted({j for reader in readers for j in self.inside[reader]}):
                entered[j] = b.unless((self.inside[reader].get(j, False) for reader in readers), made.get(j, False))
                if maker >= 0:
                    b.require(self.begin[j] >= self.exists[maker], entered[j])
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
        """A literal that must be true if the tensor is made here and leaves, as an output or for a reader."""
        if self._a.output[tensor] or any(x is False for x in stays):
            return made
        return self.builder.unless_all(made, stays)

    def _directly(
        self, tensor: int, maker: int, readers: list[int], made: dict[int, Literal], entered: dict[int, Literal]
    ) -> None:
        """Move a tensor once to each call, at the speed of the link, and once to the host for all readers there."""
        b, host, device = self.builder, len(self._a.location), self.layout.device
        from_host = True if maker < 0 else self.on_host[maker]
        for j, x in entered.items():
            sources = [(y, device[i], i) for i, y in made.items() if i != j]
            sources += [] if from_host is False else [(from_host, host, -1)]
            received = [self._seconds_of(tensor, _via(source, device[j], host), device[j]) for _, source, _ in sources]
            least = min(received, default=0)
            self._take[j].add(least, x)
            for (y, source, i), seconds in zip(sources, received, strict=True):
                sent = self._seconds_of(tensor, source, host if source == device[j] else device[j]) if i >= 0 else 0
                crosses = b.both(x, y) if seconds > least or sent else False
                self._take[j].add(seconds - least, crosses)
                if i >= 0:
                    self._take[i].add(sent, crosses)
        for j, x in made.items():
            stays = [negated(self.on_host[reader]) for reader in readers]
            self._take[j].add(self._seconds_of(tensor, device[j], host), self._leaves(tensor, x, stays))

    def _compute(self) -> None:
        b = self.builder
        members: list[list[Literal]] = [[] for _ in self.layout.device]
        for op, row in enumerate(self.inside):
            for j, x in row.items():
                self._take[j].add(int(self._seconds[op, self.layout.device[j]]), x)
                members[j].append(x)
        overhead = self.scale.round_down(np.array([device.call_overhead for device in self.problem.cluster])).tolist()
        for j, d in enumerate(self.layout.device):
            used = b.unless(members[j], False)
            self._take[j].add(overhead[d] + SPARE, used)
            b.model.add(self.end[j] >= self.begin[j] + self._take[j].expression())
            b.model.add(self.makespan >= self.end[j])

    def _host_ops(self) -> None:
        b = self.builder
        hosts = np.flatnonzero(self.problem.cluster.is_host).tolist()
        inputs = makers_of(self._a)
        for op, here in enumerate(self.on_host):
            if here is not False:
                b.model.add(self.makespan >= self.exists[op])
            for d in hosts:
                x, seconds = self.assignment.of(op, d), int(self._seconds[op, d])
                for maker in inputs[op]:
                    b.require(self.exists[op] >= self.exists[maker] + seconds, x)
                b.require(self.exists[op] >= seconds, x)
            for maker in inputs[op]:
                if self.exists[op] is not self.exists[maker]:
                    b.model.add(self.exists[op] >= self.exists[maker])

    def number_calls(self) -> None:
        """Use the calls of a device without gaps: a call is empty only if all later ones are."""
        b, used = self.builder, list[Any]()
        for j in range(len(self.layout.device)):
            members = [row[j] for row in self.inside if j in row]
            occupied = b.literal()
            for x in members:
                b.model.add(occupied >= x)
            b.model.add(occupied <= sum(members))
            used.append(occupied)
            if j and self.layout.device[j] == self.layout.device[j - 1]:
                b.model.add(used[j] <= used[j - 1])

    def start_from(self, home: Ints, call: Ints) -> None:
        """Hint a solution: devices [n] of groups, and the number [n_ops] of each op's call."""
        first: dict[int, int] = {}
        for j, d in enumerate(self.layout.device):
            first.setdefault(d, j)
        self.assignment.hint(home)
        for op, row in enumerate(self.inside):
            d = int(home[self.assignment.groups.of[op]])
            for j, x in row.items():
                if x is not True and len(self.layout.ops[op]) > 1 and not self._is_home(op, j, x):
                    self.builder.model.add_hint(x, self.layout.device[j] == d and j - first[d] == call[op])

    def _is_home(self, op: int, call: int, x: Literal) -> bool:
        return x is self.assignment.of(op, self.layout.device[call])

    def placement(self, value: Any) -> Placement:
        """The placement of a solution; `value(literal)` reads it."""
        call = np.zeros(self.problem.n_ops, np.int32)
        for op, row in enumerate(self.inside):
            for j, x in row.items():
                if x is True or value(x):
                    call[op] = j
        return Placement(self.assignment.devices(value), call)


def _via(source: int, target: int, host: int) -> int:
    """Where a tensor comes from: between two calls of one device it goes through the host."""
    return host if source == target else source
