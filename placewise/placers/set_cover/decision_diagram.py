"""All sets of blocks that a device can hold, as a decision diagram: blocks in or out, one after the other.

The state of a node holds, for each open tensor, what later costs depend on: whether its producer is in the set, and
whether its transfer is paid for already. A path from the root to the end is a set, and the sum along it the set's load.
Where a layer grows beyond `MAX_NODES`, the cheapest open tensors are dropped: the loads of the diagram are then too
small, never too large, and bounds from it still hold (relaxed diagrams: Andersen et al. 2007).

`SetSearch` finds the sets of highest price by labels: partial sets at a node, with their use of each resource and their
price. Labels that cannot exceed the target are pruned, by the multipliers that minimize the Lagrangian bound. Where too
many labels remain at a node, neighbours are merged into one with the least use and the highest price among them: the
result is then a bound only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs, frozen
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts

MAX_NODES, MAX_LABELS = 4000, 30_000_000
STARTS, MOST_SETS = 24, 12
"""Greedy orders that are tried, and the sets that a search gives."""
_MARGIN = 1e-10
_TANGENTS, _STEEPEST, _LEVEL = 30, 1e6, 1e-8
"""The most tangents that look for the best multiplier; its greatest value and, as a share of the sum of all prices, how
near to the least bound is near enough."""
_OPEN = 21
_IN, _OUT, _DONE = 4, 5, 6
"""States of an open tensor; 0–3 before its producer is decided: bit 0, a reader is in; bit 1, a reader is out."""
_READ = np.array([[2, 3, 2, 3, _DONE, _OUT, _DONE], [1, 1, 3, 3, _IN, _DONE, _DONE]])
_MAKE = np.array([[_OUT, _DONE, _OUT, _DONE], [_IN, _IN, _DONE, _DONE]])


class Diagram(NamedTuple):
    """Layer i decides block ``order[i]``; its nodes are ``base[i]:base[i + 1]``; the last node is the end.

    `child` [n_nodes, 2] for out and in (−1: not allowed), `cost` [n_nodes, 2, n_resources]; resources are the
    parts of the load that the communication mode compares with T, then bytes (0 where everything fits).
    `relaxed` if costs were left out.
    """

    order: Ints
    base: Longs
    child: Ints
    cost: Longs
    relaxed: bool


def order_blocks(costs: ComponentCosts, go_on: Callable[[], bool] = lambda: True) -> Ints:
    """An order of the blocks [n] with few open tensors at any time: the best of several greedy ones, of one at least
    even where `go_on` says no.
    """
    n, members, touching = _incidence(costs)
    orders: list[tuple[float, list[int]]] = []
    for first in range(0, n, max(1, n // STARTS)):
        if orders and not go_on():
            break
        orders.append(_greedy_order(first, n, members, touching))
    return np.array(min(orders, key=lambda pair: pair[0])[1] if orders else [], np.int32)


def diagram(
    costs: ComponentCosts, kind: int, order: Ints, *, most: int = MAX_NODES, go_on: Callable[[], bool] = lambda: True
) -> Diagram | None:
    """The diagram of the sets that a device of class `kind` can hold; None once `go_on` says no."""
    n, rate = len(order), int(costs.rate[kind])
    tensors = len(costs.producer)
    enter = costs.enter[:, rate] if rate >= 0 else np.zeros(tensors, np.int64)
    leave = costs.leave[:, rate] if rate >= 0 else np.zeros(tensors, np.int64)
    _, members, touching = _incidence(costs)
    left = [len(blocks) for blocks in members]
    opened: list[int] = []
    forgotten = (enter + leave) == 0
    codes = np.zeros((1, 0), np.int8)
    base, children, prices, relaxed = [0], [], [], False
    for block in order.tolist():
        if not go_on():
            return None
        touched = [t for t in touching[block] if not forgotten[t]]
        fresh = [t for t in touched if t not in opened]
        start = [_OUT if costs.producer[t] < 0 else 2 * int(costs.output[t]) for t in fresh]
        codes = np.hstack([codes, np.tile(np.array(start, np.int8), (len(codes), 1))])
        opened += fresh
        for t in touched:
            left[t] -= 1
        kept = [i for i, t in enumerate(opened) if left[t] > 0]
        sides = []
        for side in (0, 1):
            after, sent, got = codes.copy(), np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
            for t in touched:
                column = opened.index(t)
                before, made = codes[:, column], costs.producer[t] == block
                after[:, column] = _MAKE[side][np.minimum(before, 3)] if made else _READ[side][before]
                paid = (after[:, column] == _DONE) & (before != _DONE)
                leaving = side == 1 if made else side == 0
                (sent if leaving else got)[paid] += leave[t] if leaving else enter[t]
            sides.append((after[:, kept], _resources(costs, kind, block, side, sent, got)))
        opened = [opened[i] for i in kept]
        both = np.vstack([sides[0][0], sides[1][0]])
        states, place = _distinct(both)
        while (len(states) > most or states.shape[1] > _OPEN) and opened:
            worst = int(np.argmin([enter[t] + leave[t] for t in opened]))
            forgotten[opened.pop(worst)], relaxed = True, True
            both = np.delete(both, worst, axis=1)
            states, place = _distinct(both)
        allowed = costs.seconds[block, kind] < NEVER
        following = base[-1] + len(codes) + place.reshape(2, -1)
        if not allowed:
            following[1] = -1
        children.append(following.T)
        prices.append(np.stack([sides[0][1], sides[1][1]], axis=1))
        base.append(base[-1] + len(codes))
        codes = states
    width = 1 + _parts(costs.mode)
    child = np.vstack([*children, np.full((1, 2), -1)]) if n else np.full((1, 2), -1)
    cost = np.concatenate([*prices, np.zeros((1, 2, width), np.int64)])
    return Diagram(frozen(order, np.int32), frozen(base, np.int64), frozen(child, np.int32), frozen(cost, np.int64),
                   relaxed)  # fmt: skip


def _parts(mode: int) -> int:
    return (1, 2, 3)[mode]


def _resources(costs: ComponentCosts, kind: int, block: int, side: int, sent: Longs, got: Longs) -> Longs:
    """What deciding `block` costs from each node: the parts of the load, and bytes."""
    seconds = int(costs.seconds[block, kind]) if side and costs.seconds[block, kind] < NEVER else 0
    tight = side and int(costs.size.sum()) > costs.capacity[kind]
    compute = np.full(len(sent), seconds)
    parts = ([compute + sent + got], [compute, sent + got], [compute, sent, got])[costs.mode]
    return np.stack([*parts, np.full(len(sent), int(costs.size[block]) if tight else 0)], axis=1)


def _distinct(codes: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int8], Longs]:
    """The distinct rows, and the index of each row among them."""
    if codes.shape[1] > _OPEN:
        return codes, np.arange(len(codes))
    key = np.zeros(len(codes), np.int64)
    for column in range(codes.shape[1]):
        key = key * 8 + codes[:, column]
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return codes[first], place.astype(np.int64)


def _incidence(costs: ComponentCosts) -> tuple[int, list[set[int]], list[list[int]]]:
    """The number of blocks, the blocks of each tensor, and the tensors of each block."""
    n, members = len(costs.size), []
    touching: list[list[int]] = [[] for _ in range(n)]
    for t in range(len(costs.producer)):
        blocks = set(costs.consumers[costs.consumer_offsets[t] : costs.consumer_offsets[t + 1]].tolist())
        if costs.producer[t] >= 0:
            blocks.add(int(costs.producer[t]))
        members.append(blocks)
        for block in blocks:
            touching[block].append(t)
    return n, members, touching


def _greedy_order(first: int, n: int, members: list[set[int]], touching: list[list[int]]) -> tuple[float, list[int]]:
    """The order that always takes the block which opens fewest tensors and closes most, after the sum of its 2^open."""
    left = [len(blocks) for blocks in members]
    waiting, near, opened = set(range(n)), {first}, set[int]()
    order, total = [], 0.0

    def growth(block: int) -> tuple[int, int]:
        opens = sum(1 for t in touching[block] if t not in opened and left[t] > 1)
        return opens - sum(1 for t in touching[block] if t in opened and left[t] == 1), block

    while waiting:
        block = min(near or {min(waiting)}, key=growth)
        near.discard(block)
        waiting.discard(block)
        order.append(block)
        for t in touching[block]:
            left[t] -= 1
            if left[t]:
                opened.add(t)
                near |= members[t] & waiting
            else:
                opened.discard(t)
        total += 2.0 ** len(opened)
    return total, order


class PricedSets(NamedTuple):
    """`ceiling` bounds the price of every set; `sets` [k, n] are good ones; `complete` is False if time was short."""

    ceiling: int
    sets: Bools
    complete: bool


class SetSearch:
    """Searches in a diagram for sets of high price within `limits`; `price` [n] of blocks, |Σ| below 2^52.

    `limits` apply to the first resources; others are ignored. `root` bounds the price of every set.
    """

    def __init__(self, d: Diagram, price: Longs, limits: Longs, stop: _native.StopFlag | None = None) -> None:
        self._search = _native.LabelSearch(d.order, d.base, d.child, d.cost, price, limits.astype(np.int64))
        unit = float(np.abs(price).sum()) or 1.0
        self._n, self._margin, self._level, self._stop = len(price), _MARGIN * unit, _LEVEL * unit, stop
        weights = np.where(np.arange(len(limits)) == 0, 1.0, 0.3) * (np.arange(len(limits)) < d.cost.shape[2] - 1)
        self.root = int(self._least_bound(weights / np.maximum(limits, 1), limits) + self._margin) + 1

    def _least_bound(self, share: Floats, limits: Longs) -> float:
        """The least Lagrangian bound over multipliers s · `share`, s ≥ 0; the search keeps them.

        The bound is convex in s and linear in parts. The tangents at either side of its least meet below it, where the
        next one is laid (Kelley 1960).
        """

        def tangent(s: float) -> tuple[float, float, float]:
            value = self._search.bound(share * s) + float(share @ limits) * s
            return s, value, float(share @ (limits - self._search.bound_cost()))

        low = tangent(0.0)
        if low[2] >= 0:
            return low[1]
        high = tangent(max(low[1], 1.0))
        while high[2] < 0 and high[0] < _STEEPEST * low[1]:
            low, high = high, tangent(4 * high[0])
        for _ in range(_TANGENTS):
            steepness = high[2] - low[2]
            s = (low[1] - low[2] * low[0] - high[1] + high[2] * high[0]) / steepness if steepness > 0 else low[0]
            met = tangent(min(max(s, low[0]), high[0]))
            if met[1] - (low[1] + low[2] * (met[0] - low[0])) <= self._level:
                return met[1]
            low, high = (met, high) if met[2] < 0 else (low, met)
        return met[1]

    def find(self, target: int, *, width: int, beam: bool = False, seconds: float = math.inf) -> PricedSets:
        """Sets of a price above `target`.

        `width`: the labels of a node before neighbours are merged or, with `beam`, before the less promising are
        dropped: then the ceiling is no bound. The search ends after `seconds`, or when told to stop.
        """
        none = np.zeros((0, self._n), np.bool_)
        if self.root <= target:
            return PricedSets(target, none, True)
        if not self._search.run(float(target) - self._margin, width, beam, MAX_LABELS, seconds, self._stop):
            return PricedSets(self.root, none, False)
        value = self._search.values
        wanted = np.argsort(-value, kind="stable")
        wanted = wanted[value[wanted] > target][:MOST_SETS]
        sets = self._search.sets(wanted).view(np.bool_)
        return PricedSets(max(target, int(value.max(initial=target))), sets, True)
