"""Interchangeable devices, and the canonical labels of placements on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.model.columns import Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem, cached_per_problem
from placewise.simulate.blocks import op_times
from placewise.simulate.replicas import exchangeable


@cached_per_problem
def interchangeable(problem: Problem) -> Ints:
    """The class [n_devices] of every device, named by its first member: devices of a class differ in names only.

    They run the same ops in the same time, with the same memory and rules, and exchanging two of them changes no link
    and no shared link. If stages follow the order of the devices, no two devices are interchangeable.
    """
    cluster, column = problem.cluster, op_times(problem).of
    kind = np.arange(len(cluster), dtype=np.int32)
    if problem.constraints.ordered:
        return frozen(kind, np.int32)
    plain = [device.without_names() for device in cluster]
    for device in range(len(cluster)):
        for other in range(device):
            if (
                kind[other] == other
                and plain[device] == plain[other]
                and problem.capacity[device] == problem.capacity[other]
                and column[device] == column[other]
                and exchangeable(cluster.link_class, device, other)
                and exchangeable(cluster.wire, device, other)
            ):
                kind[device] = other
                break
    return frozen(kind, np.int32)


def relabel(problem: Problem, device: Ints) -> Ints:
    """The same placement [n_ops], where the devices of each class are used in the order of their first ops."""
    return relabel_placement(problem, Placement(device)).device


def relabel_placement(problem: Problem, placement: Placement) -> Placement:
    """The same placement, where the devices and replicas of each class are used in the order of their first ops."""
    kind, count = interchangeable(problem), problem.n_devices
    stage = np.arange(count) if placement.replicas is None else placement.replicas
    used, first = np.unique(placement.device, return_index=True)
    fresh = {k: iter(np.flatnonzero(kind == k).tolist()) for k in np.unique(kind).tolist()}
    name, replicas = np.arange(count, dtype=np.int32), np.arange(count, dtype=np.int32)
    for old in used[np.argsort(first)].tolist():
        members = [old, *(d for d in np.flatnonzero(stage == old).tolist() if d != old)]
        new = [next(fresh[int(kind[member])]) for member in members]
        name[old] = replicas[new] = new[0]
    shared = None if placement.replicas is None else replicas
    return replace(placement, device=name[placement.device], replicas=shared)
