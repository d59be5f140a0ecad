"""The dynamic program along one order: the best contiguous split of components in a fixed order.

An order of n components has n + 1 ideals, so this is quick on any graph (the DPL of Tarnawski et al. 2020).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.shared.stages.dp_driver import MAX_CELLS, GoOn, count_states
from placewise.placers.shared.stages.ideals import list_prefixes
from placewise.placers.shared.stages.phase_dp import price_phases, search_phases
from placewise.placers.shared.stages.replicated_stages import Groups
from placewise.placers.shared.stages.stage_costs import ComponentCosts
from placewise.simulate.blocks import best_seconds

MAX_SEGMENTS = 4000
"""Longer orders are first cut into this many segments, where cutting is cheap."""
MAX_WORK = 2.5e8
"""The largest number of pairs of cuts times devices if stages are replicated: any stage may reach to the end."""


class LineSplit(NamedTuple):
    """The best split: `device` [n_ops] (None if nothing fits), its max-load in seconds, and why the search stopped.

    `groups` are the devices that share stages; `prepared` is the seconds before the search could be stopped.
    """

    device: Ints | None
    value: float
    reason: Reason
    groups: Groups = ()
    prepared: float = 0.0

    def heard(self) -> LineSplit:
        """The split, for those who do not read its reason: raises KeyboardInterrupt again if that ended the search."""
        if self.reason is Reason.INTERRUPTED:
            raise KeyboardInterrupt
        return self


def find_best_split(
    problem: Problem,
    group: Ints,
    orders: Sequence[Ints],
    capacity: Floats,
    go_on: GoOn,
    *,
    segments: int = MAX_SEGMENTS,
    left: Callable[[], float] = lambda: math.inf,
) -> LineSplit:
    """The best split of groups [n_ops] → 0…n − 1 along any of several orders: the positions [n] of the groups.

    An order longer than `segments` is split between that many segments only. `left` returns the remaining seconds: no
    order is started if preparing the one before took longer than that.
    """
    best = LineSplit(None, np.inf, Reason.FINISHED)
    for order in orders:
        if order is not orders[0] and (left() <= best.prepared or not go_on(0, len(order), best.value)):
            return best._replace(reason=Reason.TIME_LIMIT)
        split = _split_line(problem, order[group], len(order), capacity, go_on, segments)
        best = split if split.value < best.value else best._replace(reason=split.reason, prepared=split.prepared)
        if split.reason is not Reason.FINISHED:
            break
    return best


def _split_line(problem: Problem, position: Ints, n: int, capacity: Floats, go_on: GoOn, segments: int) -> LineSplit:
    """The best split of ops at `position` [n_ops] of an order of n."""
    segment, begun = position, time.monotonic()
    if n > segments:
        segment = _cut_segments(problem, position, n, segments)[position]
        n = int(segment.max()) + 1
    priced = price_phases(problem, segment, n, capacity)
    room = count_segments(priced.costs)
    if room < n:
        segment = _cut_segments(problem, segment, n, max(room, 1))[segment]
        n = int(segment.max()) + 1
        priced = price_phases(problem, segment, n, capacity)
    ideals, prepared = list_prefixes(n), time.monotonic() - begun
    result = search_phases(priced, ideals, go_on)
    chain = result.chain
    if chain is None:
        return LineSplit(None, np.inf, result.reason, prepared=prepared)
    return LineSplit(chain.device[segment], chain.value / priced.scale, result.reason, chain.groups, prepared)


def count_segments(costs: ComponentCosts) -> int:
    """The largest number of components of an order, by memory, and by work if devices may share stages."""
    shared = costs.most.max(initial=1) > 1
    replicated = int((MAX_WORK / float(costs.n_devices.sum())) ** 0.5) if shared else MAX_CELLS
    return min(MAX_CELLS // count_states(costs) - 1, max(replicated, 1))


def _cut_segments(problem: Problem, position: Ints, n: int, most: int) -> Ints:
    """The segment of each position [n]: at most `most` + 1, of about equal work and bytes, cut at small transfers."""
    seconds = best_seconds(problem, np.arange(problem.n_devices))
    seconds = np.where(np.isfinite(seconds), seconds, 0.0)
    share = np.full(n, 1 / n)
    for amount in (seconds, problem.graph.ops.state_bytes):
        share += np.bincount(position, weights=amount, minlength=n) / max(float(amount.sum()), 1e-300)
    along = np.cumsum(share)
    bucket = np.minimum((along / along[-1] * most).astype(np.int64), most - 1)[:-1]
    order = np.lexsort((_sum_crossing(problem, position, n)[:-1], bucket))
    _, first = np.unique(bucket[order], return_index=True)
    cut = np.zeros(n, np.int32)
    cut[order[first] + 1] = 1
    return np.cumsum(cut, dtype=np.int32)


def _sum_crossing(problem: Problem, position: Ints, n: int) -> Floats:
    """Transfer seconds [n] of the tensors that cross the cut behind each position."""
    graph = problem.graph
    cost = problem.costs.transfer_seconds.max(axis=1)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    low, high = np.full(graph.n_tensors, n), np.full(graph.n_tensors, -1)
    produced = graph.tensors.producer >= 0
    low[produced] = high[produced] = position[graph.tensors.producer[produced]]
    np.minimum.at(low, tensor, position[graph.consumers])
    np.maximum.at(high, tensor, position[graph.consumers])
    spans = produced & (low < high)
    change = np.bincount(low[spans], cost[spans], n + 1) - np.bincount(high[spans], cost[spans], n + 1)
    return np.cumsum(change)[:n]
