"""A lower bound for pipelines whose graph has too many ideals: one path through the graph, cut into segments.

The components of a path are on stages in the order of the path. So every stage has at most one segment of the path,
with all components between two of the segment, and none that lies behind a later or before an earlier component of the
path. The load of the stage is at least that of the cheapest such set, a minimum cut (hyperedges as in Ihler, Wagner and
Wagner 1993). For max-load T, the cheapest load of every segment is at most T, and all stages together do all the work.
Minimum cuts also bound the work of a stage within T: at any price of transfers, it is at most the largest work minus
priced transfers of such a set, plus T at that price (Lagrange).

Cuts are computed only where they matter. Bounds that need no cut come first; the best way to cut the path is found, its
segments are bounded by exact cuts, and so on until all of its segments are exact. Every round proves its own T.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ortools.graph.python import max_flow

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.placers.shared.stages.stage_costs import NEVER, StageCosts
from placewise.simulate.contiguity import Contraction

TOTAL, UNCUT = 1 << 40, 1 << 48
"""All costs together, in units of the network, and the capacity of arcs that are never cut."""
_LONGEST = 600
_STEPS = 40


class LeastCosts:
    """The least costs of each component and tensor on any device, as floats in units of the costs, rounded down."""

    def __init__(self, costs: StageCosts) -> None:
        seconds = np.where(costs.seconds < NEVER, costs.seconds, np.inf).min(axis=1, initial=np.inf)
        enter, leave = price_transfers(costs)
        free = bool((costs.rate < 0).any())
        self.work: Floats = seconds.astype(np.float64)
        self.enter: Floats = np.zeros_like(enter) if free else enter
        self.leave: Floats = np.zeros_like(leave) if free else leave


def price_transfers(costs: StageCosts) -> tuple[Floats, Floats]:
    """The least that entering and leaving devices that pay cost each tensor; where none pays, all cost the same."""
    paid = np.unique(costs.rate[costs.rate >= 0])
    if not len(paid):
        return np.ones(len(costs.producer)), np.ones(len(costs.producer))
    return costs.enter[:, paid].min(axis=1).astype(np.float64), costs.leave[:, paid].min(axis=1).astype(np.float64)


class _SegmentNetwork:
    """The flow network for the cheapest set that includes some components and excludes others; solved repeatedly."""

    def __init__(self, costs: StageCosts, least: LeastCosts) -> None:
        n, tensors = len(costs.size), len(costs.producer)
        total = float(least.work.sum() + least.enter.sum() + least.leave.sum())
        self._n, self._scale = n, TOTAL / max(total, 1e-300)
        leaving = np.zeros(n)
        produced = costs.producer >= 0
        np.add.at(leaving, costs.producer[produced & costs.output], least.leave[produced & costs.output])
        self._work, self._leaving = least.work, self._units(leaving)
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
        units: Longs = np.floor(amount * self._scale).astype(np.int64)
        return units

    def least(self, inside: Bools, outside: Bools, share: float) -> float:
        """The least sum of the transfers of a set and `share` of its work; inf if there is no such set."""
        return self._cut(inside, outside, np.zeros(self._n, np.int64), self._units(share * self._work))

    def most(self, inside: Bools, outside: Bools, worth: float) -> float:
        """The largest excess of `worth` times the work of a set over its transfers."""
        whole = self._units(worth * self._work * (1 + 1e-12)) + 1
        total = float(whole[~outside].sum()) / self._scale
        return total * (1 + 1e-12) - self._cut(inside, outside, whole, np.zeros(self._n, np.int64))

    def _cut(self, inside: Bools, outside: Bools, lost: Longs, own: Longs) -> float:
        """The least sum of transfers, `own` [n] of components in the set, and `lost` [n] of components left out."""
        if (inside & outside).any():
            return float("inf")
        self._flow.set_arcs_capacity(self._inside, np.where(inside, UNCUT, np.where(outside, 0, lost)))
        self._flow.set_arcs_capacity(self._outside, np.where(outside, UNCUT, self._leaving + own))
        if self._flow.solve(0, 1) != self._flow.OPTIMAL:
            return 0.0
        return float(self._flow.optimal_flow()) / self._scale * (1 - 1e-12)


def bound_by_path(graph: Contraction, costs: StageCosts, left: Callable[[], float], enough: float = np.inf) -> float:
    """A lower bound on the max-load of contiguous placements, in units of the costs; 0 if nothing is proved.

    Stops when no seconds are `left`, or with a bound of `enough`.
    """
    least = LeastCosts(costs)
    path = find_heaviest_path(graph, weigh_components(costs, least))
    if not np.isfinite(least.work).all() or not 1 < len(path) <= _LONGEST or left() <= 0:
        return 0.0
    m, after, before = len(path), *_locate_beside(graph, path)
    load, able = _sum_work(least.work, after, before, m)
    weight, pace = _weigh_replicas(costs, _sum_work(costs.weight.astype(np.float64), after, before, m)[0])
    prices, shares = _PRICES[costs.mode], _SHARES[costs.mode]
    most = np.stack([worth * able for _, worth in prices])
    network, exact, proved = _SegmentNetwork(costs, least), np.zeros((m + 1, m + 1), np.bool_), 0.0
    slopes, begins = np.array([price for price, _ in prices]), np.zeros(m + 1, np.int32)
    work, n_devices = float(least.work.sum()), int(costs.n_devices.sum())

    def cut(i: int, j: int) -> bool:
        """Bound segment (i, j) by minimum cuts; False if there was no time for all of them."""
        inside, outside = (after >= i) & (before < j), (after >= j) | (before < i)
        for share, part in shares:
            if left() <= 0:
                return False
            load[i, j] = max(load[i, j], part * network.least(inside, outside, share))
        for k, (price, worth) in enumerate(prices):
            if left() <= 0:
                return False
            if price and load[i, j] < np.inf:
                # The price is of transfers: work is worth `worth / price` of them.
                scale = price / _FACTOR[costs.mode]
                most[k, i, j] = min(most[k, i, j], scale * network.most(inside, outside, worth / scale))
        return True

    while left() > 0:
        value = _native.least_path_load(load, most, slopes, weight, pace, work, n_devices, _STEPS, begins, left())
        proved = max(proved, value)
        open_ = [(i, j) for i, j in _list_segments(begins, m) if not exact[i, j]]
        if not open_ or proved >= enough or not all(cut(i, j) for i, j in open_):
            break
        exact[tuple(np.transpose(open_))] = True
    return proved * (1 - 1e-14 * (m + 1000))


def _weigh_replicas(costs: StageCosts, weight: Floats) -> tuple[Floats, Floats]:
    """The weights of path[i:j] [m + 1, m + 1], and the least synchronization pace by the number of sharing devices.

    Synchronization adds to the whole load of a member only in `blocking` mode; in other modes it is left out.
    """
    least = np.where(np.arange(costs.pace.shape[1]) <= costs.most[:, None], costs.pace, np.inf).min(axis=0)
    pace: Floats = least * (1 - 1e-12) if costs.mode == 0 else np.zeros_like(least)
    return weight, pace


_FACTOR = (1.0, 1.0, 2.0)
"""How many times its transfers a stage may have within T, by communication mode: twice in `duplex`, both ways."""
_PRICES = (
    ((0.0, 1.0), (0.2, 0.8), (0.4, 0.6), (0.6, 0.4), (0.8, 0.2), (1.0, 0.0)),
    ((0.0, 1.0), (0.05, 1.0), (0.15, 1.0), (0.5, 1.0), (1.5, 1.0)),
    ((0.0, 1.0), (0.05, 1.0), (0.15, 1.0), (0.5, 1.0), (1.5, 1.0)),
)
"""(price of T, worth of work) by mode: a stage within T does at most ``most + price · T`` of work at that worth.

