"""Devices that can be exchanged without anybody noticing, and the one way to name them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.model.columns import Ints
from placewise.model.problem import Problem


def alike(problem: Problem) -> Ints:
    """The class [n_devices] of every device: devices of a class differ in name only.

    Their ops, memory and rules are the same, and exchanging two of them changes no link and no wire.
    """
    cluster, seconds = problem.cluster, problem.costs.op_seconds
    plain = [replace(device, name="device", notes=()) for device in cluster]
    kind = np.arange(len(cluster), dtype=np.int32)
    for device in range(len(cluster)):
        for other in range(device):
            if (
                kind[other] == other
                and plain[device] == plain[other]
                and problem.capacity[device] == problem.capacity[other]
                and np.array_equal(problem.allowed[:, device], problem.allowed[:, other])
                and np.array_equal(seconds[:, device], seconds[:, other])
                and _exchangeable(cluster.link_class, device, other)
                and _exchangeable(cluster.wire, device, other)
            ):
                kind[device] = other
                break
    return kind


def relabel(problem: Problem, device: Ints) -> Ints:
    """The same placement [n_ops] with the devices of each class used in the order of their first ops."""
    kind = alike(problem)
    used, first = np.unique(device, return_index=True)
    name = np.arange(problem.n_devices, dtype=np.int32)
    fresh = {k: iter(np.flatnonzero(kind == k).tolist()) for k in np.unique(kind).tolist()}
    for old in used[np.argsort(first)].tolist():
        name[old] = next(fresh[int(kind[old])])
    return name[device]


def _exchangeable(table: Ints, one: int, other: int) -> bool:
    """Whether a table over locations [n + 1, n + 1] stays the same when two of them change places."""
    rows, columns = table[[one, other]].copy(), table[:, [other, one]].T.copy()
    rows[1, [one, other]] = rows[1, [other, one]]
    columns[0, [one, other]] = columns[0, [other, one]]
    return bool((rows[0] == rows[1]).all() and (columns[0] == columns[1]).all())
