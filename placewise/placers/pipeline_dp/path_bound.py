"""A lower bound for pipelines whose graph has too many ideals: one path through the graph, cut into segments.

The components of a path are on stages in the order of the path. So every stage has at most one segment of the path,
with all components between two of the segment, and none that lies behind a later or before an earlier component of the
path. The load of the stage is at least that of the cheapest such set, a minimum cut (hyperedges as in Ihler, Wagner and
Wagner 1993). For max-load T, the cheapest load of every segment is at most T, and all stages together do all the work.
Minimum cuts also bound the work of a stage within T: at any price of transfers, it is at most the largest work minus
priced transfers of such a set, plus T at that price (Lagrange).

Host devices pay for no transfers, so that stages on them have tables of their own: the seconds of what must be inside,
and at any price of a host's seconds, the most work beyond it, which a stage may choose freely.

Cuts are computed only where they matter. Bounds that need no cut come first; the best way to cut the path is found, its
segments are bounded by exact cuts, and so on until all of its segments are exact. Every round proves its own T.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ortools.graph.python import max_flow

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts
from placewise.simulate.contiguity import Contraction

TOTAL, UNCUT = 1 << 40, 1 << 48
"""All costs together, in units of the network, and the capacity of arcs that are never cut."""
_LONGEST = 600
_NEAR = 1e-3
"""A segment whose load exceeds the bound so far by more than this share waits for a larger bound."""
_COARSE, _FINE = 1e-4, 1e-12
"""The relative precision of the max-load of a round, and once all its segments are exact."""


class LeastCosts:
    """The least costs of each component and tensor on any device, as floats in units of the costs, rounded down.

    `among` [n_classes] limits the devices.
    """

    def __init__(self, costs: ComponentCosts, among: Bools | None = None) -> None:
        among = np.ones(len(costs.rate), np.bool_) if among is None else among
        seconds = np.where(costs.seconds < NEVER, costs.seconds, np.inf)[:, among].min(axis=1, initial=np.inf)
        enter, leave = price_transfers(costs)
        free = bool((costs.rate[among] < 0).any())
        self.work: Floats = seconds.astype(np.float64)
        self.enter: Floats = np.zeros_like(enter) if free else enter
        self.leave: Floats = np.zeros_like(leave) if free else leave


def price_transfers(costs: ComponentCosts) -> tuple[Floats, Floats]:
    """The least that entering and leaving devices that pay cost each tensor; where none pays, all cost the same."""
    paid = np.unique(costs.rate[costs.rate >= 0])
    if not len(paid):
        return np.ones(len(costs.producer)), np.ones(len(costs.producer))
    return costs.enter[:, paid].min(axis=1).astype(np.float64), costs.leave[:, paid].min(axis=1).astype(np.float64)


class _SegmentNetwork:
    """The flow network for the cheapest set that includes some components and excludes others; solved repeatedly."""

    def __init__(self, costs: ComponentCosts, least: LeastCosts) -> None:
        n, tensors = len(costs.size), len(costs.producer)
        own = np.where(np.isfinite(least.work), least.work, 0.0)
        total = float(own.sum() + least.enter.sum() + least.leave.sum())
        self._n, self._scale = n, TOTAL / max(total, 1e-300)
        leaving = np.zeros(n)
        produced = costs.producer >= 0
        np.add.at(leaving, costs.producer[produced & costs.output], least.leave[produced & costs.output])
        self._work, self._leaving = own, self._units(leaving)
        tensor = np.repeat(np.arange(tensors), np.diff(costs.consumer_offsets))
        received, sent = 2 + n + np.arange(tensors), 2 + n + tensors + np.arange(tensors)
        sends = np.flatnonzero(produced & ~costs.output)
        never = np.full(len(tensor), UNCUT)
        tails = (2 + costs.consumers, received, 2 + costs.producer[sends], sent[tensor])
        heads = (received[tensor], np.where(produced, 2 + costs.producer, 1), sent[sends], 2 + costs.consumers)
        units = (never, self._units(least.enter), self._units(least.leave[sends]), never)
        self._flow = max_flow.SimpleMaxFlow()
        add, parts = self._flow.add_arcs_with_capacity, (2 + np.arange(n)).astype(np.int32)
        add(*(np.concatenate(ends).astype(np.int32) for ends in (tails, heads)), np.concatenate(units))
        self._inside = add(np.zeros(n, np.int32), parts, np.zeros(n, np.int64))
        self._outside = add(parts, np.ones(n, np.int32), self._leaving)

    def _units(self, amount: Floats) -> Longs:
        return np.floor(amount * self._scale).astype(np.int64)

    def least(self, inside: Bools, outside: Bools, share: float) -> float:
        """The least sum of the transfers of a set and `share` of its work; inf if there is no such set."""
        return self._cut(inside, outside, np.zeros(self._n, np.int64), self._units(share * self._work))

    def most(self, inside: Bools, outside: Bools, worth: Floats) -> float:
        """The largest excess of the `worth` [n] of a set over its transfers."""
        gained = self._units(np.maximum(worth, 0.0) * (1 + 1e-12)) + 1
        total = float(gained[~outside].sum()) / self._scale
        return total * (1 + 1e-12) - self._cut(inside, outside, gained, self._units(np.maximum(-worth, 0.0)))

    def _cut(self, inside: Bools, outside: Bools, lost: Longs, own: Longs) -> float:
        """The least sum of transfers, `own` [n] of components in the set, and `lost` [n] of components left out."""
        if (inside & outside).any():
            return float("inf")
        self._flow.set_arcs_capacity(self._inside, np.where(inside, UNCUT, np.where(outside, 0, lost)))
        self._flow.set_arcs_capacity(self._outside, np.where(outside, UNCUT, self._leaving + own))
        if self._flow.solve(0, 1) != self._flow.OPTIMAL:
            return 0.0
        return float(self._flow.optimal_flow()) / self._scale * (1 - 1e-12)


def bound_by_path(
    graph: Contraction, costs: ComponentCosts, left: Callable[[], float], enough: float = np.inf, low: float = 0.0
) -> float:
    """A lower bound on the max-load of contiguous placements, in units of the costs, where `low` is known already.

    Stops when no seconds are `left`, or with a bound of `enough`.
    """
    paying = find_paying(costs)
    least, hosted = LeastCosts(costs, paying), LeastCosts(costs, ~paying).work
    work = np.minimum(least.work, QUICKEST * hosted)
    if not np.isfinite(work).all() or left() <= 0:
        return low
    path = _thin_out(find_heaviest_path(graph, weigh_components(costs, least)), work)
    if len(path) < 2:
        return low
    m, after, before = len(path), *_locate_beside(graph, path)
    load = _sum_inside(least.work, after, before, m)
    hosts = _bound_hosts(costs, work, hosted, after, before, m)
    weight, pace = _weigh_replicas(costs, paying, _sum_inside(costs.weight.astype(np.float64), after, before, m))
    prices, shares = _PRICES[costs.mode], _SHARES[costs.mode]
    busy, gained = (np.where(np.isfinite(least.work), column, 0.0) for column in (least.work, work))
    gains = [gained - price * busy if costs.mode == 0 else gained for price in prices]
    most = np.stack([_sum_gains(gain, after, before, m) for gain in gains])
    shared = bool((costs.most[paying] > 1).any())
    network, cuts = _SegmentNetwork(costs, least), np.zeros((m + 1, m + 1), np.int8)
    slopes, begins = np.array(prices), np.zeros(m + 1, np.int32)
    n_devices, n_hosts = int(costs.n_devices[paying].sum()), int(costs.n_devices[~paying].sum())
    proved = max(low, float(work.sum()) / (n_devices + QUICKEST * n_hosts) * (1 - 1e-12))

    def cut(i: int, j: int) -> bool:
        """Bound segment (i, j) by minimum cuts, its work only within reach; False if there was no time for them."""
        inside, outside = (after >= i) & (before < j), (after >= j) | (before < i)
        for share, part in () if cuts[i, j] else shares:
            if left() <= 0:
                return False
            load[i, j] = max(load[i, j], part * network.least(inside, outside, share))
        cuts[i, j] = 1
        if load[i, j] > proved * (1 + _NEAR) and not shared:
            return True
        for k, (price, gain) in enumerate(zip(prices, gains, strict=True)):
            if left() <= 0:
                return False
            if price and load[i, j] < np.inf:
                scale = price / _FACTOR[costs.mode]
                most[k, i, j] = min(most[k, i, j], scale * network.most(inside, outside, gain / scale))
        cuts[i, j] = 2
        return True

    precision = _COARSE
    while left() > 0:
        value = _native.least_path_load(
            load, most, slopes, weight, pace, *hosts, float(work.sum()), proved, n_devices, n_hosts, precision, begins,
            left(),
        )  # fmt: skip
        proved = max(proved, value)
        open_ = [(i, j) for i, j in _list_segments(begins, m) if cuts[i, j] < 2]
        if proved >= enough or not all(cut(i, j) for i, j in open_) or (not open_ and precision == _FINE):
            break
        precision = _COARSE if open_ else _FINE
    return max(low, proved * (1 - 1e-14 * (m + 1000)))


def find_paying(costs: ComponentCosts) -> Bools:
    """The classes [n_classes] whose transfers count; all if there are none, or if several hosts may share a stage."""
    paying: Bools = costs.rate >= 0
    apart = paying.any() and not (costs.most[~paying] > 1).any()
    return paying if apart else np.ones_like(paying)


def _thin_out(path: Ints, work: Floats) -> Ints:
    """At most `_LONGEST` components of a path, with about equal work between them."""
    if len(path) <= _LONGEST:
        return path
    passed = np.cumsum(work[path] + work.sum() * 1e-6)
    chosen = np.searchsorted(passed, np.linspace(passed[0], passed[-1], _LONGEST))
    thinned: Ints = path[np.unique(np.minimum(chosen, len(path) - 1))]
    return thinned


def _bound_hosts(
    costs: ComponentCosts, work: Floats, hosted: Floats, after: Ints, before: Ints, m: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """On hosts: the least loads of path[i:j], the most work at some prices, the prices, the same off path."""
    if not (costs.rate < 0).any() or find_paying(costs).all():
        return np.zeros((m + 1, m + 1)), np.zeros((0, m + 1, m + 1)), np.zeros(0), np.zeros(0)
    able = np.isfinite(hosted) & (hosted > 0)
    ratio = work[able] / hosted[able]
    slopes = np.unique(np.append(np.quantile(ratio, _QUANTILES) if len(ratio) else [], (0.0, QUICKEST)))
    seconds = np.where(np.isfinite(hosted), hosted, 0.0)
    gains = [np.where(np.isfinite(hosted), work - slope * seconds, 0.0) for slope in slopes.tolist()]
    aside = np.ones(len(work), np.bool_)
    aside[(after == before) & (after >= 0) & (before < m)] = False
    without = np.array([float(np.maximum(gain[aside], 0.0).sum()) * (1 + 1e-12) for gain in gains])
    most = np.stack([_sum_gains(gain, after, before, m) for gain in gains])
    return _sum_inside(hosted, after, before, m), most, slopes, without


def _weigh_replicas(costs: ComponentCosts, paying: Bools, weight: Floats) -> tuple[Floats, Floats]:
    """The weights of path[i:j] [m + 1, m + 1], and the least synchronization pace by the number of sharing devices.

    Synchronization adds to the whole load of a member only in `blocking` mode; in other modes it is left out.
    """
    members = np.arange(costs.pace.shape[1]) <= costs.most[paying, None]
    least = np.where(members, costs.pace[paying], np.inf).min(axis=0)
    pace: Floats = least * (1 - 1e-12) if costs.mode == 0 else np.zeros_like(least)
    return weight, pace


QUICKEST = 2.0
"""A component that a host does quicker than other devices, by more than this factor, counts for as much as that."""
_QUANTILES = np.linspace(0.0, 1.0, 13)
"""The prices of a host's seconds, among the components' work per second on it."""
_FACTOR = (1.0, 1.0, 2.0)
"""How many times its transfers a stage may have within T, by communication mode: twice in `duplex`, both ways."""
_PRICES = ((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), (0.0, 0.05, 0.15, 0.5, 1.5), (0.0, 0.05, 0.15, 0.5, 1.5))
"""Prices of T by mode: a stage within T does at most ``most + price · T`` of work.

