"""Classes of devices for stages that hold several of them, and which devices the stages of a pipeline get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup

Route = tuple[float, float]


View = Literal["best", "worst", "apart"]
"""How devices of a class that differ are seen: at their best, at their worst, or as classes of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceClass:
    """Devices that are alike: `members`, node by node; `cost_class` is their column in the ways' seconds.

    `able` [n_units] are the units that they may run. `node_counts` are how many of them each node has, and `node_room`
    how many devices of any class the largest of these nodes has. Routes are (bytes/s, seconds): `boundary` to other
    stages, `beyond` to those in other nodes, `inside` for the replicas of a stage that fits into a node and `across`
    for those of a larger one.
    """

    members: tuple[int, ...]
    cost_class: int
    capacity: float
    able: Bools
    node_counts: tuple[int, ...]
    node_room: int
    boundary: Route
    inside: Route
    across: Route
    beyond: Route

    @property
    def node_size(self) -> int:
        """The most of them in one node."""
        return max(self.node_counts)

    @property
    def routes(self) -> tuple[Route, ...]:
        return self.boundary, self.inside, self.across, self.beyond

    def count_splits(self, degree: int) -> int:
        """How many splits of a degree have room, none of them over two nodes."""
        return sum(count // degree for count in self.node_counts)

    def is_like(self, other: DeviceClass) -> bool:
        """Whether the same devices are seen in the same way."""
        return (
            self.members == other.members
            and self.capacity == other.capacity
            and self.routes == other.routes
            and np.array_equal(self.able, other.able)
        )


_FREE = (np.inf, 0.0)
_Routes = tuple[Route, Route, Route, Route]


def classify(problem: Problem, view: View = "best") -> list[DeviceClass]:
    """The classes of devices that may hold a stage, in the order of the ways' classes.

    Devices of a class may differ in memory, in the ops that they may run, and in their links. `best` takes for each
    figure the best that any of them has, so that nothing that holds of the classes is too strict for the devices;
    `worst` the worst, so that what fits the classes fits the devices; `apart` makes classes of equal devices.
    """
    ways, cluster = problem.require_ways(), problem.cluster
    able = list_able(problem)
    usable = np.flatnonzero(ways.device_class >= 0).astype(np.int32)
    staged, worst = cluster.transfers == "staged", view == "worst"
    own = _list_routes(cluster, usable) if staged else {}
    kinds: dict[tuple[int, object], list[int]] = {}
    for d in usable.tolist():
        differs = (float(problem.capacity[d]), able[:, d].tobytes(), own.get(d)) if view == "apart" else ()
        kinds.setdefault((int(ways.device_class[d]), differs), []).append(d)
    found = []
    for (cost_class, _), devices in sorted(kinds.items(), key=lambda item: (item[0][0], item[1])):
        members = sorted(devices, key=lambda d: (int(ways.node[d]), d))
        route = _pick([own[d] for d in members], worst) if staged else _FREE
        routes = (route, route, route, route) if staged else _routes(cluster, members, usable, ways.node, worst)
        capacity, runs = problem.capacity[members], able[:, members]
        can: Bools = np.logical_and.reduce(runs, axis=1) if worst else np.logical_or.reduce(runs, axis=1)
        homes, counts = np.unique(ways.node[members], return_counts=True)
        found.append(
            DeviceClass(
                tuple(members),
                cost_class,
                float(capacity.min() if worst else capacity.max()),
                can,
                tuple(counts.tolist()),
                max(int((ways.node[usable] == home).sum()) for home in homes.tolist()),
                *routes,
            )
        )
    return found


def _list_routes(cluster: Cluster, devices: Ints) -> dict[int, Route]:
    """The route of each device to and from host memory: the slower bandwidth and the smaller latency of both."""
    host, found = len(cluster), {}
    for d in devices.tolist():
        location = cluster.location[d]
        found[d] = _join(cluster, cluster.link_class[location, host], cluster.link_class[host, location])
    return found


def _join(cluster: Cluster, there: int, back: int) -> Route:
    """A route that is never slower than the slower one of two directions."""
    if not there or not back:
        return _FREE
    both = [there, back]
    return float(cluster.class_bandwidth[both].min()), float(cluster.class_latency[both].min())


def list_able(problem: Problem) -> Bools:
    """Which units [n_units, n_devices] each device may run, by the rules of their ops."""
    ways = problem.require_ways()
    able = np.ones((ways.n_units, problem.n_devices), np.bool_)
    np.logical_and.at(able, ways.unit, problem.allowed)
    return able


def _routes(cluster: Cluster, members: list[int], usable: Ints, node: Ints, worst: bool) -> _Routes:
    """The routes to other stages, between members, between members in different nodes, and to stages in other nodes."""
    count = len(cluster.class_bandwidth)

    def between(others: Ints, *, apart: bool = False) -> Route:
        here, there = np.meshgrid(members, others, indexing="ij")
        chosen = here != there
        if apart:
            chosen &= node[here] != node[there]
        a, b = cluster.location[here[chosen]], cluster.location[there[chosen]]
        known = np.zeros(count * count, np.bool_)
        known[cluster.link_class[a, b] * count + cluster.link_class[b, a]] = True
        pairs = np.flatnonzero(known).tolist()
        return _pick([_join(cluster, pair // count, pair % count) for pair in pairs], worst)

    own = np.array(members, np.int32)
    return between(usable), between(own), between(own, apart=True), between(usable, apart=True)


def _pick(routes: Sequence[Route], worst: bool) -> Route:
    """The fastest bandwidth and latency of any route, or with `worst` the slowest; free where there is none."""
    if not routes:
        return _FREE
    bandwidths, latencies = zip(*routes, strict=True)
    return (min(bandwidths), max(latencies)) if worst else (max(bandwidths), min(latencies))


def device_prices(classes: Sequence[DeviceClass], least_work: Floats) -> Floats:
    """Prices [n_classes] of devices for which priced work over priced devices bounds the load best.

    `least_work` [n_units, n_classes] are device-seconds of each unit on each class, at least. For any prices, no
    pipeline is faster than Σ of the least priced work / Σ of the priced devices; multiplicative weights look for the
    best (the dual of the fractional assignment of units to classes).
    """
    counts = np.array([len(one.members) for one in classes], np.float64)
    if not np.isfinite(least_work.min(axis=1, initial=np.inf)).all():
        return np.asarray(1.0 / counts.sum() * np.ones(len(classes)), np.float64)  # some unit runs nowhere
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
