"""Replicated stages in the dynamic programs: their loads in whole units, and the replica column of a placement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.problem import Problem
from placewise.simulate.blocks import storage_bytes
from placewise.simulate.replicas import passes, ring_bandwidth

Groups = tuple[tuple[int, ...], ...]
"""The members of each replicated stage; ops are placed on the first."""


def compute_member_load(seconds: int, enter: int, leave: int, sync: int, members: int, mode: int) -> int:
    """The load of each member of a stage, from the sums of the stage and its synchronization."""
    if mode == 0:
        return (seconds + enter + leave) // members + sync
    if mode == 1:
        return max(seconds // members, (enter + leave) // members + sync)
    return max(seconds // members, max(enter, leave) // members + sync)


def count_members(problem: Problem, classes: Sequence[Sequence[int]]) -> Ints:
    """The most devices of each class [n_classes] that may share a stage."""
    return frozen([min(len(devices), problem.max_replicas) for devices in classes], np.int32)


def count_usable(classes: Sequence[Sequence[int]], most: Ints, n: int) -> Ints:
    """The number of devices of each class [n_classes] that stages of n components can use."""
    pairs = zip(classes, most.tolist(), strict=True)
    return frozen([min(len(devices), max(n, 1) * members) for devices, members in pairs], np.int32)


def bound_sync(problem: Problem) -> float:
    """An upper bound in seconds on the synchronization of any stage."""
    if problem.max_replicas == 1 or not problem.graph.ops.backward.any():
        return 0.0
    slowest = float(problem.cluster.class_bandwidth.min())
    return 2 / (problem.objective.step_samples or 2) * float(storage_bytes(problem.graph).sum()) / slowest


def compute_sync_paces(problem: Problem, classes: Sequence[Sequence[int]]) -> Floats:
    """Seconds of synchronization per byte of weights, by number of members [n_classes, most members + 1]."""
    most = count_members(problem, classes)
    pace = np.zeros((len(classes), int(most.max(initial=1)) + 1))
    if not problem.graph.ops.backward.any():
        return pace
    for k, devices in enumerate(classes):
        for members in range(2, int(most[k]) + 1):
            pace[k, members] = passes(problem, members) / ring_bandwidth(problem, devices[:2])
    return pace


def build_replica_column(groups: Groups, n_devices: int) -> Ints | None:
    """The `replicas` column [n_devices] of a placement; None without replicated stages."""
    if not groups:
        return None
    stage = np.arange(n_devices, dtype=np.int32)
    for members in groups:
        stage[list(members)] = members[0]
    return stage
