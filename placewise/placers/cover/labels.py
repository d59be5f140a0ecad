"""The sets of highest price that fit a device: labels through a decision diagram, pruned by what may still come.

A label is a partial set at a node: what it has used of each resource, and its price so far. Of two labels at a
node, one that used less and is worth more makes the other superfluous. With multipliers λ ≥ 0, a label can end
at most with its price plus λ · (what is left) plus the best price minus λ · cost from its node on, which one
sweep backwards gives for all nodes (Lagrangian bounds in resource-constrained paths: Handler and Zang 1980).
Labels that cannot pass the target go. Where a node has too many left, neighbours are merged into one that used
the least and is worth the most of them: the answer is then a bound only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Longs
from placewise.placers.cover.diagram import Diagram
from placewise.simulate.kernels import helper, kernel

MOST_LABELS = 30_000_000
_LOOK_BACK = 24
_MARGIN = 1e-10


class Priced(NamedTuple):
    """No set of the diagram is worth more than `ceiling`; sets [k, n] worth looking at; False if it was cut short."""

    ceiling: int
    sets: Bools
    complete: bool


def best_sets(
    d: Diagram, price: Longs, limits: Longs, target: int, *, width: int, beam: bool = False, most_sets: int = 12
) -> Priced:
    """Sets worth more than `target` within `limits`; `price` [n] of blocks, |Σ| below 2^52.

    Only the first resources, as many as there are limits, are looked at. `width`: labels that a node may keep
    before neighbours are merged, or, with `beam`, before the less promising are dropped: then the ceiling
    says nothing, and the sets are real.
    """
    unit = float(np.abs(price).sum()) or 1.0
    ahead = np.empty(len(d.child))
    weights = np.where(np.arange(len(limits)) == 0, 1.0, 0.3) * (np.arange(len(limits)) < d.cost.shape[2] - 1)
    share = weights / np.maximum(limits, 1)
    low, high = 0.0, 4 * unit
    for _ in range(30):
        thirds = low + (high - low) / 3, high - (high - low) / 3
        first, second = (_ahead(d, price, share * s, ahead) + float(share @ limits) * s for s in thirds)
        low, high = (low, thirds[1]) if first <= second else (thirds[0], high)
    multiplier = share * (low + high) / 2
    root = _ahead(d, price, multiplier, ahead) + float(multiplier @ limits)
    if root + _MARGIN * unit <= target:
        return Priced(target, np.zeros((0, len(price)), np.bool_), True)
    count, value, parent, taken, ends = _label(
        d, price, limits.astype(np.int64), multiplier, ahead, float(target) - _MARGIN * unit, width, beam, MOST_LABELS
    )
    if count < 0:
        return Priced(int(root + _MARGIN * unit) + 1, np.zeros((0, len(price)), np.bool_), False)
    ceiling = max(target, int(value[ends].max(initial=target)))
    wanted = ends[np.argsort(-value[ends], kind="stable")]
    wanted = wanted[value[wanted] > target][:most_sets]
    sets = np.zeros((len(wanted), len(price)), np.bool_)
    for row, label in enumerate(wanted.tolist()):
        _walk_back(d.order, parent, taken, label, sets[row])
    return Priced(ceiling, sets, True)


@kernel
def _ahead(d, price, multiplier, ahead):
    """Into `ahead`: per node, the most that any way to the end is worth, less λ · its cost. Returns the root's."""
    ahead[-1] = 0.0
    for layer in range(len(d.order) - 1, -1, -1):
        gain = float(price[d.order[layer]])
        for node in range(d.base[layer], d.base[layer + 1]):
            best = -np.inf
            for side in range(2):
                if d.child[node, side] >= 0:
                    worth = ahead[d.child[node, side]] + side * gain
                    for r in range(len(multiplier)):
                        worth -= multiplier[r] * d.cost[node, side, r]
                    best = max(best, worth)
            ahead[node] = best
    return ahead[0]


@helper
def _grown(column, size):
    wider = np.empty(size, column.dtype)
    wider[: len(column)] = column
    return wider


@helper
def _dominated(used, value, first, last, mine, worth):
    """Whether one of the labels kept last used no more and is worth no less."""
    for other in range(last - 1, max(first, last - _LOOK_BACK) - 1, -1):
        if value[other] >= worth:
            less = True
            for r in range(used.shape[1]):
                less = less and used[other, r] <= mine[r]
            if less:
                return True
    return False


