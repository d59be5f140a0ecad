"""Classes of devices for stages that hold several of them, and which devices the stages of a pipeline get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup


@dataclass(frozen=True, slots=True, eq=False)
class DeviceClass:
    """Devices that are alike: `members`, node by node; `cost_class` is their column in the ways' seconds.

    `able` [n_units] are the units that they may run. `node_size` is the most of them in one node. Routes are (bytes/s,
    seconds): `boundary` to other stages, `inside` a node and `across` nodes, each the fastest that any of them has.
    """

    members: tuple[int, ...]
    cost_class: int
    capacity: float
    able: Bools
    node_size: int
    boundary: tuple[float, float]
    inside: tuple[float, float]
    across: tuple[float, float]


_FREE = (np.inf, 0.0)


def classify(problem: Problem, *, slowest: bool = False) -> list[DeviceClass]:
    """The classes of devices that may hold a stage. With `slowest`, routes are the slowest in place of the fastest."""
    ways, cluster = problem.require_ways(), problem.cluster
    able = np.ones((ways.n_units, problem.n_devices), np.bool_)
    np.logical_and.at(able, ways.unit, problem.allowed)
    kinds: dict[tuple[int, float, bytes], list[int]] = {}
    for d in np.flatnonzero(ways.device_class >= 0).tolist():
        key = (int(ways.device_class[d]), float(problem.capacity[d]), able[:, d].tobytes())
        kinds.setdefault(key, []).append(d)
    found = []
    for (cost_class, capacity, _), devices in kinds.items():
        members = sorted(devices, key=lambda d: (int(ways.node[d]), d))
        sizes = np.unique(ways.node[members], return_counts=True)[1]
        routes = _routes(cluster, members, ways.node, slowest)
        found.append(DeviceClass(tuple(members), cost_class, capacity, able[:, members[0]], int(sizes.max()), *routes))
    return found


def _routes(cluster: Cluster, members: list[int], node: Ints, slowest: bool) -> tuple[tuple[float, float], ...]:
    own = cluster.location[members]
    host = len(cluster)
    if cluster.transfers == "staged":
        ends = np.concatenate((cluster.link_class[own, host], cluster.link_class[host, own]))
        # A transfer through host memory takes the slower of the two halves in either direction.
        route = _pick(cluster, ends, slowest=True)
        return route, route, route
    among = cluster.link_class[np.ix_(own, own)]
    same = node[members][:, None] == node[members][None, :]
    apart = ~np.eye(len(members), dtype=np.bool_)
    everywhere = np.concatenate(
        (cluster.link_class[np.ix_(own, cluster.location)], cluster.link_class[own][:, [host]]), 1
    )
    boundary = _pick(cluster, everywhere, slowest)
    inside, across = _pick(cluster, among[same & apart], slowest), _pick(cluster, among[~same], slowest)
    return boundary, inside, across if across != _FREE else inside


def _pick(cluster: Cluster, classes: Ints, slowest: bool) -> tuple[float, float]:
    kinds = np.unique(classes)
    kinds = kinds[kinds > 0]
    if not len(kinds):
        return _FREE
    choose = np.min if slowest else np.max
    latency = np.max if slowest else np.min
    return float(choose(cluster.class_bandwidth[kinds])), float(latency(cluster.class_latency[kinds]))


def device_prices(classes: Sequence[DeviceClass], least_work: Floats) -> Floats:
    """Prices [n_classes] of devices for which priced work over priced devices bounds the load best.

    `least_work` [n_units, n_classes] are device-seconds of each unit on each class, at least. For any prices, no
    pipeline is faster than Σ of the least priced work / Σ of the priced devices; multiplicative weights look for the
    best (the dual of the fractional assignment of units to classes).
    """
    counts = np.array([len(one.members) for one in classes], np.float64)
    with np.errstate(over="ignore"):
        total = np.where(np.isfinite(least_work), least_work, 0.0).sum(axis=0)
    prices = 1.0 / np.maximum(total, 1e-300)
    prices /= (prices * counts).sum()
    best, best_value = prices, -np.inf
    for step in range(200 if len(classes) > 1 else 1):
        priced = least_work * prices
        chosen = priced.argmin(axis=1)
        value = priced.min(axis=1).sum() / (prices * counts).sum()
        if value > best_value:
            best, best_value = prices, value
        used = np.bincount(chosen, weights=least_work[np.arange(len(chosen)), chosen], minlength=len(classes))
        share = used / counts / max(value, 1e-300)
        prices = prices * np.exp(np.clip(share - 1.0, -2.0, 2.0) / (1.0 + 0.1 * step))
        prices = prices / (prices * counts).sum()
    found: Floats = best
    return found


def assign_devices(
    problem: Problem, classes: Sequence[DeviceClass], rows: Sequence[tuple[int, int, int]]
) -> tuple[StageGroup, ...] | None:
    """Devices for stages (class, degree, replicas), in order; None if splits do not fit into nodes.

    Stages follow each other along the nodes, so that neighbours are close; if that leaves gaps, the widest come first.
    """
    for order in (range(len(rows)), sorted(range(len(rows)), key=lambda s: -rows[s][1])):
        groups = _fill(problem.require_ways().node, classes, rows, list(order))
        if groups is not None:
            return groups
    return None


def _fill(
    node: Ints, classes: Sequence[DeviceClass], rows: Sequence[tuple[int, int, int]], order: list[int]
) -> tuple[StageGroup, ...] | None:
    groups: list[StageGroup | None] = [None] * len(rows)
    free: list[list[list[int]]] = []
    for one in classes:
        by_node: dict[int, list[int]] = {}
        for d in one.members:
            by_node.setdefault(int(node[d]), []).append(d)
        free.append(list(by_node.values()))
    for s in order:
        kind, degree, replicas = rows[s]
        devices: list[int] = []
        for _ in range(replicas):
            place = next((left for left in free[kind] if len(left) >= degree), None)
            if place is None:
                return None
            devices += place[:degree]
            del place[:degree]
        groups[s] = StageGroup(tuple(devices), replicas, degree)
    return tuple(group for group in groups if group is not None)
