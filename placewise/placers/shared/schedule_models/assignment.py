"""Where groups of ops may be: one literal per group and device, memory, order of stages, and no twins.

A group is a block, or a component where stages must be contiguous. Memory is that of resident bytes: a placement
that needs more for live activations is refused by the judge, and forbidden afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.memory_footprint import compute_footprint, may_run
from placewise.placers.shared.move_space import list_offered_devices
from placewise.placers.shared.schedule_models.model import Literal, Program, Sum, negated
from placewise.simulate.contiguity import Contraction, contract, forward_edges
from placewise.simulate.problem_arrays import Arrays


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of a problem, and the devices that each may run on; `of` [n_ops]."""

    of: Ints
    n: int
    domains: tuple[tuple[int, ...], ...]
    graph: Contraction | None


def groups_of(problem: Problem) -> Groups:
    """Blocks, or components where stages must be contiguous; of hosts that are all the same only one is offered."""
    graph = contract(problem) if problem.constraints.contiguous else None
    of, n = (problem.block, problem.n_blocks) if graph is None else (graph.component, graph.n)
    allowed = may_run(problem, of, n)
    offered = np.isin(np.arange(problem.n_devices), list_offered_devices(problem, allowed))
    return Groups(of, n, tuple(tuple(np.flatnonzero(row & offered).tolist()) for row in allowed), graph)


class Homes:
    """`at[g][d]` says that group g is on device d."""

    def __init__(self, problem: Problem, groups: Groups, program: Program, capacity: Floats) -> None:
        self.problem, self.groups, self.program = problem, groups, program
        self.at: list[dict[int, Literal]] = []
        for domain in groups.domains:
            row = {domain[0]: True} if len(domain) == 1 else {d: program.literal() for d in domain}
            if len(domain) > 1:
                program.one_of(list(row.values()))
            self.at.append(row)
        self._memory(capacity)

    def of(self, op: int, device: int) -> Literal:
        """Whether op is on device."""
        return self.at[self.groups.of[op]].get(device, False)

    def locations(self, op: int) -> dict[int, Literal]:
        """Whether op is at a location, for every location where it may be; n_devices is the host."""
        is_host, row = self.problem.cluster.is_host, self.at[self.groups.of[op]]
        at = {d: x for d, x in row.items() if not is_host[d]}
        host = self.program.either(x for d, x in row.items() if is_host[d])
        return at if host is False else {**at, self.problem.n_devices: host}

    def hint(self, home: Ints) -> None:
        """Tell the solver of the homes [n] of a solution."""
        for row, where in zip(self.at, home.tolist(), strict=True):
            for d, x in row.items():
                if x is not True:
                    self.program.model.add_hint(x, d == where)

    def _memory(self, capacity: Floats) -> None:
        held = compute_footprint(self.problem, self.groups.of, self.groups.n)
        stored = held.stored.tolist()
        for d in np.flatnonzero(np.isfinite(capacity)).tolist():
            used = Sum()
            for g, row in enumerate(self.at):
                used.add(int(held.state[g]), row.get(d, False))
            users: dict[int, list[Literal]] = {}
            for g, storage in zip(held.group.tolist(), held.storage.tolist(), strict=True):
                users.setdefault(storage, []).append(self.at[g].get(d, False))
            for storage, literals in users.items():
                used.add(stored[storage], self.program.unless(literals, False) if stored[storage] else False)
            if used.largest > capacity[d]:
                self.program.model.add(used.expression() <= int(capacity[d]))

    def chain(self) -> None:
        """Contiguous stages: devices stand in an order, or in theirs, and no edge of components goes back in it."""
        graph, model, width = self.groups.graph, self.program.model, self.problem.n_devices
        if graph is None or width == 1:
            return
        place = [model.new_int_var(0, width - 1, "") for _ in range(width)]
        if self.problem.constraints.ordered:
            for d, where in enumerate(place):
                model.add(where == d)
        else:
            model.add_all_different(place)
        stage = [model.new_int_var(0, width - 1, "") for _ in self.at]
        for row, where in zip(self.at, stage, strict=True):
            for d, x in row.items():
                self.program.require(where == place[d], x)
        for tail, head in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
            model.add(stage[tail] <= stage[head])

    def convex(self) -> None:
        """No path of forward ops leaves a device and comes back: `may[v]` holds where one may still come back from v.

        It holds for the ops on the device, does not rise along a path, and ends where a path leaves the device
        (Tarnawski et al., NeurIPS 2020, the program published with it).
        """
        if not self.problem.constraints.convex or self.problem.constraints.contiguous:
            return
        graph, model = self.problem.graph, self.program.model
        forward = np.flatnonzero(~graph.ops.backward).tolist()
        edges = forward_edges(self.problem)
        for d in range(self.problem.n_devices):
            may = {op: self.program.literal() for op in forward}
            for op in forward:
                self.program.require(may[op] == 1, self.of(op, d))
            for tail, head in edges:
                model.add(may[head] <= may[tail])
                self.program.require(may[head] == 0, self.of(tail, d), negated(self.of(head, d)))

    def break_symmetry(self) -> None:
        """Of devices that are alike, the later one is used by a group only behind a group on the one before."""
        last: dict[int, int] = {}
        for d, kind in enumerate(interchangeable(self.problem).tolist()):
            if kind in last:
                self._behind(last[kind], d)
            last[kind] = d

    def _behind(self, before: int, device: int) -> None:
        begun: Any = 0
        for row in self.at:
            x, earlier = row.get(device, False), row.get(before, False)
            if x is not False:
                self.program.model.add(x <= begun)
            if earlier is not False:
                number = self.program.literal()
                self.program.model.add(number <= begun + earlier)
                begun = number


def makers_of(a: Arrays) -> list[list[int]]:
    """For every op, the ops that make what it reads."""
    makers: list[set[int]] = [set() for _ in range(len(a.op_seconds))]
    for tensor, reader in zip(a.consumed.tolist(), a.consumers.tolist(), strict=True):
        if a.producer[tensor] >= 0:
            makers[reader].add(int(a.producer[tensor]))
    return [sorted(row) for row in makers]


def in_order(problem: Problem, groups: Groups, device: Ints) -> Ints:
    """The home [n] of each group of a placement [n_ops], devices that are alike named by their first groups.

    Hosts that are not offered are replaced by one that is.
    """
    home = np.empty(groups.n, np.int32)
    home[groups.of] = device
    kind = interchangeable(problem)
    fresh = {k: iter(np.flatnonzero(kind == k).tolist()) for k in np.unique(kind).tolist()}
    name: dict[int, int] = {}
    for d in home.tolist():
        if d not in name:
            name[d] = next(fresh[int(kind[d])])
    hosts = problem.cluster.is_host
    named = [name[d] for d in home.tolist()]
    for g, domain in enumerate(groups.domains):
        if named[g] not in domain and hosts[named[g]]:
            named[g] = next((d for d in domain if hosts[d]), named[g])
    return np.array(named, np.int32)
