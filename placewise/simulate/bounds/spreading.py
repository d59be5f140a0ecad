"""A lower bound for throughput: the fractional assignment, and tensors that cross, to the host or between parts.

With a price of seconds for every device, and where they do not block it for its transfers and for every wire, all
together 1, the max-load is at least the price of all times and transfers. The cheapest assignment to accelerators and
the host, with the tensors that cross between the two sides, is a minimum cut (`host_cut.py`).

What crosses between accelerators is bounded by trees. If the max-load is T, the groups on one location take T at most,
at their best times, and fit into its memory. So of any set S that holds a group v, groups that take w(S) − T or more
are elsewhere, and the tree that leads from v to all of S is cut before each of them. Let every tensor of the tree carry
the seconds behind it, but w(S) − T at most: those that are cut carry w(S) − T together, one at that limit alone, others
since all that is elsewhere lies behind them. So trees with factors y prove that what they carry over the tensors that
cross is Σ y (w(S) − T) at least. They are a dual solution of spreading metrics (Even, Naor, Rao and Schieber 1999,
"Fast approximate graph partitioning algorithms"), cut off as covers of knapsacks are (Carr, Fleischer, Leung and
Phillips 2000, "Strengthening integrality gaps for capacitated network design and covering problems").

A tensor carries at most its price between two accelerators. So that no price counts twice, the minimum cut has its
price to or from the host without what it carries. Where it carries more than that price, the rest is a credit of each
of its groups on the host: wherever the tensor crosses to or from the host, at least one of them is there and gives it
back. An output leaves for the host in any case: the cut counts that once for its maker, and trees have no part of it.

A linear program chooses prices and factors together (a Lagrangian decomposition). Cuts, and trees that cost less than
they prove at its dual values, are added until none is found or the time is over. The bound comes from the prices, from
factors made smaller until no tensor carries too much, and from the minimum cut at what they leave, so that errors of
the program only weaken it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ortools.linear_solver import pywraplp

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs, offsets_of
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import DeviceClasses, unshared_bytes
from placewise.simulate.bounds.assignment import round_down
from placewise.simulate.bounds.crossings import Route, list_routes
from placewise.simulate.bounds.host_cut import CheapestAssignment, Fees, HostCut, Sides, list_traffic
from placewise.simulate.problem_arrays import arrays_of, find_crossing_uses

METHOD = "fractional assignment and transfers"
LARGEST, LARGEST_FOR_TREES = 200_000, 40_000
"""The most uses of tensors of a problem that is cut, and of one in which trees are grown."""
WORK = 1.0
"""The work of all rounds: about as many seconds."""
_ROUND_WORK, _TREE_WORK, _CELL_WORK, _CUT_WORK = 2e-3, 5e-7, 4e-7, 1e-7
"""The work of a round, of a tree in it for each use of a tensor, of each tree and edge of the linear program, and of a
minimum cut for each group and use of a tensor."""
_ROOTS = 32
"""Trees are grown from so many groups per round."""
_SOLVE_TIME = 0.3
"""The deterministic seconds of a solution: the simplex method may cycle."""
_STEP = 0.3
"""How far a round also moves from the best prices and factors towards those of the program (Wentges 1997)."""
_MIXED = 0.1
"""The share of even prices in those at which tensors choose their routes: no route is free there."""
_SMOOTH = 0.5
"""The share of the lengths before that the next lengths keep."""
_PATIENCE, _CLOSE = 8, 1e-4
"""The search ends after so many rounds that raise the bound by less than this share, or if it will not within them."""
_FIRST = 0.05
"""The length of the cheapest tensor before the program has any trees."""
_CHEAP = 1e-5
"""Tensors whose price is below this share of the largest count as free."""
_SURE = 1 + 1e-9
_RANGE = 1e100
"""No bound is sought where seconds are so much larger or smaller than each other or than 1."""


class Crossings(NamedTuple):
    """A hypergraph: its nodes are groups, and an edge joins those that make or read a tensor, once for equal sets.

    `of` [n_tensors] is the edge of each tensor, or −1.
    """

    edge_offsets: Longs
    edge_nodes: Ints
    node_offsets: Longs
    node_edges: Ints
    of: Longs

    def sum_tensors(self, values: Floats) -> Floats:
        """Σ of a column [n_tensors] over the tensors of each edge."""
        known = self.of >= 0
        total = np.bincount(self.of[known], weights=values[known], minlength=len(self.edge_offsets) - 1)
        return total.astype(np.float64)


class _Tree(NamedTuple):
    """A tree that proves about 1 for the T at which it was grown, and for a larger T less by `slope` per second.

    `carried` is what its `edges` carry, `proved` what it would prove if T were 0, or always where bytes do not fit.
    """

    proved: float
    slope: float
    edges: Ints
    carried: Floats


class PricePoint(NamedTuple):
    """Prices of what is loaded, of the bytes of limited memories (for all of the model), and the factors of trees."""

    prices: Floats
    memory: Floats
    factors: Floats


class _Loads:
    """What has a price: devices by class, their transfers where these do not block them, and all wires together."""

    def __init__(self, problem: Problem, classes: DeviceClasses) -> None:
        mode, n, wires = problem.objective.communication, len(classes.count), len(problem.cluster.wires)
        own = np.where(problem.cluster.is_host[classes.example], 0, classes.count)
        parts = [classes.count] + {"blocking": [], "overlap": [own], "duplex": [own, own]}[mode]
        self.count: Longs = np.concatenate([*parts, [wires]] if wires else parts).astype(np.int64)
        self.n_classes, self._send, self._receive = n, n * (len(parts) > 1), n * (len(parts) - 1)

    def list_parts(self, route: Route) -> list[tuple[int, Floats]]:
        """What is loaded by tensors on a route, and the seconds of each tensor."""
        wires = [(len(self.count) - 1, route.wires)] if route.wires.any() else []
        return [(self._send + route.source, route.sends), (self._receive + route.target, route.receives), *wires]


class _Way:
    """Some routes: what tensors cost at least at some prices, and what they load there."""

    def __init__(self, loads: _Loads, routes: list[Route]) -> None:
        self._parts = [loads.list_parts(route) for route in routes]

    def price(self, prices: Floats) -> tuple[Floats, Longs]:
        """The price of each tensor [n_tensors] on its cheapest route, and this route."""
        each = np.array([sum(prices[load] * seconds for load, seconds in parts) for parts in self._parts])
        return each.min(axis=0), each.argmin(axis=0)

    def sum_loads(self, n_loads: int, chosen: Bools | Longs, route: Longs) -> Floats:
        """The seconds of each load for some tensors, on these routes [n_tensors]."""
        total = np.zeros(n_loads)
        for number, parts in enumerate(self._parts):
            own = chosen[route[chosen] == number]
            for load, seconds in parts:
                total[load] += seconds[own].sum()
        return total

    def list_loads(self, route: Longs) -> list[tuple[int, Floats]]:
        """The seconds of each load [n_tensors], where each tensor takes its route."""
        return [
            (load, np.where(route == number, seconds, 0.0))
            for number, parts in enumerate(self._parts)
            for load, seconds in parts
            if seconds.any()
        ]


class _HostWays(NamedTuple):
    """The cut between accelerators and the host, and the routes of the tensors that it sends out and takes in."""

    cut: HostCut
    out: _Way
    into: _Way


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
    a = arrays_of(problem)
    longest = max(float(times.max(where=np.isfinite(times), initial=0.0)), float(a.transfer.max(initial=0.0)))
    if work <= 0 or not 0 < len(a.consumers) <= LARGEST or not max(1.0, longest) < above * _RANGE or not go_on():
        return Bound(0.0, METHOD)
    return Bound(TransferProgram(problem, classes, times).raise_floor(above, work, go_on), METHOD)


class TransferProgram:
    """The linear program over prices and factors, with minimum cuts as rows and trees as columns.

    Seconds are shares of what all groups take at best, and bytes shares of all bytes.
    """

    def __init__(self, problem: Problem, classes: DeviceClasses, times: Floats) -> None:
        a, host = arrays_of(problem), problem.cluster.is_host
        self._problem, self.loads = problem, _Loads(problem, classes)
        traffic = list_traffic(problem, np.ones(len(a.consumers), np.bool_), a.output)
        self.sides = Sides(problem, classes, times, traffic)
        self._unit = self.sides.scale
        self._cut_work = _CUT_WORK * (times.size + 4 * (len(traffic.tensor) if traffic is not None else 0))
        ends = list_routes(problem, classes)
        on_host = host[classes.example]
        kinds = [(bool(on_host[route.source]), bool(on_host[route.target])) for route in ends]
        between, out, into = (
            [route for route, kind in zip(ends, kinds, strict=True) if kind == wanted]
            for wanted in ((False, False), (False, True), (True, False))
        )
        if a.staged:  # an output has paid for its way to the host
            between = [
                route._replace(sends=np.where(a.output, 0.0, route.sends), wires=np.where(a.output, 0.0, route.wires))
                for route in between
            ]
        ways = _Way(self.loads, out), _Way(self.loads, into)
        self._host = _HostWays(self.sides.cut, *ways) if self.sides.cut is not None and out and into else None
        self._between = _Way(self.loads, between or [*out, *into]) if between or self._host is not None else None
        together = np.where(on_host, max(int(host.sum()), 1), 1)
        self._seconds: Floats = (times / together).min(axis=1)
        location = np.unique(problem.cluster.location, return_inverse=True)[1]
        room = float(np.bincount(location, weights=problem.capacity).max())
        self._share = unshared_bytes(problem) / room if np.isfinite(room) and room > 0 else None
        self._edges: Crossings | None = None
        self._has_host = bool(on_host.any())
        self.trees, self._cuts = list[_Tree](), list[tuple[pywraplp.Constraint, Bools, Bools]]()
        self._known = set[tuple[bytes, ...]]()
        self._limits, self._lower = list[pywraplp.Constraint](), list[pywraplp.Constraint]()
        self._scale: Floats = np.zeros(0)
        self._begin()

    def _begin(self) -> None:
        """The program without trees: prices that are 1 together, and the least price of a cut."""
        self._solver = solver = pywraplp.Solver("transfers", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
        solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {_SOLVE_TIME}")
        self._prices = [solver.NumVar(0.0, solver.infinity(), "") for _ in self.loads.count]
        self._memory = [solver.NumVar(0.0, solver.infinity(), "") for _ in self.sides.room]
        self._least = solver.NumVar(-solver.infinity(), solver.infinity(), "")
        self._factors, self._credits = list[pywraplp.Variable](), list[pywraplp.Variable]()
        whole = solver.Constraint(1.0, 1.0)
        for price, count in zip(self._prices, self.loads.count.tolist(), strict=True):
            whole.SetCoefficient(price, count)
        self._objective = solver.Objective()
        self._objective.SetMaximization()
        self._objective.SetCoefficient(self._least, 1.0)
        for price, room in zip(self._memory, (self.sides.room / self.sides.unit).tolist(), strict=True):
            self._objective.SetCoefficient(price, -room)

    def raise_floor(self, floor: float, work: float, go_on: Callable[[], bool]) -> float:
        """The largest max-load that is refuted, at least `floor` seconds; 0 if that is the largest."""
        least, rng, length = floor, np.random.default_rng(0), None
        count = self.loads.count
        even = np.where(count > 0, 1.0 / count.sum(), 0.0)
        best = PricePoint(even, np.zeros(len(self._memory)), np.zeros(0))
        value, grows, idle, number = self._prove(best), False, 0, 0
        while work > 0 and idle < _PATIENCE and go_on():
            steps = (_STEP, 1.0) if grows or number % 3 == 0 else (_STEP,)
            work -= _ROUND_WORK + len(steps) * self._cut_work
            for factor, tree in zip(self._factors, self.trees, strict=True):
                self._objective.SetCoefficient(factor, tree.proved - tree.slope * floor)
            if not self._solve():
                break
            point, ceiling = self._read_point(), self._solver.Objective().Value() * self._unit
            known = np.concatenate((best.factors, np.zeros(len(point.factors) - len(best.factors))))
            best, number, before = best._replace(factors=known), number + 1, value
            lengths = self._find_lengths() if grows else None
            for step in steps:
                tried = PricePoint(*(old + step * (new - old) for old, new in zip(best, point, strict=True)))
                if (found := self._prove(tried)) > value:
                    best, value = tried, found
            idle = 0 if value > before * (1 + _CLOSE) else idle + 1
            if not grows and (idle >= _PATIENCE - 1 or ceiling <= value * (1 + _CLOSE)):
                grows, idle = self._add_edges(_MIXED * even + (1 - _MIXED) * best.prices), 0
                if not grows:
                    break
                lengths = _FIRST * self._scale.min() / self._scale
            floor = max(floor, value)
            if value + _PATIENCE * max(value - before, 0.0) < floor and grows and number > 2 * _PATIENCE:
                break
            if lengths is not None and self._edges is not None:
                length = lengths if length is None else _SMOOTH * length + (1 - _SMOOTH) * lengths
                work -= _TREE_WORK * _ROOTS * len(self._edges.edge_nodes)
                self._grow_trees(rng, length, floor, go_on)
                if not self.trees:  # everything is too far apart
                    length, idle = length / 4, idle + 1
                work -= _CELL_WORK * len(self.trees) * (len(self._limits) + len(self._lower))
        return floor if floor > least else 0.0

    def _solve(self) -> bool:
        """Solve the program, once more from the beginning where that failed; whether it is solved."""
        if not self._cuts:
            return False
        if self._solver.Solve() == self._solver.OPTIMAL:
            return True
        afresh = pywraplp.MPSolverParameters()
        afresh.SetIntegerParam(afresh.INCREMENTALITY, afresh.INCREMENTALITY_OFF)
        return bool(self._solver.Solve(afresh) == self._solver.OPTIMAL)

    def _read_point(self) -> PricePoint:
        columns = (self._prices, self._memory, self._factors)
        prices, memory, factors = (
            np.maximum([variable.solution_value() for variable in column], 0.0) for column in columns
        )
        return PricePoint(prices / max(float(self.loads.count @ prices), 1e-300), memory, factors)

    def _price_tensors(self, prices: Floats) -> tuple[Floats, Floats, Fees | None, list[Longs]]:
        """What tensors [n_tensors] cost between accelerators, and at least to or from the host; fees, and routes."""
        none = np.zeros(self._problem.graph.n_tensors)
        between, route = self._between.price(prices) if self._between is not None else (none, none.astype(np.int64))
        if self._host is None:
            return between, none if self._has_host else between, None, [route]
        (out, left), (into, entered) = self._host.out.price(prices), self._host.into.price(prices)
        fees, crossing = self._host.cut.list_fees(out, into), none
        crossing[self._host.cut.tensors] = np.minimum(fees.out, fees.into)
        return between, np.minimum(crossing, between), fees, [route, left, entered]

    def _prove(self, point: PricePoint) -> float:
        """The seconds that prices and factors refute."""
        proved, slope = self.weigh(point)
        return round_down(max(proved, 0.0) / (1 + slope) / _SURE, len(self._seconds))

    def weigh(self, point: PricePoint) -> tuple[float, float]:
        """What the loads of any placement cost at least at some prices: the first result, less the second times T.

        That is least − memory · room + Σ y (proved − slope · T). Adds the minimum cut that it needs to the program.
        """
        edges, sides, unit = self._edges, self.sides, self._unit
        between, crossing, fees, routes = self._price_tensors(point.prices)
        factors, credit = point.factors, np.zeros(self._problem.n_blocks)
        if edges is not None and factors.any():
            carried = np.zeros(len(edges.edge_offsets) - 1)
            for factor, tree in zip((unit * factors).tolist(), self.trees, strict=False):
                if factor > 0:
                    carried[tree.edges] += factor * tree.carried
            most, least = edges.sum_tensors(between), edges.sum_tensors(crossing)
            over = float((carried / np.maximum(most, 1e-300)).max(initial=0.0)) * _SURE
            if over > 1:
                factors, carried = factors / over, carried / over
            above = np.maximum(carried - least, 0.0)
            credit = np.bincount(
                edges.edge_nodes, weights=np.repeat(above, np.diff(edges.edge_offsets)), minlength=len(credit)
            ).astype(np.float64)
            if fees is not None and self._host is not None:
                share = (carried - above) / np.maximum(least, 1e-300)
                taken = np.where(edges.of >= 0, crossing * share[edges.of], 0.0)[self._host.cut.tensors]
                fees = fees._replace(out=np.maximum(fees.out - taken, 0), into=np.maximum(fees.into - taken, 0))
        prices, per_byte = point.prices[: self.loads.n_classes], point.memory * unit / sides.unit
        choice = sides.choose(prices, fees, per_byte, credit if self._has_host else 0.0)
        self._add_cut(choice, routes)
        proved, slope = choice.least - float(per_byte @ sides.room) * (1 + 1e-12), 0.0
        for factor, tree in zip((unit * factors).tolist(), self.trees, strict=False):
            proved += factor * tree.proved
            slope += factor * tree.slope
        return proved, slope

    def _add_cut(self, choice: CheapestAssignment, routes: list[Longs]) -> None:
        """Add the row of an assignment: the least price is no more than what it loads."""
        n = len(self._prices)
        loads = np.zeros(n)
        loads[: self.loads.n_classes] = choice.seconds
        if self._host is not None:
            (cut, out, into), (_, left, entered) = self._host, routes
            loads += out.sum_loads(n, cut.tensors[choice.sent & ~cut.stays], left)
            loads += out.sum_loads(n, cut.leaving[choice.left], left)
            loads += into.sum_loads(n, cut.tensors[choice.received], entered)
        key = (choice.on_host.tobytes(), loads.tobytes(), choice.held.tobytes())
        if key in self._known:
            return
        self._known.add(key)
        row = self._solver.Constraint(-self._solver.infinity(), 0.0)
        row.SetCoefficient(self._least, 1.0)
        for price, seconds in zip(self._prices, (loads / self._unit).tolist(), strict=True):
            row.SetCoefficient(price, -seconds)
        for price, held in zip(self._memory, (choice.held / self.sides.unit).tolist(), strict=True):
            row.SetCoefficient(price, -held)
        crossed = np.zeros(0, np.bool_) if self._edges is None else self._add_carried(row, choice.on_host)
        self._cuts.append((row, choice.on_host, crossed))

    def _add_carried(self, row: pywraplp.Constraint, on_host: Bools) -> Bools:
        """Let trees lower the price of what a cut separates, and credits that of groups on the host; what it cuts."""
        edges = self._edges
        assert edges is not None
        there = np.add.reduceat(on_host[edges.edge_nodes].astype(np.int64), edges.edge_offsets[:-1])
        crossed: Bools = (there > 0) & (there < np.diff(edges.edge_offsets))
        for edge in np.flatnonzero(there).tolist() if self._credits else ():
            row.SetCoefficient(self._credits[edge], float(there[edge] - crossed[edge]) * self._scale[edge])
        for factor, tree in zip(self._factors, self.trees, strict=True):
            row.SetCoefficient(factor, float(tree.carried[crossed[tree.edges]].sum()))
        return crossed

    def _add_edges(self, prices: Floats) -> bool:
        """Add what tensors may carry, as their cheapest routes at these prices limit it; whether there is any."""
        a, problem = arrays_of(self._problem), self._problem
        if self._between is None or len(a.consumers) > LARGEST_FOR_TREES:
            return False
        between, crossing, fees, routes = self._price_tensors(prices)
        used = find_crossing_uses(problem)
        used = used[between[a.consumed[used]] > _CHEAP * between.max(initial=0.0)]
        if not len(used):
            return False
        self._edges = edges = _list_crossings(problem, used)
        most = edges.sum_tensors(between)
        self._scale = most / self._unit
        limits = self._between.list_loads(routes[0])
        self._limits = self._add_limits([(load, edges.sum_tensors(seconds)) for load, seconds in limits])
        if self._has_host:
            lower = [(load, np.where(crossing < between, 0.0, seconds)) for load, seconds in limits]
            if fees is not None and self._host is not None:
                cut, out, into = self._host
                leaves, enters = np.zeros((2, len(between)), np.bool_)
                cheaper = crossing[cut.tensors] < between[cut.tensors]
                leaves[cut.tensors] = cheaper & ~cut.stays & (fees.out <= fees.into)
                enters[cut.tensors] = cheaper & (fees.into < fees.out)
                for way, route, chosen in ((out, routes[1], leaves), (into, routes[2], enters)):
                    lower += [(load, np.where(chosen, seconds, 0.0)) for load, seconds in way.list_loads(route)]
            self._lower = self._add_limits([(load, edges.sum_tensors(seconds)) for load, seconds in lower])
            self._credits = [self._solver.NumVar(0.0, self._solver.infinity(), "") for _ in self._lower]
            for row, credit in zip(self._lower, self._credits, strict=True):
                row.SetCoefficient(credit, -1.0)
        self._cuts = [(row, on_host, self._add_carried(row, on_host)) for row, on_host, _ in self._cuts]
        return True

    def _add_limits(self, loads: list[tuple[int, Floats]]) -> list[pywraplp.Constraint]:
        """Rows by which edges carry no more than the price of what they load, as shares of what they may carry."""
        most = self._scale * self._unit
        rows = [self._solver.Constraint(-self._solver.infinity(), 0.0) for _ in most]
        total = np.zeros((len(self._prices), len(most)))
        for load, seconds in loads:
            total[load] += seconds
        for price, shares in zip(self._prices, total / most, strict=True):
            for edge in np.flatnonzero(shares).tolist():
                rows[edge].SetCoefficient(price, -float(shares[edge]))
        return rows

    def _find_lengths(self) -> Floats:
        """What carrying one second over each edge costs, by the dual values of the program."""
        rows = [self._limits, self._lower] if self._lower else [self._limits]
        total: Floats = np.zeros(len(self._limits))
        for own in rows:
            total += np.maximum([row.dual_value() for row in own], 0.0) / self._scale
        for row, _, crossed in self._cuts:
            if (share := row.dual_value()) > 0:
                total[crossed] += share
        return total

    def _grow_trees(self, rng: np.random.Generator, length: Floats, floor: float, go_on: Callable[[], bool]) -> None:
        """Add trees from some groups that cost less than they prove at these lengths."""
        edges = self._edges
        assert edges is not None
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
                if len(used):
                    slope = 1.0 / (excess * floor) if timed else 0.0
                    lost = 1.0 + excess - round_down(1.0 + excess, self._problem.n_ops)  # 1 + excess is a sum
                    self._add_tree(_Tree(1.0 - lost / excess + slope * floor, slope, used, carried / excess))

    def _add_tree(self, tree: _Tree) -> None:
        factor = self._solver.NumVar(0.0, self._solver.infinity(), "")
        for edge, amount in zip(tree.edges.tolist(), (tree.carried / self._scale[tree.edges]).tolist(), strict=True):
            self._limits[edge].SetCoefficient(factor, amount)
            if self._lower:
                self._lower[edge].SetCoefficient(factor, amount)
        for row, _, crossed in self._cuts:
            row.SetCoefficient(factor, float(tree.carried[crossed[tree.edges]].sum()))
        self._factors.append(factor)
        self.trees.append(tree)


def _list_crossings(problem: Problem, used: Longs) -> Crossings:
    """The sets of groups that pass tensors by some uses, equal ones once."""
    a = arrays_of(problem)
    tensors = a.consumed[used]
    members: dict[int, set[int]] = {}
    for tensor, one, other in zip(
        tensors.tolist(), problem.block[a.producer[tensors]].tolist(), problem.block[a.consumers[used]].tolist(),
        strict=True,
    ):  # fmt: skip
        members.setdefault(tensor, {one}).add(other)
    numbers: dict[frozenset[int], int] = {}
    of = np.full(problem.graph.n_tensors, -1, np.int64)
    for tensor, nodes in members.items():
        of[tensor] = numbers.setdefault(frozenset(nodes), len(numbers))
    edge_nodes = np.concatenate([np.sort(np.fromiter(key, np.int32)) for key in numbers])
    size = np.array([len(key) for key in numbers])
    edge = np.repeat(np.arange(len(size), dtype=np.int32), size)
    order = np.argsort(edge_nodes, kind="stable")
    node_offsets = offsets_of(edge_nodes[order], problem.n_blocks)
    return Crossings(offsets_of(edge, len(size)), edge_nodes, node_offsets, edge[order], of)
