"""The published integer program for max-load as a CP-SAT model, in whole units and without symmetry.

Tarnawski et al., NeurIPS 2020, section 4 and their released program: x says which machine has a block. A machine pays
for each tensor that it reads and does not make, and for each that it makes and another machine reads. Placements are
free, or convex as in that program (a variable per op and machine says that a path may still return to the machine), or
a chain of ideals (the machines have an order, and no edge between components goes back in it).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from placewise.model.columns import Ints, Longs
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import add_chain
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts, PricedStages
from placewise.simulate.contiguity import Contraction, forward_edges

_MAX_SUM = 1 << 45
"""Units of all costs together: far below what CP-SAT's whole numbers hold."""


class _Bundle(NamedTuple):
    """All tensors with the same producer and the same consumers, which always move together.

    `enter` and `leave` are their costs together, for each rate, in units of the prices.
    """

    producer: int
    consumers: tuple[int, ...]
    output: bool
    enter: Longs
    leave: Longs


def n_variables(problem: Problem) -> int:
    """About how many variables the program of a problem has; nothing is built."""
    per_machine = problem.n_blocks + 2 * problem.graph.n_tensors
    per_machine += problem.n_ops if problem.constraints.convex and not problem.constraints.contiguous else 0
    return per_machine * problem.n_devices


