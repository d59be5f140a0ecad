"""Orders of components: random topological orders, stages without back edges, and splits that fit in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, offsets_of
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import compute_footprint, may_run
from placewise.simulate.contiguity import Contraction

MAX_STATES = 1 << 17
"""States of the dynamic program, one per count of used devices of each class; with more, classes are merged."""


class CapacityClasses(NamedTuple):
    """Classes of devices of equal capacity that may run the same components."""

    members: tuple[Ints, ...]
    room: Floats  # [n_classes], the least of the members
    runs: Bools  # [n_classes, n_components]


def shift_late(graph: Contraction, rank: Ints) -> Ints:
    """The least ranks [n_components], no smaller than these, such that no edge leads to a smaller rank."""
    late: Ints = rank.astype(np.int32)
    _native.shift_late(graph.predecessor_offsets, graph.predecessors, late)
    return late


def shift_early(graph: Contraction, rank: Ints) -> Ints:
    """The greatest ranks [n_components], no greater than these, such that no edge leads to a smaller rank."""
    early: Ints = rank.astype(np.int32)
    _native.shift_early(graph.successor_offsets, graph.successors, early)
    return early


def sort_by_rank(rank: Ints) -> Ints:
    """The position [n_components] of each component in the order by `rank` [n_components], ties by number."""
    position = np.empty(len(rank), np.int32)
    position[np.argsort(rank, kind="stable")] = np.arange(len(rank), dtype=np.int32)
    return position


def draw_order(graph: Contraction, seed: int) -> Ints:
    """The position [n_components] of each component in a topological order drawn at random."""
    return _native.random_order(graph.successor_offsets, graph.successors, seed)


def fill_stages(problem: Problem, graph: Contraction, position: Ints, capacity: Floats) -> Ints | None:
    """The devices [n_ops] of a split of an order into stages that stay within `capacity` [n_devices], or None.

    `position` [n_components] is a topological order. A dynamic program over the number of used devices of each class
    tries every order of the devices. Only the furthest end matters, since a longer stage never needs fewer bytes.
    """
    n = graph.n
    if not n:
        return np.zeros(problem.n_ops, np.int32)
    place = position[graph.component]
    classes = _group_devices(capacity, may_run(problem, place, n))
    footprint = compute_footprint(problem, place, n)
    offsets = offsets_of(footprint.group, n)
    ends = np.stack(
        [
            _native.stage_ends(
                footprint.state, offsets, footprint.storage, footprint.stored, float(min(room, 1e18)), runs
            )
            for room, runs in zip(classes.room, classes.runs, strict=True)
        ]
    )
    cuts = _native.split_line(ends, np.array([len(members) for members in classes.members], np.int64))
    if len(cuts) == 0:
        return None
    device, fresh = np.empty(n, np.int32), [iter(members.tolist()) for members in classes.members]
    for kind, start, end in cuts.tolist():
        device[start:end] = next(fresh[kind])
    return device[place]


def _group_devices(capacity: Floats, runs: Bools) -> CapacityClasses:
    """Devices of equal capacity that may run the same components, together; the roomiest first."""
    known: dict[bytes, list[int]] = {}
    for d in np.argsort(-capacity, kind="stable").tolist():
        known.setdefault(capacity[d].tobytes() + np.packbits(runs[:, d]).tobytes(), []).append(d)
    groups = list(known.values())
    while np.prod([len(group) + 1.0 for group in groups]) > MAX_STATES:
        groups = [*groups[:-2], groups[-2] + groups[-1]]
    return CapacityClasses(
        tuple(np.array(group, np.int32) for group in groups),
        np.array([capacity[group].min() for group in groups]),
        np.stack([runs[:, group].all(axis=1) for group in groups]),
    )
