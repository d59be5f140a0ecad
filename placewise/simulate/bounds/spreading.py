"""A lower bound for throughput: the fractional assignment, and transfers between parts that fit.

With a price of seconds for every device and wire, all together 1, the max-load is at least the price of all times and
transfers. Times have the prices of the fractional assignment (`assignment.py`); what follows bounds the transfers. If
the max-load is T, the groups on one location take T at most, at their best times, and fit into its memory. So of any
set S that holds a group v, groups that take w(S) − T or more are elsewhere, and the tree that leads from v to all of S
is cut before each of them. Let every tensor of the tree carry the seconds behind it, but w(S) − T at most: those that
are cut carry w(S) − T together, as one that carries less leads to less. Trees whose loads, each times a factor y, are
within the price c(e) of every crossing tensor e prove transfers of Σ y (w(S) − T). Such trees are a dual solution of
spreading metrics (Even, Naor, Rao and Schieber 1999, "Fast approximate graph partitioning algorithms"), cut off as
covers of knapsacks are (Carr, Fleischer, Leung and Phillips 2000, "Strengthening integrality gaps for capacitated
network design and covering problems").

A linear program chooses the factors. Its dual values are lengths of tensors, at which trees of shortest paths from some
groups cost less than they prove; they are added until none is found or the time is over. The bound comes from the
factors, made smaller until no tensor carries too much, so that errors of the program only weaken it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ortools.linear_solver import pywraplp

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs, offsets_of
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import DeviceClasses, unshared_bytes
from placewise.simulate.bounds.assignment import price_blocks, round_down
from placewise.simulate.bounds.crossings import Route, list_routes
from placewise.simulate.problem_arrays import arrays_of, find_crossing_uses

METHOD = "fractional assignment and transfers"
LARGEST = 40_000
"""The most uses of tensors of a problem that is bounded."""
WORK = 0.8
"""The work of all rounds: about as many seconds."""
_ROUND_WORK, _TREE_WORK, _CELL_WORK = 2e-3, 5e-7, 4e-7
"""The work of a round, of a tree in it for each use of a tensor, and of each tree and edge of the linear program."""
_ROOTS = 32
"""Trees are grown from so many groups per round."""
_SMOOTH = 0.5
"""The share of the lengths before that the next lengths keep (Wentges 1997)."""
_PATIENCE, _CLOSE = 8, 1e-4
"""The search ends after so many rounds that raise the bound by less than this share, or if it will not within them."""
_CHEAP = 1e-5
"""Tensors whose price is below this share of the largest count as free."""
_FIRST = 0.05
"""The length of the cheapest tensor before the program has any trees."""


class Crossings(NamedTuple):
    """Sets of groups that pass tensors, as columns of edges and of nodes, and the price of cutting each [n_edges]."""

    edge_offsets: Longs
    edge_nodes: Ints
    node_offsets: Longs
    node_edges: Ints
    price: Floats


class _Tree(NamedTuple):
    """A tree that proves 1 by the time it was grown: for a larger T less by `slope` per second.

    `carried` is what its `edges` carry, `proved` what it would prove if T were 0, or always where bytes do not fit.
    """

    proved: float
    slope: float
    edges: Ints
    carried: Floats


def transfer_bound(
    problem: Problem,
    classes: DeviceClasses,
    times: Floats,
    *,
    above: float = 0.0,
    work: float = WORK,
    go_on: Callable[[], bool] = lambda: True,
) -> Bound:
    """The largest max-load that is refuted, in seconds, starting from `above`; 0 if none above it is.

    `times` [n_blocks, n_classes] is inf where a block may not run. It holds for one device per stage. It ends after
    `work` or when `go_on` is False.
    """
    best, small = 0.0, len(arrays_of(problem).consumers) <= LARGEST
    if above <= 0 or work <= 0 or not small or not go_on():
        return Bound(best, METHOD)
    routes = [route for route in list_routes(problem, classes) if not _is_free(problem, classes, route)]
    found = _list_prices(problem, classes, times, routes) if routes else []
    for base, prices in found:
        edges = _list_crossings(problem, prices)
        if edges is not None and go_on():
            spreading = _Spreading(problem, classes, times, edges, base)
            best = max(best, spreading.raise_floor(above, work / len(found), go_on))
            above = max(above, best)
    return Bound(best, METHOD)


def _is_free(problem: Problem, classes: DeviceClasses, route: Route) -> bool:
    return bool(problem.cluster.is_host[classes.example[[route.source, route.target]]].all())


def _list_prices(
    problem: Problem, classes: DeviceClasses, times: Floats, routes: list[Route]
) -> list[tuple[float, Floats]]:
    """The seconds of all groups at some prices, and what each tensor [n_tensors] costs at least if it crosses."""
    mode, wires = problem.objective.communication, len(problem.cluster.wires)
    accelerators = int((~problem.cluster.is_host).sum())
    usable, room = np.isfinite(times), problem.capacity[classes.example] * classes.count
    found = list[tuple[float, Floats]]()
    if mode == "blocking":
        base, pace = price_blocks(times, usable, unshared_bytes(problem), room, classes.count)
        paid = [pace[route.source] * route.sends + pace[route.target] * route.receives for route in routes]
        found.append((base, np.min(paid, axis=0)))
    else:
        each = accelerators * (2 if mode == "duplex" else 1)
        found.append((0.0, np.min([(route.sends + route.receives) / each for route in routes], axis=0)))
    if wires:
        found.append((0.0, np.min([route.wires / wires for route in routes], axis=0)))
    return [(base, np.maximum(price, 0.0)) for base, price in found if price.max(initial=0.0) > 0]


def _list_crossings(problem: Problem, prices: Floats) -> Crossings | None:
    """The sets of groups that pass tensors of some price, equal ones once; None if there are none."""
    a = arrays_of(problem)
    used = find_crossing_uses(problem)
    used = used[prices[a.consumed[used]] > _CHEAP * prices.max()]
    if not len(used):
        return None
    tensors = a.consumed[used]
    members: dict[int, set[int]] = {}
    for tensor, one, other in zip(
        tensors.tolist(), problem.block[a.producer[tensors]].tolist(), problem.block[a.consumers[used]].tolist(),
        strict=True,
    ):  # fmt: skip
        members.setdefault(tensor, {one}).add(other)
    joined: dict[frozenset[int], float] = {}
    for tensor, nodes in members.items():
        key = frozenset(nodes)
        joined[key] = joined.get(key, 0.0) + float(prices[tensor])
    edge_nodes = np.concatenate([np.sort(np.fromiter(key, np.int32)) for key in joined])
    size = np.array([len(key) for key in joined])
    edge = np.repeat(np.arange(len(size), dtype=np.int32), size)
    order = np.argsort(edge_nodes, kind="stable")
    node_offsets = offsets_of(edge_nodes[order], problem.n_blocks)
    price = np.array(list(joined.values()))
    return Crossings(offsets_of(edge, len(size)), edge_nodes, node_offsets, edge[order], price)


class _Spreading:
    """Trees in the graph of groups, and the program that chooses their factors."""

    def __init__(self, problem: Problem, classes: DeviceClasses, times: Floats, edges: Crossings, base: float) -> None:
        host = problem.cluster.is_host
        together = np.where(host[classes.example], max(int(host.sum()), 1), 1)
        self._seconds: Floats = (times / together).min(axis=1)
        location = np.unique(problem.cluster.location, return_inverse=True)[1]
        room = float(np.bincount(location, weights=problem.capacity).max())
        self._share = unshared_bytes(problem) / room if np.isfinite(room) and room > 0 else None
        self._edges, self._base, self._trees = edges, base, list[_Tree]()
        self._solver = solver = pywraplp.Solver("spreading", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
        self._price = edges.price / edges.price.max()
        self._rows = [solver.Constraint(-solver.infinity(), 1.0) for _ in range(len(edges.price))]
        self._objective, self._factors = solver.Objective(), list[pywraplp.Variable]()
        self._objective.SetMaximization()

    def raise_floor(self, floor: float, work: float, go_on: Callable[[], bool]) -> float:
        """The largest max-load that is refuted, at least `floor` seconds; 0 if that is the largest."""
        least, best, idle, value = floor, 0.0, 0, self._base
        length = _FIRST * self._price.min() / self._price
        rng = np.random.default_rng(0)
        while work > 0 and idle < _PATIENCE:
            self._grow_trees(rng, length, floor, go_on)
            work -= _ROUND_WORK + _TREE_WORK * _ROOTS * len(self._edges.edge_nodes)
            if not self._trees:  # everything is too far apart
                length, idle = length / 4, idle + 1
                continue
            work -= _CELL_WORK * len(self._trees) * len(self._rows)
            for factor, tree in zip(self._factors, self._trees, strict=True):
                self._objective.SetCoefficient(factor, tree.proved - tree.slope * floor)
            if not self._solve():
                break
            before, value = value, self._prove()
            if value + _PATIENCE * max(value - before, 0.0) < floor:
                break
            idle = 0 if value > floor * (1 + _CLOSE) else idle + 1
            if value > floor:
                best = floor = value
            found = np.maximum([row.dual_value() for row in self._rows], 0.0) / self._price
            length = _SMOOTH * length + (1 - _SMOOTH) * found
            if not go_on():
                break
        return best if best > least else 0.0

    def _solve(self) -> bool:
        """Solve the program, once more from the beginning where that failed; whether it is solved."""
        if self._solver.Solve() == self._solver.OPTIMAL:
            return True
        afresh = pywraplp.MPSolverParameters()
        afresh.SetIntegerParam(afresh.INCREMENTALITY, afresh.INCREMENTALITY_OFF)
        return bool(self._solver.Solve(afresh) == self._solver.OPTIMAL)

    def _grow_trees(self, rng: np.random.Generator, length: Floats, floor: float, go_on: Callable[[], bool]) -> None:
        """Add trees from some groups that cost less than they prove at these lengths."""
        edges = self._edges
        resources = [(self._seconds / floor, True)] + ([] if self._share is None else [(self._share, False)])
        for weight, timed in resources:
            chance = weight / max(float(weight.sum()), 1e-300) + 1.0 / len(weight)
            chosen = rng.choice(len(weight), min(_ROOTS, len(weight)), replace=False, p=chance / chance.sum())
            for root in chosen.tolist():
                if not go_on():
                    break
                excess, used, carried = _native.spreading_tree(
                    edges.edge_offsets, edges.edge_nodes, edges.node_offsets, edges.node_edges, length, weight, root
                )
                if not len(used):
                    continue
                slope, carried = 1.0 / (excess * floor) if timed else 0.0, carried / excess
                factor = self._solver.NumVar(0.0, self._solver.infinity(), "")
                for edge, amount in zip(used.tolist(), (carried / self._price[used]).tolist(), strict=True):
                    self._rows[edge].SetCoefficient(factor, amount)
                self._trees.append(_Tree(1.0 + slope * floor, slope, used, carried))
                self._factors.append(factor)

    def _prove(self) -> float:
        """The seconds that the program's factors refute by T ≥ base + Σ y (proved − slope · T), if above the floor."""
        factors = np.maximum([factor.solution_value() for factor in self._factors], 0.0)
        carried = np.zeros(len(self._rows))
        for factor, tree in zip(factors.tolist(), self._trees, strict=True):
            if factor > 0:
                carried[tree.edges] += factor * tree.carried
        over = float((carried / self._edges.price).max(initial=0.0))
        factors = factors / (over * (1 + 1e-9)) if over > 0 else factors * 0.0
        proved, slope = self._base, 0.0
        for factor, tree in zip(factors.tolist(), self._trees, strict=True):
            proved += factor * tree.proved
            slope += factor * tree.slope
        return round_down(proved / (1 + slope) * (1 - 1e-9), len(self._seconds))