class ThroughputModel:
    """The model: `at[b][m]` is the variable of block b on machine m; machines of a class have consecutive numbers.

    Costs are rounded down to whole units of `unit` units of the prices; a load loses at most `lost` of the latter.
    """

    def __init__(self, costs: ComponentCosts, unit: int) -> None:
        self.costs, self.unit, self.model = costs, unit, cp_model.CpModel()
        self.kinds = [kind for kind, count in enumerate(costs.n_devices.tolist()) for _ in range(count)]
        model = self.model
        able = costs.seconds < NEVER
        self.at = [
            {m: model.new_bool_var("") for m, kind in enumerate(self.kinds) if able[block, kind]}
            for block in range(len(costs.size))
        ]
        for row in self.at:
            model.add_exactly_one(row.values())
        self.lost = _lost(costs, unit)
        self.bundles = _bundle_tensors(costs)
        self.worst = model.new_int_var(0, int(costs.seconds[able].sum() + costs.enter.sum() + costs.leave.sum()), "")
        self.compute = [self._machine(m, kind) for m, kind in enumerate(self.kinds)]
        model.minimize(self.worst)

    def _machine(self, m: int, kind: int) -> Any:
        """Add the load and memory of one machine; its compute."""
        costs, model = self.costs, self.model
        here = {block: row[m] for block, row in enumerate(self.at) if m in row}
        compute = sum(int(costs.seconds[block, kind]) // self.unit * x for block, x in here.items())
        send, receive = self._transfers(m, int(costs.rate[kind]), here)
        loads = ([compute + send + receive], [compute, send + receive], [compute, send, receive])[costs.mode]
        for part in loads:
            model.add(part <= self.worst)
        everything = int(costs.size.sum() + costs.storage_bytes.sum())
        if everything > costs.capacity[kind]:
            model.add(self._bytes(here) <= int(costs.capacity[kind]))
        return compute

    def _transfers(self, m: int, rate: int, here: dict[int, Any]) -> tuple[Any, Any]:
        """What machine m sends and receives, in whole units."""
        send: Any = 0
        receive: Any = 0
        model = self.model
        if rate < 0:
            return send, receive
        for bundle in self.bundles:
            entering, leaving = int(bundle.enter[rate]) // self.unit, int(bundle.leave[rate]) // self.unit
            made = here.get(bundle.producer)
            inside = [here[reader] for reader in bundle.consumers if reader in here]
            if entering and inside:
                enters = model.new_bool_var("")
                for reader in inside:
                    model.add(enters >= (reader if made is None else reader - made))
                receive += entering * enters
            if leaving and made is not None:
                if bundle.output or len(inside) < len(bundle.consumers):
                    send += leaving * made
                    continue
                leaves = model.new_bool_var("")
                for reader in inside:
                    model.add(leaves >= made - reader)
                send += leaving * leaves
        return send, receive

    def _bytes(self, here: dict[int, Any]) -> Any:
        costs, model = self.costs, self.model
        total: Any = sum(int(costs.size[block]) * x for block, x in here.items())
        users: dict[int, list[Any]] = {}
        for block, x in here.items():
            for storage in costs.storages[costs.storage_offsets[block] : costs.storage_offsets[block + 1]].tolist():
                users.setdefault(storage, []).append(x)
        for storage, variables in users.items():
            held = model.new_bool_var("")
            for x in variables:
                model.add_implication(x, held)
            total += int(costs.storage_bytes[storage]) * held
        return total

    def chain(self, graph: Contraction) -> None:
        """Require that no edge goes back in the order of the machines, where classes keep their numbering."""
        width = len(self.kinds)
        place = add_chain(self.model, self.at, width, graph, ordered=self.costs.ordered)
        for m in range(1, width):
            if self.kinds[m] == self.kinds[m - 1]:
                self.model.add(place[m - 1] < place[m])

    def convex(self, problem: Problem) -> None:
        """Require that no path of forward ops leaves a machine and returns to it.

        z says that a path may still return from an op: it holds for the ops on the machine, does not rise along a path,
        and ends where a path leaves the machine.
        """
        model, block = self.model, problem.block.tolist()
        forward = np.flatnonzero(~problem.graph.ops.backward).tolist()
        edges = forward_edges(problem)
        for m in range(len(self.kinds)):
            z = {op: model.new_bool_var("") for op in forward}
            for op in forward:
                if m in self.at[block[op]]:
                    model.add_implication(self.at[block[op]][m], z[op])
            for tail, head in edges:
                model.add_implication(z[head], z[tail])
                if m in self.at[block[tail]] and block[tail] != block[head]:
                    stays = self.at[block[head]].get(m, 0)
                    model.add(z[head] <= stays - self.at[block[tail]][m] + 1)

    def order_by_compute(self) -> None:
        """Require that of two machines of a class the earlier one computes at least as much."""
        for m in range(1, len(self.kinds)):
            if self.kinds[m] == self.kinds[m - 1]:
                self.model.add(self.compute[m - 1] >= self.compute[m])

    def start_from(self, assignment: Ints, graph: Contraction | None) -> None:
        """Hint the machine [n] of each block to the solver; −1 is no hint.

        Machines of a class are renamed first, as the model orders them: by their place in the chain of `graph`, or by
        compute.
        """
        rank = self._computes(assignment) if graph is None else _places(graph, assignment, len(self.kinds))
        name = np.arange(len(self.kinds), dtype=np.int32)
        for kind in set(self.kinds):
            members = np.flatnonzero(np.array(self.kinds) == kind)
            name[members[np.argsort(rank[members], kind="stable")]] = members
        for row, where in zip(self.at, assignment.tolist(), strict=True):
            for m, x in row.items():
                if where >= 0:
                    self.model.add_hint(x, m == name[where])

    def _computes(self, assignment: Ints) -> Longs:
        """Minus the compute of each machine, in whole units, so that the largest sorts first."""
        total = np.zeros(len(self.kinds), np.int64)
        for block, m in enumerate(assignment.tolist()):
            if m >= 0:
                total[m] -= int(self.costs.seconds[block, self.kinds[m]]) // self.unit
        return total


def unit_of(priced: PricedStages, reached: float, units: int) -> int:
    """Units of the prices per unit of the program, such that the value reached has `units` of the latter."""
    costs = priced.costs
    seconds = np.where(costs.seconds < NEVER, costs.seconds, 0)
    total = int(seconds.max(axis=1, initial=0).sum())
    value = min(int(reached * priced.scale) if 0 < reached < np.inf else total, total) or total
    return max(value // units, int((total + costs.enter.sum() + costs.leave.sum()) // _MAX_SUM), 1)


def _bundle_tensors(costs: ComponentCosts) -> list[_Bundle]:
    """The tensors of the problem, those that always move together as one."""
    members: dict[tuple[int, tuple[int, ...], bool], list[int]] = {}
    consumers, offsets = costs.consumers.tolist(), costs.consumer_offsets.tolist()
    for tensor, (producer, output) in enumerate(zip(costs.producer.tolist(), costs.output.tolist(), strict=True)):
        readers = tuple(consumers[offsets[tensor] : offsets[tensor + 1]])
        members.setdefault((producer, readers, output), []).append(tensor)
    return [
        _Bundle(*shared, costs.enter[tensors].sum(axis=0), costs.leave[tensors].sum(axis=0))
        for shared, tensors in members.items()
    ]


def _lost(costs: ComponentCosts, unit: int) -> int:
    """The most that rounding takes from the load of a machine: every remainder, and what the prices lost before."""
    able = costs.seconds < NEVER
    work = np.where(able, costs.seconds % unit, 0).max(axis=1, initial=0).sum()
    moved = np.maximum(costs.enter % unit, costs.leave % unit).max(axis=1, initial=0).sum()
    return int(work + moved) + len(costs.size) + len(costs.producer)


def _places(graph: Contraction, assignment: Ints, width: int) -> Longs:
    """The position of each machine in the chain of a contiguous placement [n]; unused ones come last."""
    waits: dict[int, set[int]] = {m: set() for m in set(assignment.tolist()) - {-1}}
    for tail, head in zip(*(assignment[ends].tolist() for ends in graph.edges()), strict=True):
        if tail != head and min(tail, head) >= 0:
            waits[head].add(tail)
    place = np.full(width, width, np.int64)
    while waits:
        free = [m for m, before in waits.items() if not before & waits.keys()]
        for m in free or list(waits):
            place[m] = width - len(waits)
            del waits[m]
    return place
