"""What groups of ops need wherever they run: state, weights that may be shared, and a device that may run them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Bools, Ints, Longs, distinct
from placewise.model.problem import Problem
from placewise.simulate.blocks import storage_bytes


class MemoryFootprint(NamedTuple):
    """Bytes of state per group [n]; distinct (group, storage) pairs sorted by group; bytes per storage."""

    state: Longs
    group: Ints
    storage: Ints
    stored: Longs

    def totals(self) -> Longs:
        """Resident bytes [n] of each group where it runs alone."""
        total = self.state.copy()
        np.add.at(total, self.group, self.stored[self.storage])
        return total


def memory_footprint(problem: Problem, group: Ints, n: int) -> MemoryFootprint:
    """What the groups [n_ops] → 0…n − 1 keep in memory."""
    graph = problem.graph
    state = np.zeros(n, np.int64)
    np.add.at(state, group.astype(np.intp), graph.ops.state_bytes)
    stored = storage_bytes(graph).astype(np.int64)
    user = group[graph.weight_edges.consumer].astype(np.int64)
    pairs = distinct(user * max(len(stored), 1) + graph.weights.storage[graph.weight_edges.value])
    held, storage = pairs // max(len(stored), 1), pairs % max(len(stored), 1)
    return MemoryFootprint(state, held.astype(np.int32), storage.astype(np.int32), stored)


def may_run(problem: Problem, group: Ints, n: int) -> Bools:
    """Where every op of a group may run [n, n_devices]."""
    allowed = np.ones((n, problem.n_devices), np.bool_)
    op, device = np.nonzero(~problem.allowed)
    allowed[group[op], device] = False
    return allowed


def unmet(problem: Problem, group: Ints, n: int) -> str:
    """Why some group that must stay whole fits nowhere, in words; empty if every one fits somewhere alone."""
    allowed = may_run(problem, group, n)
    homeless = ~allowed.any(axis=1)
    if homeless.any():
        return f"{_who(problem, group, int(np.argmax(homeless)))} may run together on no device"
    needs = memory_footprint(problem, group, n).totals()
    room = np.where(allowed, problem.capacity, -1.0)
    short = needs - room.max(axis=1, initial=-1.0)
    if (short > 0).any():
        worst = int(np.argmax(short))
        device = problem.cluster.names[int(room[worst].argmax())]
        return (
            f"{_who(problem, group, worst)} must stay together, need {format_bytes(needs[worst])} and fit nowhere: "
            f"on {device}, the roomiest device that may run them, {format_bytes(short[worst])} "
            f"({short[worst]:.0f} bytes) are missing"
        )
    return ""


def _who(problem: Problem, group: Ints, which: int) -> str:
    ops = np.flatnonzero(group == which)
    name = repr(problem.graph.ops.name[int(ops[0])])
    return f"op {name}" if len(ops) == 1 else f"op {name} and the {len(ops) - 1} ops on a cycle with it"
