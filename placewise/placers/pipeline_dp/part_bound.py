"""A lower bound for pipelines whose graph has too many ideals: the ideals of a part of its components.

Every pipeline of the graph cuts some of its components, the *part*, into a chain of ideals of the part. A stage from
ideal I to ideal J has the components of the part between them, and pays at least for the tensors between components of
the part that its ends separate. The other components are divisible work: a stage may do all of it that no ideal forces
into another stage. For max-load T, a dynamic program over pairs of ideals finds the most work up to each ideal that so
many stages can do. If that is not all the work, no pipeline has a max-load of T.

The bound from one path lets neighbouring stages disagree about what lies beside the path. Here they share one ideal of
all components of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs, offsets_of
from placewise.placers.pipeline_dp.part_transfers import PartTransfers, list_part_transfers
from placewise.placers.pipeline_dp.path_bound import QUICKEST, LeastCosts, find_paying, weigh_components
from placewise.placers.shared.stages.ideals import Ideals, enumerate_ideals
from placewise.placers.shared.stages.stage_costs import ComponentCosts
from placewise.simulate.contiguity import Contraction

MAX_IDEALS = 2048
"""Of the part; a stage is a pair of them."""
MAX_PART = 400
MAX_COMPONENTS = 5000
"""On larger graphs a part has a small share of the work, and its bound takes long."""
_ROWS = 256
"""Ideals from which stages are priced at once."""
_PRECISION = 1e-4
_SAFE = 1 - 1e-9
"""Covers the rounding of sums."""
_MANY = 2.0
"""Costs count for no more than so many times the largest max-load of interest, so that differences are exact enough."""
_ADDED, _REFUSED = 32, 40
"""How many components join a part at once at first, and how many may be refused before it is complete."""
_QUANTILES = np.linspace(0.0, 1.0, 13)
_NONE: Ints = np.zeros(0, np.int32)


class _Stages(NamedTuple):
    """Stages from ideal to ideal, sorted by the ideal at the end; each ideal has one that is empty."""

    start: Longs  # [n_stages]
    first: Longs  # [n_ideals] the first stage that ends at each ideal
    transfers: Floats  # [n_stages]
    least: Floats  # [n_stages] seconds at least
    most: Floats  # [n_stages] work at most


def bound_by_part(
    graph: Contraction, costs: ComponentCosts, left: Callable[[], float], enough: float = np.inf, low: float = 0.0
) -> float:
    """A lower bound on the max-load of contiguous placements, in units of the costs, where `low` is known already.

    Stops when no seconds are `left`, or with a bound of `enough`.
    """
    if (costs.most > 1).any() or not 1 < graph.n <= MAX_COMPONENTS:
        return low
    paying = find_paying(costs)
    least = LeastCosts(costs, paying)
    work = np.minimum(least.work, QUICKEST * LeastCosts(costs, ~paying).work)
    if not np.isfinite(work).all():
        return low
    high, weight = min(enough, float(work.sum())), weigh_components(costs, least)
    for order in _list_orders(graph, weight):
        if left() <= 0 or low >= high * _SAFE:
            break
        chosen = _choose_part(graph, order[:MAX_PART], left)
        if chosen is not None:
            low = _PartBound(graph, costs, work, *chosen, high).raise_bound(low, left)
    return low


def _list_orders(graph: Contraction, weight: Floats) -> Iterator[Longs]:
    """Which components join a part first: the heaviest with the ends of their chains; those with several neighbours."""
    series = (np.diff(graph.predecessor_offsets) == 1) & (np.diff(graph.successor_offsets) == 1)
    follow = np.arange(graph.n), np.arange(graph.n)
    for c in range(graph.n):
        if series[c]:
            follow[0][c] = follow[0][graph.predecessors[graph.predecessor_offsets[c]]]
    for c in reversed(range(graph.n)):
        if series[c]:
            follow[1][c] = follow[1][graph.successors[graph.successor_offsets[c]]]
    heaviest = np.argsort(-weight, kind="stable")
    close = np.stack((heaviest, follow[0][heaviest], follow[1][heaviest]), axis=1).ravel()
    _, first = np.unique(close, return_index=True)
    yield close[np.sort(first)]
    yield np.lexsort((-weight, series))


def _choose_part(graph: Contraction, order: Longs, left: Callable[[], float]) -> tuple[Longs, Ideals] | None:
    """The first components of an order that have no more than `MAX_IDEALS` ideals together, and these ideals."""
    before = find_before(graph, order)[order]
    kept, ideals, at, step, refused = np.zeros(0, np.int64), None, 0, _ADDED, 0
    while at < len(order) and refused < _REFUSED and left() > 0:
        tried = np.append(kept, np.arange(at, min(at + step, len(order))))
        tried = tried[np.argsort(order[tried])]
        found = _enumerate(before[np.ix_(tried, tried)])
        if found is not None:
            kept, ideals, at = tried, found, at + step
        elif step > 1:
            step //= 2
        else:
            at, refused = at + 1, refused + 1
    return None if ideals is None else (order[kept], ideals)


def _enumerate(before: Bools) -> Ideals | None:
    """The ideals of components, given which [n, n] come before each; None if they are too many."""
    paths, n = before.astype(np.float32), len(before)
    tail, head = np.nonzero((before & ~(paths @ paths > 0)).T)
    offsets = offsets_of(tail, n)
    graph = Contraction(np.arange(n, dtype=np.int32), n, offsets, head.astype(np.int32), offsets, _NONE)
    ideals = enumerate_ideals(graph, MAX_IDEALS)
    return ideals if isinstance(ideals, Ideals) else None


def find_before(graph: Contraction, chosen: Longs, *, backwards: bool = False) -> Bools:
    """For each component [n], which of those `chosen` come before it, or with `backwards` after it."""
    offsets, ends, components = graph.predecessor_offsets.tolist(), graph.predecessors, range(graph.n)
    if backwards:
        offsets, ends, components = graph.successor_offsets.tolist(), graph.successors, range(graph.n)[::-1]
    reached, own = np.zeros((2, graph.n, len(chosen)), np.bool_)
    own[chosen, np.arange(len(chosen))] = True
    for c in components:
        others = ends[offsets[c] : offsets[c + 1]]
        reached[c] = (reached[others] | own[others]).any(axis=0)
    return reached


class _PartBound:
    """The dynamic program over the ideals of one part; max-loads up to `high` are of interest."""

    def __init__(
        self, graph: Contraction, costs: ComponentCosts, work: Floats, part: Longs, ideals: Ideals, high: float
    ) -> None:
        paying = find_paying(costs)
        least, hosted = LeastCosts(costs, paying), LeastCosts(costs, ~paying).work
        busy, hosted_busy = (np.minimum(seconds, _MANY * high) for seconds in (least.work, hosted))
        others = np.setdiff1d(np.arange(graph.n), part)
        patterns, group = _group_others(graph, part, others)
        self._work, self._high, self._mode = float(work.sum()), high, costs.mode
        self._n_devices, self._n_hosts = int(costs.n_devices[paying].sum()), int(costs.n_devices[~paying].sum())
        self._inside: Floats = np.array([ideals.members(k) for k in range(len(ideals))], np.float64)
        first, later, *paid = list_part_transfers(graph, costs, least, part)
        self._transfers = PartTransfers(first, later, *(np.minimum(price, _MANY * high) for price in paid))
        own = np.stack([work, busy, hosted_busy, costs.size.astype(np.float64)])
        self._own = self._inside @ own[:, part].T
        self._room = float(costs.capacity[paying].max(initial=0))
        before, behind = np.split(patterns, 2)
        self._ahead = 1.0 * (self._inside @ behind > 0.5)
        self._after = 1.0 * ((1 - self._inside) @ before > 0.5)
        self._others = np.stack([np.bincount(group, column[others], patterns.shape[1]) for column in own[:3]])
        self._upto = (self._own[:, 0] + (1 - self._after) @ self._others[0]) * (1 + 1e-12)
        self._slopes, self._gains = _limit_host(work, hosted)

    def raise_bound(self, low: float, left: Callable[[], float]) -> float:
        """The largest max-load found that no pipeline has, at least `low`."""
        stages = self._price_stages(left)
        if stages is None:
            return low
        high, tried = self._high, self._high * _SAFE
        while left() > 0:
            if self._is_possible(*stages, tried):
                high = tried
            else:
                low = tried * _SAFE
            if high - low <= _PRECISION * high:
                break
            tried = (low + high) / 2
        return low

    def _price_stages(self, left: Callable[[], float]) -> tuple[_Stages, _Stages] | None:
        """The stages on devices, and those on hosts; None if there is no time for them."""
        found: tuple[list[Floats], list[Floats]] = [], []
        others, own, n = self._others, self._own, len(self._inside)
        ways = ([0], [1]) if self._mode == 2 else ([0, 1],)
        crossing = [_Crossing(self._inside, self._transfers, way) for way in ways]
        for begin in range(0, n, _ROWS):
            if left() <= 0:
                return None
            rows = np.arange(begin, min(begin + _ROWS, n))
            near = own[begin:, 1] <= own[rows, 1].max() + self._high
            if self._n_hosts:
                near |= own[begin:, 2] <= own[rows, 2].max() + self._high
            ends = begin + np.flatnonzero(near)
            within = self._inside[rows] @ self._inside[ends].T > self._inside[rows].sum(axis=1)[:, None] - 0.5
            gained = own[None, ends] - own[rows, None]
            most = gained[..., 0] + ((1 - self._ahead[rows]) * others[0]) @ (1 - self._after[ends]).T
            least, hosted = (gained[..., k] + (self._after[rows] * others[k]) @ self._ahead[ends].T for k in (1, 2))
            transfers = np.max([way.price(rows, ends) for way in crossing], axis=0)
            load = least + transfers if self._mode == 0 else np.maximum(least, transfers)
            fits = within & (load * _SAFE <= self._high) & (gained[..., 3] <= self._room)
            hosts = within & (hosted * _SAFE <= self._high) if self._n_hosts else np.zeros_like(within)
            for columns, possible, seconds in zip(found, (fits, hosts), (least, hosted), strict=True):
                i, j = np.nonzero(possible)
                columns.append(np.stack([rows[i], ends[j], transfers[i, j], seconds[i, j], most[i, j]]))
        return _sort_stages(found[0], n), _sort_stages(found[1], n)

    def _is_possible(self, devices: _Stages, hosts: _Stages, limit: float) -> bool:
        """Whether devices and hosts may do all the work within a max-load."""
        room = limit - devices.transfers if self._mode == 0 else np.where(devices.transfers <= limit, limit, -1.0)
        able = np.where(devices.least <= room, np.minimum(devices.most, room), -np.inf)
        host = float((self._gains + self._slopes * limit).min())
        hosted = np.where(hosts.least <= limit, np.minimum(hosts.most, host), -np.inf)
        done = np.full((self._n_hosts + 1, len(self._upto)), -np.inf)
        done[0, 0] = 0.0
        for used in range(self._n_devices + 1):
            for row, before in zip(done[1:], done[:-1], strict=True):
                np.maximum(row, self._add_stage(before, hosts, hosted), out=row)
            if done[:, -1].max() >= self._work * _SAFE:
                return True
            if used < self._n_devices:
                done = np.stack([self._add_stage(row, devices, able) for row in done])
        return False

    def _add_stage(self, done: Floats, stages: _Stages, able: Floats) -> Floats:
        """The most work up to each ideal after one more stage, which may be empty and does what it is `able` to."""
        most: Floats = np.minimum(np.maximum.reduceat(done[stages.start] + able, stages.first), self._upto)
        return most


class _Crossing:
    """What is paid for the transfers of a part, to enter or to leave stages or both: the rows of `ways`."""

    def __init__(self, inside: Floats, part: PartTransfers, ways: list[int]) -> None:
        began, ended = part.began[ways].sum(axis=0), part.ended[ways].sum(axis=0)
        first, count = inside[:, part.first], inside @ part.later.T
        some, every = 1.0 * (count > 0.5), 1.0 * (count > part.later.sum(axis=1) - 0.5)
        several = part.later.sum(axis=1) > 1.5
        self._ended = (first * (1 - every)) @ ended
        self._before = np.hstack(
            (first * ((1 - every) * began + ended), (first * (1 - some) * began)[:, several], -(first @ ended)[:, None])
        )
        self._behind = np.hstack((every, (some - every)[:, several], np.ones((len(inside), 1))))

    def price(self, rows: Longs, ends: Longs) -> Floats:
        """The least transfers of stages from some ideals to others; of no meaning where these are no larger."""
        price: Floats = self._before[rows] @ self._behind[ends].T + self._ended[ends]
        return price


def _group_others(graph: Contraction, part: Longs, others: Longs) -> tuple[Floats, Longs]:
    """Which components of the part come before, and which behind, each group of `others` [2 · n_part, n_groups].

    And the group of each of them.
    """
    beside = np.hstack((find_before(graph, part)[others], find_before(graph, part, backwards=True)[others]))
    patterns, group = np.unique(beside, axis=0, return_inverse=True)
    return patterns.T.astype(np.float64), group.ravel()


def _limit_host(work: Floats, hosted: Floats) -> tuple[Floats, Floats]:
    """Slopes and gains: a host within T does no more work than the gain and T times the slope, for each of them."""
    able = np.isfinite(hosted) & (hosted > 0)
    ratio = work[able] / hosted[able]
    slopes = np.unique(np.append(np.quantile(ratio, _QUANTILES) if len(ratio) else [], (0.0, QUICKEST)))
    seconds = np.where(np.isfinite(hosted), hosted, 0.0)
    gains = [np.where(np.isfinite(hosted), np.maximum(work - slope * seconds, 0.0), 0.0) for slope in slopes.tolist()]
    return slopes, np.array(gains).sum(axis=1) * (1 + 1e-12)


def _sort_stages(columns: list[Floats], n: int) -> _Stages:
    """Stages from their starts, ends, transfers, seconds and work, in any order."""
    start, end, transfers, least, most = np.hstack(columns)
    order = np.argsort(end, kind="stable")
    first = offsets_of(end[order], n)[:-1]
    return _Stages(
        start[order].astype(np.int64), first, transfers[order] * _SAFE, least[order] * _SAFE, most[order] * (1 + 1e-9)
    )