In `blocking` mode work and transfers share T, so that a price also lowers the worth of work.
"""
_SHARES = (
    ((1.0, 1.0),),
    ((0.0, 1.0), (1.0, 0.5), (0.5, 2 / 3), (2.0, 1 / 3)),
    ((0.0, 0.5), (0.5, 0.5), (1.0, 1 / 3), (2.0, 0.25)),
)
"""(share of work, weight) by mode: a load is at least the weight times the sum of transfers and that share of work."""


def weigh_components(costs: StageCosts, least: LeastCosts) -> Floats:
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


def _sum_work(work: Floats, after: Ints, before: Ints, m: int) -> tuple[Floats, Floats]:
    """For path[i:j] [m + 1, m + 1]: the work that must be inside, and the work that may be inside."""
    inside, may = np.zeros((m + 1, m + 1)), np.zeros((m + 1, m + 1))
    between = (after >= 0) & (before < m)
    np.add.at(inside, (after[between], before[between] + 1), work[between])
    inside = np.cumsum(np.cumsum(inside[::-1], axis=0)[::-1], axis=1)
    np.add.at(may, (before, after + 1), work)
    may = np.cumsum(np.cumsum(may[::-1], axis=0)[::-1], axis=1)
    return inside * (1 - 1e-12), may * (1 + 1e-12)


def _list_segments(begins: Ints, m: int) -> list[tuple[int, int]]:
    segments, j = [], m
    while j > 0 and begins[j] >= 0:
        segments.append((int(begins[j]), j))
        j = int(begins[j])
    return segments
