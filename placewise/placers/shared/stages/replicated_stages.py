"""Replicated stages in the dynamic programs: their loads in whole numbers, and how chains name their members."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.problem import Problem
from placewise.simulate.blocks import storage_bytes
from placewise.simulate.replicas import passes, ring_bandwidth

Groups = tuple[tuple[int, ...], ...]
"""The members of each replicated stage; the first of them is the one that ops are placed on."""


def compute_member_load(seconds: int, enter: int, leave: int, sync: int, members: int, mode: int) -> int:
    """The load of each of the members of a stage, from the stage's own sums and its synchronization."""
    if mode == 0:
        return (seconds + enter + leave) // members + sync
    if mode == 1:
        return max(seconds // members, (enter + leave) // members + sync)
    return max(seconds // members, max(enter, leave) // members + sync)


def count_members(problem: Problem, classes: Sequence[Sequence[int]]) -> Ints:
    """The most devices of each class [n_classes] that may share a stage."""
    return frozen([min(len(devices), problem.most_replicas) for devices in classes], np.int32)


def count_usable(classes: Sequence[Sequence[int]], most: Ints, n: int) -> Ints:
    """How many devices of each class [n_classes] stages of n components can make use of."""
    pairs = zip(classes, most.tolist(), strict=True)
    return frozen([min(len(devices), max(n, 1) * members) for devices, members in pairs], np.int32)


def bound_sync(problem: Problem) -> float:
    """Seconds that no synchronization of any stage exceeds."""
    if problem.most_replicas == 1 or not problem.graph.ops.backward.any():
        return 0.0
    slowest = float(problem.cluster.class_bandwidth.min())
    return 2 / (problem.objective.step_samples or 2) * float(storage_bytes(problem.graph).sum()) / slowest


def compute_sync_paces(problem: Problem, classes: Sequence[Sequence[int]]) -> Floats:
    """Seconds of synchronization per byte of weights [n_classes, most members + 1], by the number of members."""
    most = count_members(problem, classes)
    pace = np.zeros((len(classes), int(most.max(initial=1)) + 1))
    if not problem.graph.ops.backward.any():
        return pace
    for k, devices in enumerate(classes):
        for members in range(2, int(most[k]) + 1):
            pace[k, members] = passes(problem, members) / ring_bandwidth(problem, devices[:2])
    return pace


def build_replica_column(groups: Groups, n_devices: int) -> Ints | None:
    """The column of a placement that says who repeats whose stage; None where nobody does."""
    if not groups:
        return None
    stage = np.arange(n_devices, dtype=np.int32)
    for members in groups:
        stage[list(members)] = members[0]
    return stage
