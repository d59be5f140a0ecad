"""The memory of groups of ops on any device (state, and weights that groups may share), and where groups may run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.simulate.blocks import held_storages, storage_bytes


class MemoryFootprint(NamedTuple):
    """Bytes of state per group [n]; distinct (group, storage) pairs sorted by group; bytes per storage."""

    state: Longs
    group: Ints
    storage: Ints
    stored: Longs

    @property
    def private(self) -> Bools:
        """The pairs whose storage no other group uses."""
        users = np.bincount(self.storage, minlength=len(self.stored))
        private: Bools = users[self.storage] == 1
        return private

    def own(self) -> Longs:
        """Bytes [n] of state and private storages of each group."""
        return self._add_stored(self.private)

    def totals(self) -> Longs:
        """Resident bytes [n] of each group where it runs alone."""
        return self._add_stored(np.ones(len(self.group), np.bool_))

    def _add_stored(self, counted: Bools) -> Longs:
        total = self.state.copy()
        np.add.at(total, self.group[counted], self.stored[self.storage[counted]])
        return total


def compute_footprint(problem: Problem, group: Ints, n: int) -> MemoryFootprint:
    """The memory of the groups [n_ops] → 0…n − 1."""
    graph = problem.graph
    state = np.zeros(n, np.int64)
    np.add.at(state, group.astype(np.intp), graph.ops.state_bytes)
    stored = storage_bytes(graph).astype(np.int64)
    owner, storage = held_storages(graph, group)
    return MemoryFootprint(state, owner.astype(np.int32), storage.astype(np.int32), stored)


def count_first_uses(graph: Graph) -> Floats:
    """Bytes [n_ops] of the state of each op, and of the weights that it is the first op to use."""
    amount = graph.ops.state_bytes.astype(np.float64)
    storage, first = np.unique(graph.weights.storage[graph.weight_edges.value], return_index=True)
    np.add.at(amount, graph.weight_edges.consumer[first], storage_bytes(graph)[storage])
    return amount


def may_run(problem: Problem, group: Ints, n: int) -> Bools:
    """Where every op of a group may run [n, n_devices]."""
    allowed = np.ones((n, problem.n_devices), np.bool_)
    op, device = np.nonzero(~problem.allowed)
    allowed[group[op], device] = False
    return allowed


def find_unplaceable_group(problem: Problem, group: Ints, n: int) -> str:
    """Why some group that must stay whole fits nowhere; empty if every group fits somewhere alone."""
    allowed = may_run(problem, group, n)
    homeless = ~allowed.any(axis=1)
    if homeless.any():
        return f"{_describe_group(problem, group, int(np.argmax(homeless)))} may run together on no device"
    needs = compute_footprint(problem, group, n).totals()
    room = np.where(allowed, problem.capacity, -1.0)
    short = needs - room.max(axis=1, initial=-1.0)
    if not (short > 0).any():
        return ""
    worst = int(np.argmax(short))
    device = problem.cluster.names[int(room[worst].argmax())]
    return (
        f"{_describe_group(problem, group, worst)} must stay together, need {format_bytes(needs[worst])} and fit "
        f"nowhere: on {device}, the roomiest device that may run them, {format_bytes(short[worst])} "
        f"({short[worst]:.0f} bytes) are missing"
    )


def _describe_group(problem: Problem, group: Ints, which: int) -> str:
    ops = np.flatnonzero(group == which)
    name = repr(problem.graph.ops.name[int(ops[0])])
    return f"op {name}" if len(ops) == 1 else f"op {name} and the {len(ops) - 1} ops on a cycle with it"
