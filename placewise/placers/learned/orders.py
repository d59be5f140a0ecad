"""Three orders of the units of a graph, as positions from 0 to 1 in which equal intervals have equal work.

`order` is that of the units, which is nearly topological. `depth` is the order in which weights are first read:
unrolled steps of a layer, its forward and its backward ops are adjacent. `lane` separates parallel units: among units
at the same distance from the start, those of one branch come before those of the next, all along the branch.
"""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.coarsen.merging import sums
from placewise.model.columns import Floats, Longs, offsets_of
from placewise.placers.learned.view import View
from placewise.simulate.judge.ranks import downward_ranks, upward_ranks
from placewise.simulate.problem_arrays import arrays_of

BUCKETS = 64
"""Units count as parallel if the longest paths to them, as shares of the longest of all, are in one bucket."""
SPREAD = 64
"""Largest distance, in edges, at which a unit takes its depth from neighbours."""


def order_positions(view: View) -> Floats:
    """Positions [n_units, 3] in `order`, `depth` and `lane`: the share of the work before the middle of a unit."""
    work = fastest_seconds(view)
    number = np.arange(view.n, dtype=np.float64)
    deep = weight_depths(view)
    columns = [_share_before(work, number), _share_before(work, deep), _lanes(view, work)]
    return np.stack(columns, axis=1)


def fastest_seconds(view: View) -> Floats:
    """Seconds [n_units] of each unit on its fastest device; 0 if it may run nowhere."""
    least: Floats = np.where(view.allowed, view.seconds, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), least, 0.0)


def path_buckets(view: View) -> Longs:
    """The bucket [n_units] of the longest path to the middle of each unit, as a share of the longest of all."""
    a = arrays_of(view.problem)
    before, after = downward_ranks(view.problem, a), upward_ranks(view.problem, a)
    longest = float((before + after).max(initial=0.0)) or 1.0
    count = np.maximum(np.bincount(view.unit, minlength=view.n), 1)
    share = sums(before, view.unit, view.n) / count / longest
    return np.minimum((share * BUCKETS).astype(np.int64), BUCKETS - 1)


def weight_depths(view: View) -> Floats:
    """The mean rank [n_units], by first reader, of a unit's weights; for units without weights, that of neighbours.

    In graphs without weights, the unit's number.
    """
    graph = view.problem.graph
    storage = graph.weights.storage[graph.weight_edges.value].astype(np.int64)
    unit = view.unit[graph.weight_edges.consumer]
    if not len(storage):
        return np.arange(view.n, dtype=np.float64)
    _, first, dense = np.unique(storage, return_index=True, return_inverse=True)
    rank = np.empty(len(first))
    rank[np.argsort(first)] = np.arange(len(first))
    known = np.bincount(unit, minlength=view.n).astype(np.float64)
    depth = sums(rank[dense.reshape(-1)], unit, view.n) / np.maximum(known, 1)
    one, other = np.concatenate((view.tail, view.head)), np.concatenate((view.head, view.tail))
    has = known > 0
    for _ in range(SPREAD):
        spreads = has[one] & ~has[other]
        if not spreads.any():
            break
        count = np.bincount(other[spreads], minlength=view.n)
        fresh = count > 0
        depth[fresh] = sums(depth[one[spreads]], other[spreads], view.n)[fresh] / count[fresh]
        has |= fresh
    return np.where(has, depth, np.arange(view.n) / max(view.n, 1) * len(first))


def _share_before(work: Floats, key: Floats) -> Floats:
    """The share of all work before the middle of each [n], in the order of `key`."""
    order = np.argsort(key, kind="stable")
    place = np.empty(len(work))
    place[order] = np.cumsum(work[order]) - work[order] / 2
    return place / (float(work.sum()) or 1.0)


def _lanes(view: View, work: Floats) -> Floats:
    """The share of a bucket's work before the middle of each unit, in depth-first order."""
    walk = _native.depth_first_numbers(offsets_of(view.tail, view.n), view.head.astype(np.int32))
    bucket = path_buckets(view)
    order = np.lexsort((walk, bucket))
    sorted_work = work[order]
    whole = sums(work, bucket, BUCKETS)
    start = np.concatenate((np.zeros(1), np.cumsum(whole)))[bucket[order]]
    place = np.empty(view.n)
    place[order] = (np.cumsum(sorted_work) - sorted_work / 2 - start) / np.where(whole > 0, whole, 1.0)[bucket[order]]
    return np.clip(place, 0.0, 1.0)
