"""A lower bound for pipelines in which a host takes a stage: it cannot pick only what it is good at.

A stage is a convex set of components, the difference of two ideals. For any price s of a host's seconds, the most work
beyond that price of a convex set is a maximum closure (Picard, Management Science 22 (1976)) over two copies of the
graph, one per ideal. A host within T does at most this and s · T of the work, and every other device at most T.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ortools.graph.python import max_flow

from placewise.model.columns import Bools, Floats, Longs
from placewise.placers.pipeline_dp.path_bound import QUICKEST, LeastCosts, find_paying
from placewise.placers.shared.stages.stage_costs import ComponentCosts
from placewise.simulate.contiguity import Contraction

_TOTAL, _UNCUT = 1 << 40, 1 << 52
"""All work, in units of the network, and the capacity of arcs that are never cut."""
_FIRST_PRICE, _NEAR, _ROUNDS = 0.5, 1.05, 12
"""The first price, the ratio of the two prices around the best one that ends the search, and the most prices."""


def bound_beside_hosts(graph: Contraction, costs: ComponentCosts, left: Callable[[], float]) -> float:
    """A lower bound on the max-load of contiguous placements, in units of the costs; 0 if nothing is proved."""
    paying = find_paying(costs)
    least, hosted = LeastCosts(costs, paying).work, LeastCosts(costs, ~paying).work
    work = np.minimum(least, QUICKEST * hosted)
    n_devices, n_hosts = int(costs.n_devices[paying].sum()), int(costs.n_devices[~paying].sum())
    if not n_hosts or not np.isfinite(work).all() or not work.any():
        return 0.0
    sets, total = _ConvexSets(graph, work, hosted), float(work.sum())
    best, low, high, price = 0.0, 0.0, QUICKEST, _FIRST_PRICE
    for _ in range(_ROUNDS):
        if left() <= 0 or high <= low * _NEAR:
            break
        gain, chosen = sets.find_best(price)
        bound = (total - n_hosts * gain) / (n_devices + n_hosts * price)
        best = max(best, bound)
        low, high = (price, high) if float(hosted[chosen].sum()) > bound else (low, price)
        price = (low * high) ** 0.5 if low else high / 3
    return best * (1 - 1e-9)


class _ConvexSets:
    """The flow network for the convex set with the most work beyond a price of its seconds on a host."""

    def __init__(self, graph: Contraction, work: Floats, hosted: Floats) -> None:
        n, (tail, head) = graph.n, graph.edges()
        self._able = np.isfinite(hosted)
        self._work, self._hosted = work, np.where(self._able, hosted, 0.0)
        self._unit = _TOTAL / float(work.sum())
        behind, before = 2 + np.arange(n), 2 + n + np.arange(n)  # whether it is in the larger, in the smaller ideal
        barred = np.flatnonzero(~self._able)
        tails = np.concatenate((before, behind[head], before[head], behind[barred]))
        heads = np.concatenate((behind, behind[tail], before[tail], before[barred]))
        self._flow = max_flow.SimpleMaxFlow()
        add = self._flow.add_arcs_with_capacity
        add(tails.astype(np.int32), heads.astype(np.int32), np.full(len(tails), _UNCUT))
        nodes, source, sink = np.append(behind, before).astype(np.int32), np.zeros(2 * n), np.ones(2 * n)
        self._gains = add(source.astype(np.int32), nodes, np.zeros(2 * n, np.int64))
        self._losses = add(nodes, sink.astype(np.int32), np.zeros(2 * n, np.int64))

    def find_best(self, price: float) -> tuple[float, Bools]:
        """The most work beyond a price of the seconds of a convex set, rounded up, and such a set [n]."""
        worth = np.where(self._able, self._work - price * self._hosted, 0.0) * self._unit
        units: Longs = np.floor(np.maximum(worth, -_TOTAL)).astype(np.int64) + 1
        both = np.append(units, -units)
        gains = np.maximum(both, 0)
        self._flow.set_arcs_capacity(self._gains, gains)
        self._flow.set_arcs_capacity(self._losses, np.maximum(-both, 0))
        if self._flow.solve(0, 1) != self._flow.OPTIMAL:
            return float("inf"), np.zeros(len(units), np.bool_)
        chosen = np.zeros(2 + 2 * len(units), np.bool_)
        chosen[self._flow.get_source_side_min_cut()] = True
        behind, before = chosen[2 : 2 + len(units)], chosen[2 + len(units) :]
        return (float(gains.sum()) - self._flow.optimal_flow()) / self._unit * (1 + 1e-12), behind & ~before
