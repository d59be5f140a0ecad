"""For graphs with too many ideals: the best splits of many topological orders, and bounds from parts of the graph.

The best split of one order is found quickly. Orders come in series. The first passes through the minimum cuts along a
path, or, in every third series, is drawn at random, following the branches of the graph in varying sequence; the next
such that the best pipeline of the series is itself a split of the order, so that the series can only improve. Hill
climbing continues from each split under the judge's prices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Reason
from placewise.placers.base import Stopwatch
from placewise.placers.pipeline_dp.cut_orders import CutOrders
from placewise.placers.pipeline_dp.hill_climb import climb_hill
from placewise.placers.pipeline_dp.host_bound import bound_beside_hosts
from placewise.placers.pipeline_dp.node_hierarchy import sort_stages
from placewise.placers.pipeline_dp.part_bound import bound_by_part
from placewise.placers.pipeline_dp.path_bound import bound_by_path
from placewise.placers.pipeline_dp.topological_orders import sort_depth_first
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.stages import stage_costs
from placewise.placers.shared.stages.dp_driver import GoOn
from placewise.placers.shared.stages.line_split import find_best_split
from placewise.placers.shared.stages.replicated_stages import build_replica_column
from placewise.simulate import Evaluator, judge_placement
from placewise.simulate.contiguity import Contraction

ROUNDS, WORK = 60, 60_000
"""Without a time limit: the number of orders, and of orders times components."""
STALLED = 8
"""A series of orders ends after so many in a row that improve nothing."""
FRUITLESS = 12
"""The search ends after so many series in a row that do not improve on the best of all."""
LONGEST_PROOF = 15.0
"""Seconds for the bound, or a share of the time limit if that is more; the placement does not depend on the bound."""
_SHARE, _ORDERS = 0.4, 0.5
"""Of the time limit for the bound and for replicas, and of the time that is left, for orders."""
_PART, _PART_SECONDS = 0.4, 2.0
"""Of the bound's time, for a part of the components, and the least that this takes; it spares the path many cuts."""
ONE_PATH, PART = "path of minimum cuts through the stages", "ideals of a part of the graph"
HOSTS = "work beside the stages of hosts"
PATH_COMPONENTS = 10_000
"""On larger graphs the minimum cuts along a path take minutes."""
ROUNDED = 1 - 1e-12
"""Costs are rounded down to whole units; this covers the rounding of the sums before that."""


