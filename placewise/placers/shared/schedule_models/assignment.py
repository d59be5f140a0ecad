"""The assignment of groups of ops to devices: one literal per pair, memory, shape of stages, symmetry breaking.

A group is a block, or a component where stages must be contiguous. Memory counts resident bytes only: the judge rejects
a placement whose live activations do not fit, and the model then excludes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.memory_footprint import compute_footprint, may_run
from placewise.placers.shared.move_space import list_offered_devices
from placewise.placers.shared.schedule_models.model_builder import Literal, ModelBuilder, Sum, negated
from placewise.simulate.contiguity import Contraction, contract, forward_edges
from placewise.simulate.problem_arrays import ProblemArrays


@dataclass(frozen=True, slots=True, eq=False)
class OpGroups:
    """The groups of a problem, and the devices that each may run on; `of` [n_ops]."""

    of: Ints
    n: int
    domains: tuple[tuple[int, ...], ...]
    graph: Contraction | None


def op_groups(problem: Problem) -> OpGroups:
    """Blocks, or components where stages must be contiguous; of equal hosts only one is in the domains."""
    graph = contract(problem) if problem.constraints.contiguous else None
    of, n = (problem.block, problem.n_blocks) if graph is None else (graph.component, graph.n)
    allowed = may_run(problem, of, n)
    offered = np.isin(np.arange(problem.n_devices), list_offered_devices(problem, allowed))
    return OpGroups(of, n, tuple(tuple(np.flatnonzero(row & offered).tolist()) for row in allowed), graph)


class AssignmentVariables:
    """`at[g][d]` is the literal of group g on device d."""

    def __init__(self, problem: Problem, groups: OpGroups, program: ModelBuilder, capacity: Floats) -> None:
        self.problem, self.groups, self.builder = problem, groups, program
        self.at: list[dict[int, Literal]] = []
        for domain in groups.domains:
            row = {domain[0]: True} if len(domain) == 1 else {d: program.literal() for d in domain}
            if len(domain) > 1:
                program.one_of(list(row.values()))
            self.at.append(row)
        self._limit_memory(capacity)

    def of(self, op: int, device: int) -> Literal:
        """The literal of an op on a device."""
        return self.at[self.groups.of[op]].get(device, False)

    def locations(self, op: int) -> dict[int, Literal]:
        """The literal of an op at each location where it may be; location n_devices is the host."""
        is_host, row = self.problem.cluster.is_host, self.at[self.groups.of[op]]
        at = {d: x for d, x in row.items() if not is_host[d]}
        host = self.builder.either(x for d, x in row.items() if is_host[d])
        return at if host is False else {**at, self.problem.n_devices: host}

    def hint(self, home: Ints) -> None:
        """Hint the devices [n] of a solution to the solver."""
        for row, where in zip(self.at, home.tolist(), strict=True):
            for d, x in row.items():
                if x is not True:
                    self.builder.model.add_hint(x, d == where)

    def devices(self, value: Callable[[Any], int]) -> Ints:
        """The devices [n_ops] of a solution; `value(literal)` reads it."""
        chosen = [next(d for d, x in row.items() if x is True or value(x)) for row in self.at]
        return np.array(chosen, np.int32)[self.groups.of]

    def _limit_memory(self, capacity: Floats) -> None:
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
                used.add(stored[storage], self.builder.unless(literals, False) if stored[storage] else False)
            if used.largest > capacity[d]:
                self.builder.model.add(used.expression() <= int(capacity[d]))

    def chain(self) -> None:
        """Require contiguous stages: no edge of components goes back in the order of the devices, free or given."""
        graph, width = self.groups.graph, self.problem.n_devices
        if graph is not None and width > 1:
            add_chain(self.builder.model, self.at, width, graph, ordered=self.problem.constraints.ordered)

    def convex(self) -> None:
        """Require that no path of forward ops leaves a device and returns to it.

        `may[v]` says that a path may still return from v: it holds for the ops on the device, does not rise along a
        path, and ends where a path leaves the device (Tarnawski et al., NeurIPS 2020, and their published program).
        """
        if not self.problem.constraints.convex or self.problem.constraints.contiguous:
            return
        graph, model = self.problem.graph, self.builder.model
        forward = np.flatnonzero(~graph.ops.backward).tolist()
        edges = forward_edges(self.problem)
        for d in range(self.problem.n_devices):
            may = {op: self.builder.literal() for op in forward}
            for op in forward:
                self.builder.require(may[op] == 1, self.of(op, d))
            for tail, head in edges:
                model.add(may[head] <= may[tail])
                self.builder.require(may[head] == 0, self.of(tail, d), negated(self.of(head, d)))

    def break_symmetry(self) -> None:
        """Among interchangeable devices, a group uses one only if an earlier group uses the one before it."""
        last: dict[int, int] = {}
        for d, kind in enumerate(interchangeable(self.problem).tolist()):
            if kind in last:
                self._use_in_order(last[kind], d)
            last[kind] = d

    def _use_in_order(self, before: int, device: int) -> None:
        begun: Any = 0
        for row in self.at:
            x, earlier = row.get(device, False), row.get(before, False)
            if x is not False:
                self.builder.model.add(x <= begun)
            if earlier is not False:
                number = self.builder.literal()
                self.builder.model.add(number <= begun + earlier)
                begun = number


def add_chain(
    model: Any, rows: Sequence[Mapping[int, Literal]], width: int, graph: Contraction, *, ordered: bool
) -> list[Any]:
    """Require that no edge of components goes back in the order of `width` devices, free or given; that order.

    `rows` have the literal of each component on each device that may run it.
    """
    place = [model.new_int_var(0, width - 1, "") for _ in range(width)]
    if ordered:
        for d, where in enumerate(place):
            model.add(where == d)
    elif width > 1:
        model.add_all_different(place)
    stage = [model.new_int_var(0, width - 1, "") for _ in rows]
    for row, where in zip(rows, stage, strict=True):
        for d, x in row.items():
            if x is not False:
                model.add(where == place[d]).only_enforce_if([] if x is True else [x])
    for tail, head in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        model.add(stage[tail] <= stage[head])
    return place


def hop_count(problem: Problem) -> int:
    """How many hops between locations the tensors of a problem might take."""
    width = problem.n_devices
    return problem.graph.n_tensors * (2 * width if problem.cluster.transfers == "staged" else width * (width + 1))


def makers_of(a: ProblemArrays) -> list[list[int]]:
    """For each op, the producers of the tensors that it reads."""
    makers: list[set[int]] = [set() for _ in range(len(a.op_seconds))]
    for tensor, reader in zip(a.consumed.tolist(), a.consumers.tolist(), strict=True):
        if a.producer[tensor] >= 0:
            makers[reader].add(int(a.producer[tensor]))
    return [sorted(row) for row in makers]


def canonical_assignment(problem: Problem, groups: OpGroups, device: Ints) -> Ints:
    """The device [n] of each group of a placement [n_ops], interchangeable devices in the order of their first groups.

    Hosts outside a group's domain are replaced by one inside.
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
