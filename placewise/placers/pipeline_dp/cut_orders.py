"""Orders of the components that pass through the minimum cuts along a path.

Between any two neighbours of a path lies a cheapest cut: a set of components, closed under predecessors, with the path
up to the first neighbour and nothing of the rest, whose tensors cost least to send on (a closure as in Picard,
Management Science 22 (1976); tensors as hyperedges as in Ihler, Wagner and Wagner, Inf. Process. Lett. 45 (1993)). The
smallest of these sets are nested along the path, and so are the largest. An order that lists them one after the other
can be split at every one of these cuts, which random orders of a wide graph hardly ever contain.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ortools.graph.python import max_flow

from placewise.model.columns import Ints, Longs
from placewise.placers.pipeline_dp.path_bound import (
    TOTAL,
    UNCUT,
    LeastCosts,
    find_heaviest_path,
    price_transfers,
    weigh_components,
)
from placewise.placers.shared.stages.stage_costs import ComponentCosts
from placewise.simulate.contiguity import Contraction

_MAX_CUTS = 200
"""Of a longer path, so many places are cut, evenly spaced."""


class CutOrders:
    """The flow network of a graph, solved for one place of a path after the other."""

    def __init__(self, graph: Contraction, costs: ComponentCosts) -> None:
        (enter, leave), n = price_transfers(costs), graph.n
        price = enter + leave
        self._graph, self._weight = graph, weigh_components(costs, LeastCosts(costs))
        made = np.flatnonzero(costs.producer >= 0)
        tensor = np.repeat(np.arange(len(price)), np.diff(costs.consumer_offsets))
        used = costs.producer[tensor] >= 0
        tail, head = graph.edges()
        units = np.floor(price[made] * (TOTAL / max(float(price.sum()), 1.0))).astype(np.int64) + 1
        tails = (2 + costs.producer[made], 2 + n + tensor[used], 2 + head)
        heads = (2 + n + made, 2 + costs.consumers[used], 2 + tail)
        never = np.full(int(used.sum()) + len(tail), UNCUT)
        self._flow = max_flow.SimpleMaxFlow()
        add, parts = self._flow.add_arcs_with_capacity, (2 + np.arange(n)).astype(np.int32)
        add(*(np.concatenate(ends).astype(np.int32) for ends in (tails, heads)), np.concatenate((units, never)))
        self._inside = add(np.zeros(n, np.int32), parts, np.zeros(n, np.int64))
        self._outside = add(parts, np.ones(n, np.int32), np.zeros(n, np.int64))

    def rank(self, rng: np.random.Generator | None, go_on: Callable[[], bool], *, largest: bool = False) -> Ints:
        """The place [n] of each component among the cuts of one path: those of the first cut have place 0.

        The path is the heaviest, or with `rng` the heaviest by weights drawn at random. The cuts are the smallest
        ones, or with `largest` the largest. No more are made once `go_on` is false; any prefix of the cuts is a valid
        ranking.
        """
        path = find_heaviest_path(
            self._graph, self._weight if rng is None else self._weight * rng.random(self._graph.n)
        )
        places = np.unique(np.linspace(1, len(path) - 1, min(len(path) - 1, _MAX_CUTS)).astype(np.int64))
        rank = np.full(self._graph.n, len(places), np.int32)
        for number, place in enumerate(places.tolist()):
            if not go_on():
                break
            before = self._cut(path, place, largest)
            rank[before] = np.minimum(rank[before], number)
        return rank

    def _cut(self, path: Ints, place: int, largest: bool) -> Longs:
        """The components before the cheapest cut between `path[place − 1]` and `path[place]`."""
        n = self._graph.n
        inside, outside = np.zeros((2, n), np.int64)
        inside[path[:place]], outside[path[place:]] = UNCUT, UNCUT
        self._flow.set_arcs_capacity(self._inside, inside)
        self._flow.set_arcs_capacity(self._outside, outside)
        self._flow.solve(0, 1)
        if largest:
            behind = _components(self._flow.get_sink_side_min_cut(), n)
            return np.setdiff1d(np.arange(n), behind, assume_unique=True)
        return _components(self._flow.get_source_side_min_cut(), n)


def _components(nodes: list[int], n: int) -> Longs:
    """The components among the nodes of the network."""
    found = np.asarray(nodes, np.int64) - 2
    return found[(found >= 0) & (found < n)]
