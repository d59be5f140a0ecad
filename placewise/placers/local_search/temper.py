"""temper: local search for latency by parallel tempering, from what the quick placers find.

In `operator` execution its chains price moves themselves, from the first moment that a move touches (`schedules/`).
In the others, or where values are measured, nothing but the judge tells what a placement is worth. It stops where a
bound proves that there is nothing left to find; with a time limit it first gives that bound some time.

Probabilities among the hints are drawn from: placements to start from, and some of the moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason, gap_of
from placewise.placers.base import (
    Budget,
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
    run_placer,
)
from placewise.placers.local_search.latency_chains import search
from placewise.placers.local_search.parallel_tempering import Found, Keeps, temper
from placewise.placers.registry import create, known_names
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.move_space import build_move_space
from placewise.placers.shared.priors import draw_placements, match_labels, read_priors
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator, lower_bound
from placewise.simulate.blocks import block_firsts
from placewise.simulate.judge.memory import resident_bytes

QUICK = ("single", "heft", "etf", "balanced", "greedy", "critical_path", "topo")
START_SHARE = 0.3
"""The most of its time that goes into placements to start from, once there is one."""
SETUP = 1.5e-6
"""Seconds per op and edge before a search can begin: with less there is none."""
BOUNDED_OPS = 200_000
"""The bound of a larger graph would take too much of a limited time."""
BOUNDING = "paths"
LAST_RESORT = "pack"
DRAWN = 8
"""Placements drawn from probabilities to start from."""
LEADING = 4
"""Where probabilities are known, so many of the best starts are where searches begin."""
WORK, OVERHEAD = 1.6e7, 400
"""Without any limit: so many ops and edges priced, each placement counting as `OVERHEAD` more; about a second."""
ROUNDS_PER_BLOCK = 10
SLACK = 0.1
"""By so many seconds a round may be too late."""
BOUND_SHARE = 0.25
"""The most of its time that goes into a bound."""


@dataclass(frozen=True, slots=True)
class TemperOptions:
    """`searches`: how many go on at once, each at its own temperature; `bound`: whether it looks for a bound too.

    In `operator` execution the size of the graph says how many searches go on.
    """

    searches: int = 16
    bound: bool = True

    def __post_init__(self) -> None:
        if self.searches < 1:
            raise PlacerError(f"temper cannot make {self.searches} searches", remedy="give one or more")


class TemperPlacer:
    """Anytime: the longer it may search, the better; without a limit about a second, always the same work."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="temper",
        summary="local search for latency, several temperatures at once",
        source="parallel tempering: Swendsen and Wang, Phys. Rev. Lett. 57 (1986)",
        objectives=frozenset({"latency"}),
    )
    Options: ClassVar[type[TemperOptions]] = TemperOptions

    def __init__(self, options: TemperOptions | None = None) -> None:
        self.options = options or TemperOptions()

    def supports(self, problem: Problem) -> str | None:
        return None if problem.objective.kind == "latency" else "temper searches for latency, not throughput"

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement found. It starts from the hints that keep the rules, else from the quick placers'.

        Where the hints say who made them, the other quick placers are asked as well.
        """
        problem, watch, price = search.problem, search.watch, search.price
        best: Ints | None = None
        bound: Bound | None = None
        reason = Reason.FINISHED
        try:
            likely = read_priors(problem, search.hints)
            starts, values, bound, reason = self._starts(
                problem, watch, search.hints, likely, price, search.on_progress
            )
            if not len(starts):
                return Proposal(None, bound, reason, ("no placement was found to start from",))
            best = starts[int(values.argmin())]
            if problem.n_blocks and reason is not Reason.INTERRUPTED:
                best, reason = self._search(
                    problem, watch, starts, values, likely, price, search.on_progress, bound.value
                )
        except KeyboardInterrupt:
            reason = Reason.INTERRUPTED
        return Proposal(None if best is None else Placement(relabel(problem, best)), bound, reason)

    def _starts(
        self,
        problem: Problem,
        watch: Stopwatch,
        hints: Hints,
        likely: Floats,
        price: Evaluate,
        on_progress: OnProgress,
    ) -> tuple[Ints, Floats, Bound, Reason]:
        """Valid placements [S, n_ops] that can run, their values [S], a lower bound, and whether it was interrupted.

        A bound that is known is not looked for; else it is given some of the time where there is a limit, and may
        bring a placement of its own.
        """
        reason = Reason.FINISHED
        rows = [hint.device for hint in hints.placements if not find_broken_rule(problem, hint.device)]
        enough = START_SHARE * watch.budget.seconds
        quick = [name for name in QUICK if name not in hints.by] if hints.by or not rows else []
        bound, bounds = hints.bound or Bound(0.0, "nonnegative costs"), self.options.bound and hints.bound is None
        for name in (*quick, *((BOUNDING,) if bounds else ()), LAST_RESORT):
            if name not in known_names() or (rows and (name == LAST_RESORT or watch.elapsed > enough)):
                continue
            placer = create(name)
            if placer.supports(problem) is not None:
                continue
            share = BOUND_SHARE if name == BOUNDING else 1.0
            budget = replace(watch.rest(), seconds=share * watch.left)
            found = run_placer(placer, problem, budget, evaluate=price, on_progress=on_progress)
            bound = max(bound, found.bound or bound, key=lambda known: known.value)
            if found.placement is not None and not find_broken_rule(problem, found.placement.device):
                rows.append(found.placement.device)
            if found.reason is Reason.INTERRUPTED:
                reason = found.reason
                break
        rows += draw_placements(problem, likely, DRAWN, watch.budget.seed, watch)
        in_time = problem.n_ops <= BOUNDED_OPS or not np.isfinite(watch.budget.seconds)
        if problem.objective.execution != "subgraph" and bounds and in_time:
            bound = lower_bound(problem)
        starts = np.array(rows, np.int32).reshape(len(rows), problem.n_ops)
        values = np.asarray(price(starts), np.float64) if len(rows) else np.zeros(0)
        runs = np.flatnonzero(np.isfinite(values))
        if len(likely):
            runs = np.sort(runs[np.argsort(values[runs], kind="stable")][:LEADING])
        return starts[runs], values[runs], bound, reason

    def _search(
        self,
        problem: Problem,
        watch: Stopwatch,
        starts: Ints,
        values: Floats,
        likely: Floats,
        price: Evaluate,
        on_progress: OnProgress,
        bound: float,
    ) -> tuple[Ints, Reason]:
        """The best placement [n_ops] within the budget, and why the search ended."""
        first = block_firsts(problem)
        most_rounds, most_work = _limits(problem, watch.budget)
        homes = match_labels(problem, likely, starts[:, first])
        rounds = self._rounds(problem, homes, values, likely, price, watch.budget, most_work)
        found = Found(starts[int(values.argmin())][first], float(values.min()), 0)
        told, count, slowest = 0.0, 0, SETUP * (problem.n_ops + problem.graph.n_edges)
        try:
            while gap_of(found.value, bound) > max(watch.budget.gap, OPTIMAL_GAP):
                if watch.out or watch.left < slowest - SLACK:
                    return found.home[problem.block], Reason.TIME_LIMIT
                if count >= most_rounds or found.work + self.options.searches > most_work:
                    break
                begun = watch.elapsed
                more = next(rounds, None)
                if more is None:
                    break
                slowest = watch.elapsed - begun if count else 0.0
                found, count = more, count + 1
                if watch.elapsed > told + 0.5:
                    told = watch.elapsed
                    on_progress(Progress("temper", told, f"round {count}", found.value, bound))
        except KeyboardInterrupt:
            return found.home[problem.block], Reason.INTERRUPTED
        return found.home[problem.block], Reason.FINISHED

    def _rounds(
        self,
        problem: Problem,
        starts: Ints,
        values: Floats,
        likely: Floats,
        price: Evaluate,
        budget: Budget,
        most_work: float,
    ) -> Iterator[Found]:
        """The search from homes of blocks [S, n_blocks], of at most so many placements priced."""
        if problem.objective.execution == "operator" and isinstance(price, Evaluator):
            most = None if np.isinf(most_work) else int(most_work)
            keeps = _keeps(problem) if problem.constraints.shaped else None
            return search(
                problem, starts, values, keeps, seed=budget.seed, most=most, priors=likely, threads=budget.most_threads
            )
        return temper(
            build_move_space(problem, likely), starts, values, lambda homes: price(homes[:, problem.block]),
            _keeps(problem),
            searches=self.options.searches, seed=budget.seed,
        )  # fmt: skip


def _limits(problem: Problem, budget: Budget) -> tuple[float, float]:
    """The most rounds and the most placements priced; a fixed amount of work where there is no limit at all."""
    if np.isfinite(budget.seconds) or budget.iterations is not None or budget.evaluations is not None:
        most = [np.inf if limit is None else limit for limit in (budget.iterations, budget.evaluations)]
        return most[0], most[1]
    return ROUNDS_PER_BLOCK * problem.n_blocks, WORK / (OVERHEAD + problem.n_ops + problem.graph.n_edges)


def _keeps(problem: Problem) -> Keeps | None:
    """The check of rules that moves do not keep by themselves: live activations and the shape of stages."""
    if problem.objective.memory == "sum" and not problem.constraints.shaped:
        return None
    activations = float(np.maximum(problem.graph.tensors.bytes, 0).sum())

    def keeps(home: Ints) -> bool:
        device = home[problem.block]
        if not problem.constraints.shaped:
            resident = resident_bytes(problem, device)
            if (
                resident + np.where(np.bincount(device, minlength=len(resident)), activations, 0) <= problem.capacity
            ).all():
                return True
        return not find_broken_rule(problem, device)

    return keeps
