"""The sets of highest price that fit a device: labels through a decision diagram, pruned by a Lagrangian bound.

A label is a partial set at a node: its use of each resource and its price so far. Labels that cannot exceed the target
are pruned, by the multipliers that minimize the Lagrangian bound. Where too many labels remain at a node, neighbours
are merged into one with the least use and the highest price among them: the result is then a bound only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Longs
from placewise.placers.set_cover.decision_diagram import Diagram

MOST_LABELS = 30_000_000
_MARGIN = 1e-10


class PricedSets(NamedTuple):
    """`ceiling` bounds the price of every set; `sets` [k, n] are good ones; `complete` is False if time was short."""

    ceiling: int
    sets: Bools
    complete: bool


def best_sets(
    d: Diagram,
    price: Longs,
    limits: Longs,
    target: int,
    *,
    width: int,
    beam: bool = False,
    most_sets: int = 12,
    seconds: float = math.inf,
) -> PricedSets:
    """Sets of a price above `target` within `limits`; `price` [n] of blocks, |Σ| below 2^52.

    `limits` apply to the first resources; others are ignored. `width`: the labels of a node before neighbours are
    merged or, with `beam`, before the less promising are dropped: then the ceiling is no bound. The search ends after
    `seconds`.
    """
    search = _native.LabelSearch(d.order, d.base, d.child, d.cost, price, limits.astype(np.int64))
    unit = float(np.abs(price).sum()) or 1.0
    weights = np.where(np.arange(len(limits)) == 0, 1.0, 0.3) * (np.arange(len(limits)) < d.cost.shape[2] - 1)
    share = weights / np.maximum(limits, 1)
    low, high = 0.0, 4 * unit
    for _ in range(30):
        thirds = low + (high - low) / 3, high - (high - low) / 3
        first, second = (search.bound(share * s) + float(share @ limits) * s for s in thirds)
        low, high = (low, thirds[1]) if first <= second else (thirds[0], high)
    multipliers = share * (low + high) / 2
    root = search.bound(multipliers) + float(multipliers @ limits)
    none = np.zeros((0, len(price)), np.bool_)
    if root + _MARGIN * unit <= target:
        return PricedSets(target, none, True)
    if not search.run(float(target) - _MARGIN * unit, width, beam, MOST_LABELS, seconds):
        return PricedSets(int(root + _MARGIN * unit) + 1, none, False)
    value = search.values
    wanted = np.argsort(-value, kind="stable")
    wanted = wanted[value[wanted] > target][:most_sets]
    return PricedSets(max(target, int(value.max(initial=target))), search.sets(wanted).view(np.bool_), True)
