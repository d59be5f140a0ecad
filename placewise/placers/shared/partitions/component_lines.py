"""Components in a row: topological orders at random, stages that follow each other, and splits that fit in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, offsets_of
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import compute_footprint, may_run
from placewise.simulate.contiguity import Contraction

MOST_STATES = 1 << 17
"""Numbers of devices used of each class, all together; beyond it, classes merge, with the least room of each."""


class DeviceClasses(NamedTuple):
    """Classes of devices that a line can be cut for: who is in them, what they hold and what they may run."""

    members: tuple[Ints, ...]
    room: Floats  # [n_classes]
    runs: Bools  # [n_classes, n_components]


def shift_late(graph: Contraction, rank: Ints) -> Ints:
    """The least ranks [n_components], no smaller than these, of which no edge leads back to a smaller one."""
    late: Ints = rank.astype(np.int32)
    _native.shift_late(graph.predecessor_offsets, graph.predecessors, late)
    return late


def shift_early(graph: Contraction, rank: Ints) -> Ints:
    """The greatest ranks [n_components], no greater than these, of which no edge leads back to a smaller one."""
    early: Ints = rank.astype(np.int32)
    _native.shift_early(graph.successor_offsets, graph.successors, early)
    return early


def draw_order(graph: Contraction, seed: int) -> Ints:
    """The position [n_components] of each component in a topological order drawn at random."""
    position: Ints = _native.random_order(graph.successor_offsets, graph.successors, seed)
    return position


def fill_stages(problem: Problem, graph: Contraction, position: Ints, capacity: Floats) -> Ints | None:
    """The devices [n_ops] of a split of a line into stages that stay within `capacity` [n_devices], or None.

    `position` [n_components] is a topological order. Every order of the devices is tried, by dynamic programming over
    how many of each class are used: the furthest end is all that matters, since a longer stage needs no fewer bytes.
    """
    n = graph.n
    if not n:
        return np.zeros(problem.n_ops, np.int32)
    line = position[graph.component]
    rooms = _group_devices(capacity, may_run(problem, line, n))
    held = compute_footprint(problem, line, n)
    offsets = offsets_of(held.group, n)
    ends = np.stack(
        [
            _native.stage_ends(held.state, offsets, held.storage, held.stored, float(min(room, 1e18)), runs)
            for room, runs in zip(rooms.room, rooms.runs, strict=True)
        ]
    )
    cuts = _native.split_line(ends, np.array([len(members) for members in rooms.members], np.int64))
    if len(cuts) == 0:
        return None
    device, fresh = np.empty(n, np.int32), [iter(members.tolist()) for members in rooms.members]
    for kind, start, end in cuts.tolist():
        device[start:end] = next(fresh[kind])
    return device[line]


def _group_devices(capacity: Floats, runs: Bools) -> DeviceClasses:
    """Devices of equal capacity that may run the same, together; roomy ones first."""
    known: dict[bytes, list[int]] = {}
    for d in np.argsort(-capacity, kind="stable").tolist():
        known.setdefault(capacity[d].tobytes() + np.packbits(runs[:, d]).tobytes(), []).append(d)
    groups = list(known.values())
    while np.prod([len(group) + 1.0 for group in groups]) > MOST_STATES:
        groups = [*groups[:-2], groups[-2] + groups[-1]]
    return DeviceClasses(
        tuple(np.array(group, np.int32) for group in groups),
        np.array([capacity[group].min() for group in groups]),
        np.stack([runs[:, group].all(axis=1) for group in groups]),
    )