@kernel
def _label(d, price, limits, multiplier, ahead, target, width, beam, most):
    """Every label that survives: value, parent, side; and the labels at the end. A count of −1: too many."""
    n_resources = len(limits)
    value, parent, taken = np.zeros(1 << 16, np.int64), np.full(1 << 16, -1, np.int32), np.zeros(1 << 16, np.bool_)
    used, node = np.zeros((1, n_resources), np.int64), np.zeros(1, np.int32)
    total, first = 1, 0
    for layer in range(len(d.order)):
        gain, here = price[d.order[layer]], total - first
        new_used, new_value = np.empty((2 * here, n_resources), np.int64), np.empty(2 * here, np.int64)
        new_node, new_from = np.empty(2 * here, np.int32), np.empty(2 * here, np.int32)
        made = 0
        for label in range(here):
            for side in range(2):
                child = d.child[node[label], side]
                if child < 0:
                    continue
                worth = value[first + label] + side * gain
                reach, inside = worth + ahead[child], True
                for r in range(n_resources):
                    spent = used[label, r] + d.cost[node[label], side, r]
                    new_used[made, r] = spent
                    inside = inside and spent <= limits[r]
                    reach += multiplier[r] * (limits[r] - spent)
                if inside and reach > target:
                    new_value[made], new_node[made], new_from[made] = worth, child, 2 * label + side
                    made += 1
        by_use = np.argsort(new_used[:made, 0])
        low, high = d.base[layer + 1], (d.base[layer + 2] if layer + 2 < len(d.base) else d.base[layer + 1] + 1)
        slot = np.zeros(high - low + 1, np.int64)
        for label in range(made):
            slot[new_node[label] - low + 1] += 1
        for place in range(high - low):
            slot[place + 1] += slot[place]
        start, order = slot.copy(), np.empty(made, np.int64)
        for label in by_use:
            place = new_node[label] - low
            order[slot[place]] = label
            slot[place] += 1
        kept_used, kept_value = np.empty((made, n_resources), np.int64), np.empty(made, np.int64)
        kept_node, kept_from = np.empty(made, np.int32), np.empty(made, np.int32)
        kept = 0
        for place in range(high - low):
            begin = kept
            for i in range(start[place], start[place + 1]):
                label = order[i]
                if not _dominated(kept_used, kept_value, begin, kept, new_used[label], new_value[label]):
                    kept_used[kept], kept_value[kept] = new_used[label], new_value[label]
                    kept_node[kept], kept_from[kept] = new_node[label], new_from[label]
                    kept += 1
            if kept - begin > width:
                if beam:
                    kept = _drop(kept_used, kept_value, kept_from, begin, kept, width)
                else:
                    kept = _merge(kept_used, kept_value, kept_from, begin, kept, width)
        if total + kept > most:
            return -1, value, parent, taken, np.zeros(0, np.int64)
        if total + kept > len(value):
            size = max(2 * len(value), total + kept)
            value, parent, taken = _grown(value, size), _grown(parent, size), _grown(taken, size)
        for label in range(kept):
            value[total + label] = kept_value[label]
            parent[total + label] = first + (kept_from[label] >> 1)
            taken[total + label] = kept_from[label] & 1
        first, total = total, total + kept
        used, node = kept_used[:kept], kept_node[:kept]
    return total, value, parent, taken, np.arange(first, total)


@helper
def _merge(used, value, origin, begin, end, width):
    """Labels that used almost the same become one that used the least and is worth the most; the new end."""
    first = used[begin, 0]
    span = max((used[end - 1, 0] - first) // width, 1)
    kept = begin - 1
    bucket = np.int64(-1)
    for i in range(begin, end):
        at = (used[i, 0] - first) // span
        if at != bucket:
            kept, bucket = kept + 1, at
            value[kept], origin[kept] = value[i], origin[i]
            for r in range(used.shape[1]):
                used[kept, r] = used[i, r]
            continue
        if value[i] > value[kept]:
            value[kept], origin[kept] = value[i], origin[i]
        for r in range(used.shape[1]):
            used[kept, r] = min(used[kept, r], used[i, r])
    return kept + 1


@helper
def _drop(used, value, origin, begin, end, width):
    """Of labels that used almost the same, only the one that is worth most stays; the new end."""
    first = used[begin, 0]
    span = max((used[end - 1, 0] - first) // width, 1)
    kept = begin - 1
    bucket = np.int64(-1)
    for i in range(begin, end):
        at = (used[i, 0] - first) // span
        if at != bucket:
            kept, bucket = kept + 1, at
        elif value[i] <= value[kept]:
            continue
        value[kept], origin[kept] = value[i], origin[i]
        for r in range(used.shape[1]):
            used[kept, r] = used[i, r]
    return kept + 1


@kernel
def _walk_back(order, parent, taken, label, chosen):
    for layer in range(len(order) - 1, -1, -1):
        chosen[order[layer]] = taken[label]
        label = parent[label]
