"""What windows move: units that stay whole, their neighbours, and orders in which they stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Ints, Longs, distinct, offsets_of
from placewise.model.problem import Problem
from placewise.simulate.contiguity import Contraction, contract, depth_first


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Components of the contraction where stages must form a chain, else blocks.

    `of` [n_ops] is each op's unit; those that share a tensor with unit u, or an edge of the contraction, are
    ``neighbours[offsets[u]:offsets[u + 1]]``; `orders` are positions [n] of the units, topological where units are
    components. `graph` is the contraction, None for blocks.
    """

    of: Ints
    n: int
    offsets: Longs
    neighbours: Ints
    orders: tuple[Longs, ...]
    graph: Contraction | None

    def home(self, device: Ints) -> Ints:
        """The device of every unit [n] under a placement [n_ops]."""
        home = np.empty(self.n, np.int32)
        home[self.of] = device
        return home

    def around(self, unit: int) -> Ints:
        """The units next to one."""
        return self.neighbours[self.offsets[unit] : self.offsets[unit + 1]]


def units_of(problem: Problem) -> Units:
    """The units of a problem; linear in ops and edges."""
    graph = contract(problem)
    deep = depth_first(graph)
    if problem.constraints.contiguous:
        orders = (np.arange(graph.n), deep.astype(np.int64))
        return Units(graph.component, graph.n, *_next_to(problem, graph.component, graph.n), orders, graph)
    of, n = problem.block, problem.n_blocks
    size = np.bincount(of, minlength=n)
    means = (np.bincount(of, weights=position, minlength=n) / size for position in _positions(graph, deep))
    return Units(of, n, *_next_to(problem, of, n), tuple(np.argsort(np.argsort(m, kind="stable")) for m in means), None)


def _positions(graph: Contraction, deep: Ints) -> tuple[Ints, Ints]:
    """Where ops [n_ops] stand: as they are numbered, and when branches are followed to their end."""
    return np.arange(len(graph.component), dtype=np.int32), deep[graph.component]


def _next_to(problem: Problem, of: Ints, n: int) -> tuple[Longs, Ints]:
    """The units that share a tensor with each unit, as rows."""
    graph = problem.graph
    maker = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    made = maker >= 0
    one, other = of[maker[made]].astype(np.int64), of[graph.consumers[made]].astype(np.int64)
    apart = one != other
    pairs = distinct(np.concatenate((one * n + other, other * n + one))[np.tile(apart, 2)])
    rows = pairs // max(n, 1)
    return offsets_of(rows, n), (pairs - rows * n).astype(np.int32)