def search_orders(
    problem: Problem, graph: Contraction, known: list[Ints], watch: Stopwatch, go_on: GoOn
) -> tuple[list[Placement], Reason]:
    """The best split of many orders after hill climbing, and why the search ended; Ctrl-C ends it with the best.

    If stages may be replicated, a search without climbing
    follows over splits with replicated stages.
    """
    alone, rounds = problem, min(ROUNDS, WORK // max(graph.n, 1))
    if problem.max_replicas > 1:
        alone = problem.with_(constraints=replace(problem.constraints, replicas=1))
    search = _OrderSearch(alone, graph, watch, go_on, np.random.default_rng(watch.budget.seed))
    placements: list[Placement] = []
    try:
        for start in known if rounds else ():
            search.climb(start)
        search.split_orders(rounds, _ORDERS if alone is problem else _ORDERS / 2)
        placements += [] if search.best is None else [Placement(search.best)]
        if problem.max_replicas > 1 and search.best is not None and search.reason is Reason.FINISHED:
            placements += _search_replicated(problem, search, rounds)
    except KeyboardInterrupt:
        search.reason = Reason.INTERRUPTED
        placements = placements or ([] if search.best is None else [Placement(search.best)])
    return placements, search.reason


@dataclass(slots=True)
class _OrderSearch:
    """One search: the best split [n_ops] so far and its value in seconds."""

    problem: Problem
    graph: Contraction
    watch: Stopwatch
    go_on: GoOn
    rng: np.random.Generator
    best: Ints | None = None
    value: float = np.inf
    reason: Reason = Reason.FINISHED

    def climb(self, start: Ints) -> tuple[Ints, float]:
        """The split that is reached from `start`, and its value; the best of all is kept."""
        price = Evaluator(self.problem, threads=1)
        device = climb_hill(self.problem, self.graph, start, price, self.watch)
        reached = float(price(device[None])[0])
        if reached < self.value:
            self.best, self.value = device, reached
        return device, reached

    def split_orders(self, rounds: int, share: float) -> None:
        """Split series of orders for a share of the time that is left, else `rounds` orders."""
        if not rounds:
            return
        until, round_ = self.watch.elapsed + share * self.watch.left, 0
        timed = np.isfinite(until)
        best, value, stalled, series = None, np.inf, 0, 0
        start, fruitless = self.value, 0
        priced = stage_costs.price_stages(self.problem, self.graph.component, self.graph.n, self.problem.capacity)
        cuts = CutOrders(self.graph, priced.costs)
        while fruitless < FRUITLESS and (self.watch.elapsed < until if timed else round_ < rounds):
            if stalled == STALLED:
                fruitless = 0 if self.value < start or self.best is None else fruitless + 1
                best, value, stalled, start = None, np.inf, 0, self.value
            if best is None:
                order, series = self._begin(cuts, series, until), series + 1
            else:
                order = self.draw(best)
            round_, stalled = round_ + 1, stalled + 1
            split = find_best_split(self.problem, self.graph.component, (order,), self.problem.capacity, self.go_on)
            if split.device is not None and not find_broken_rule(self.problem, split.device):
                device, reached = self.climb(split.device)
                if reached < value:
                    best, value, stalled = device, reached, 0
            if split.reason is not Reason.FINISHED:
                self.reason = split.reason
                break

    def _begin(self, cuts: CutOrders, series: int, until: float) -> Ints:
        """The first order of a series: through small cuts, through large ones, at random, in turns."""
        if series % 3 == 2:
            return self.draw(None)
        rng = self.rng if series else None
        rank = cuts.rank(rng, lambda: not self.watch.out and self.watch.elapsed < until, largest=series % 3 == 1)
        return _draw_order(self.graph, rank, self.rng)

    def draw(self, best: Ints | None) -> Ints:
        """A random order, such that `best` [n_ops] is a split of it if given."""
        return _draw_order(self.graph, _rank_stages(self.graph, best), self.rng)


def _search_replicated(problem: Problem, search: _OrderSearch, rounds: int) -> list[Placement]:
    """The best split with replicated stages, over orders through the best so far, which every better split replaces."""
    best, value = list[Placement](), np.inf
    for _ in range(rounds):
        if search.watch.elapsed > search.watch.budget.seconds * _SHARE:
            break
        split = find_best_split(
            problem, search.graph.component, (search.draw(search.best),), problem.capacity, search.go_on
        )
        if split.device is not None and split.value < value:
            placement = Placement(split.device, replicas=build_replica_column(split.groups, problem.n_devices))
            if judge_placement(problem, placement).valid:
                best, value, search.best = [placement], split.value, split.device
        if split.reason is not Reason.FINISHED:
            search.reason = split.reason
            break
    return best


def _rank_stages(graph: Contraction, device: Ints | None) -> Ints | None:
    """The position in the pipeline of the stage of each component [n]."""
    if device is None:
        return None
    assignment = np.empty(graph.n, np.int32)
    assignment[graph.component] = device
    place = np.zeros(int(assignment.max(initial=0)) + 1, np.int32)
    for rank, stage in enumerate(sort_stages(graph, assignment)):
        place[stage] = rank
    return place[assignment]


def _draw_order(graph: Contraction, rank: Ints | None, rng: np.random.Generator) -> Ints:
    """The position [n] of each component in a random depth-first order, stage after stage."""
    priority = rng.random(graph.n)
    sources = np.flatnonzero(np.diff(graph.predecessor_offsets) == 0)
    return sort_depth_first(graph, sources[np.argsort(priority[sources], kind="stable")], priority, rank)


def bound_by_relaxations(
    problem: Problem, graph: Contraction, reached: float, watch: Stopwatch, longest: float | None = None
) -> Bound | None:
    """A lower bound in seconds for contiguous placements, from what hosts can do, a part of the graph, and one path.

    It ends after `longest` seconds, or where it proves that `reached` cannot be improved. None if nothing is proved.
    """
    costs, scale, *_ = stage_costs.price_stages(problem, graph.component, graph.n, problem.capacity)
    if longest is None:
        longest = LONGEST_PROOF if np.isinf(watch.budget.seconds) else max(LONGEST_PROOF, _SHARE * watch.budget.seconds)
    until = min(watch.elapsed + longest, watch.budget.seconds)
    enough = reached * scale * (1 - max(watch.budget.gap, OPTIMAL_GAP / 2))

    def left() -> float:
        return until - watch.elapsed

    low = bound_beside_hosts(graph, costs, left)
    found = [(low, HOSTS)]
    kept = (1 - _PART) * left()
    if _PART * left() > _PART_SECONDS:
        found.append((bound_by_part(graph, costs, lambda: left() - kept, enough, low), PART))
    if found[-1][0] < enough and graph.n <= PATH_COMPONENTS:
        found.append((bound_by_path(graph, costs, left, enough, found[-1][0]), ONE_PATH))
    value, method = max(found, key=lambda bound: bound[0])
    return Bound(value / scale * ROUNDED, method) if value > 0 else None