It is the most work of a set, less its transfers at that price, and in `blocking` mode less its seconds as well.
"""
_SHARES = (
    ((1.0, 1.0),),
    ((0.0, 1.0), (1.0, 0.5), (0.5, 2 / 3), (2.0, 1 / 3)),
    ((0.0, 1 / 2), (0.5, 2 / 5), (1.0, 1 / 3), (2.0, 1 / 4)),
)
"""(share of work, weight) by mode: a load is at least the weight times the sum of transfers and that share of work."""


def weigh_components(costs: ComponentCosts, least: LeastCosts) -> Floats:
    """The work [n] of each component together with the transfers of its tensors."""
    weight: Floats = np.where(np.isfinite(least.work), least.work, 0.0)
    produced = costs.producer >= 0
    np.add.at(weight, costs.producer[produced], least.leave[produced])
    np.add.at(weight, costs.consumers, np.repeat(least.enter, np.diff(costs.consumer_offsets)))
    return weight


def find_heaviest_path(graph: Contraction, weight: Floats) -> Ints:
    """The components of a path with the largest sum of `weight` [n], in order."""
    reach, came = weight.copy(), np.full(graph.n, -1, np.int32)
    for tail, head in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        if came[head] < 0 or reach[tail] + weight[head] > reach[head]:
            reach[head], came[head] = reach[tail] + weight[head], tail
    path = [int(reach.argmax())]
    while came[path[-1]] >= 0:
        path.append(int(came[path[-1]]))
    return np.array(path[::-1], np.int32)


def _locate_beside(graph: Contraction, path: Ints) -> tuple[Ints, Ints]:
    """For each component [n], the last path position that leads to it (or −1), and the first it leads to (or m)."""
    after, before = np.full(graph.n, -1, np.int32), np.full(graph.n, len(path), np.int32)
    after[path] = before[path] = np.arange(len(path))
    edges = list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))
    for tail, head in edges:
        after[head] = max(after[head], after[tail])
    for tail, head in reversed(edges):
        before[tail] = min(before[tail], before[head])
    return after, before


def _sum_inside(amount: Floats, after: Ints, before: Ints, m: int) -> Floats:
    """For path[i:j] [m + 1, m + 1]: the `amount` [n] ≥ 0 that must be inside, rounded down."""
    inside = np.zeros((m + 1, m + 1))
    between = (after >= 0) & (before < m)
    np.add.at(inside, (after[between], before[between] + 1), amount[between])
    return np.cumsum(np.cumsum(inside[::-1], axis=0)[::-1], axis=1) * (1 - 1e-12)


def _sum_gains(gain: Floats, after: Ints, before: Ints, m: int) -> Floats:
    """For path[i:j] [m + 1, m + 1]: the most `gain` [n] of a set, rounded up; losses count if they must be inside."""
    may = np.zeros((m + 1, m + 1))
    np.add.at(may, (before, after + 1), np.maximum(gain, 0.0))
    may = np.cumsum(np.cumsum(may[::-1], axis=0)[::-1], axis=1)
    return may * (1 + 1e-12) - _sum_inside(np.maximum(-gain, 0.0), after, before, m)


def _list_segments(begins: Ints, m: int) -> list[tuple[int, int]]:
    """The segments of the path that are not on a host."""
    segments, j = [], m
    while j > 0 and begins[j] != -1:
        begin = int(begins[j])
        segments += [(begin, j)] if begin >= 0 else []
        j = begin if begin >= 0 else -2 - begin
    return segments
