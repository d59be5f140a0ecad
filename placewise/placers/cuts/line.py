"""Components in a row: topological orders at random, stages that follow each other, and splits that fit in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs, offsets_of
from placewise.model.problem import Problem
from placewise.placers.common.holdings import holdings, may_run
from placewise.simulate.contract import Contraction
from placewise.simulate.kernels import kernel

MOST_STATES = 1 << 17
"""Numbers of devices used of each class, all together; beyond it, classes merge, with the least room of each."""


class Rooms(NamedTuple):
    """Classes of devices that a line can be cut for: who is in them, what they hold and what they may run."""

    members: tuple[Ints, ...]
    room: Floats  # [n_classes]
    runs: Bools  # [n_classes, n_components]


def shift_late(graph: Contraction, rank: Ints) -> Ints:
    """The least ranks [n_components], no smaller than these, of which no edge leads back to a smaller one."""
    late: Ints = _latest(graph.predecessor_offsets, graph.predecessors, rank.astype(np.int32))
    return late


def shift_early(graph: Contraction, rank: Ints) -> Ints:
    """The greatest ranks [n_components], no greater than these, of which no edge leads back to a smaller one."""
    early: Ints = _earliest(graph.successor_offsets, graph.successors, rank.astype(np.int32))
    return early


def random_order(graph: Contraction, seed: int) -> Ints:
    """The position [n_components] of each component in a topological order drawn at random."""
    rng = np.random.default_rng(seed)
    missing = np.diff(graph.predecessor_offsets)
    position: Ints = _random_order(graph.successor_offsets, graph.successors, missing, rng)
    return position


def fill_line(problem: Problem, graph: Contraction, position: Ints, capacity: Floats) -> Ints | None:
    """The devices [n_ops] of a split of a line into stages that stay within `capacity` [n_devices], or None.

    `position` [n_components] is a topological order. Every order of the devices is tried, by dynamic programming over
    how many of each class are used: the furthest end is all that matters, since a longer stage needs no fewer bytes.
    """
    n = graph.n
    if not n:
        return np.zeros(problem.n_ops, np.int32)
    line = position[graph.component]
    rooms = _rooms(capacity, may_run(problem, line, n))
    held = holdings(problem, line, n)
    offsets = offsets_of(held.group, n)
    ends = np.stack(
        [
            _ends(held.state, offsets, held.storage, held.stored, float(min(room, 1e18)), runs)
            for room, runs in zip(rooms.room, rooms.runs, strict=True)
        ]
    )
    cuts = _furthest(ends, np.array([len(members) for members in rooms.members], np.int64), n)
    if len(cuts) == 0:
        return None
    device, fresh = np.empty(n, np.int32), [iter(members.tolist()) for members in rooms.members]
    for kind, start, end in cuts.tolist():
        device[start:end] = next(fresh[kind])
    return device[line]


def _rooms(capacity: Floats, runs: Bools) -> Rooms:
    """Devices of equal capacity that may run the same, together; roomy ones first."""
    known: dict[bytes, list[int]] = {}
    for d in np.argsort(-capacity, kind="stable").tolist():
        known.setdefault(capacity[d].tobytes() + np.packbits(runs[:, d]).tobytes(), []).append(d)
    groups = list(known.values())
    while np.prod([len(group) + 1.0 for group in groups]) > MOST_STATES:
        groups = [*groups[:-2], groups[-2] + groups[-1]]
    return Rooms(
        tuple(np.array(group, np.int32) for group in groups),
        np.array([capacity[group].min() for group in groups]),
        np.stack([runs[:, group].all(axis=1) for group in groups]),
    )


@kernel
def _ends(state: Longs, offsets: Longs, storage: Ints, stored: Longs, room: float, runs: Bools) -> Longs:
    """How far a stage may reach that begins at each position [n + 1]: the first position that it cannot hold."""
    n = len(state)
    ends, uses = np.empty(n + 1, np.int64), np.zeros(len(stored), np.int32)
    held, end = 0.0, 0
    for start in range(n + 1):
        end = max(end, start)
        while end < n and runs[end]:
            more = float(state[end])
            for row in range(offsets[end], offsets[end + 1]):
                if uses[storage[row]] == 0:
                    more += stored[storage[row]]
            if held + more > room:
                break
            held += more
            for row in range(offsets[end], offsets[end + 1]):
                uses[storage[row]] += 1
            end += 1
        ends[start] = end
        if start < end:
            held -= state[start]
            for row in range(offsets[start], offsets[start + 1]):
                uses[storage[row]] -= 1
                if uses[storage[row]] == 0:
                    held -= stored[storage[row]]
    return ends


@kernel
def _furthest(ends: Longs, count: Longs, n: int) -> Longs:
    """Stages [n_stages, (class, start, end)] that reach the end of the line; none if nothing does."""
    kinds = len(count)
    states = 1
    for kind in range(kinds):
        states *= count[kind] + 1
    reach, came = np.zeros(states, np.int64), np.full(states, -1, np.int64)
    done = -1
    for state in range(1, states):
        rest, step = state, 1
        for kind in range(kinds):
            if rest % (count[kind] + 1) > 0:
                end = ends[kind, reach[state - step]]
                if end > reach[state]:
                    reach[state], came[state] = end, kind
            rest //= count[kind] + 1
            step *= count[kind] + 1
        if reach[state] == n and done < 0:
            done = state
    stages = np.empty((count.sum(), 3), np.int64)
    used, state = 0, done
    while state > 0 and came[state] >= 0:
        step = 1
        for kind in range(came[state]):
            step *= count[kind] + 1
        stages[used, 0], stages[used, 1], stages[used, 2] = came[state], reach[state - step], reach[state]
        used += 1
        state -= step
    return stages[:used][::-1].copy()


@kernel
def _latest(offsets: Longs, predecessors: Ints, rank: Ints) -> Ints:
    moved = rank.copy()
    for node in range(len(moved)):
        for row in range(offsets[node], offsets[node + 1]):
            moved[node] = max(moved[node], moved[predecessors[row]])
    return moved


@kernel
def _earliest(offsets: Longs, successors: Ints, rank: Ints) -> Ints:
    moved = rank.copy()
    for node in range(len(moved) - 1, -1, -1):
        for row in range(offsets[node], offsets[node + 1]):
            moved[node] = min(moved[node], moved[successors[row]])
    return moved


@kernel
def _random_order(offsets: Longs, successors: Ints, missing: Longs, rng: np.random.Generator) -> Ints:
    n = len(missing)
    waits = missing.copy()
    ready, position = np.empty(n, np.int32), np.empty(n, np.int32)
    size = 0
    for node in range(n):
        if waits[node] == 0:
            ready[size] = node
            size += 1
    for place in range(n):
        pick = rng.integers(0, size)
        node = ready[pick]
        size -= 1
        ready[pick] = ready[size]
        position[node] = place
        for row in range(offsets[node], offsets[node + 1]):
            waits[successors[row]] -= 1
            if waits[successors[row]] == 0:
                ready[size] = successors[row]
                size += 1
    return position
