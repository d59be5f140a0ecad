"""Starting placements: where every search of the package begins.

Hints come first. Without a valid hint, quick placers are run for a share of the time; a short local search may improve
on them. `pack` is the last resort where memory is tight.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Reason
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, SearchContext, ignore, run_placer
from placewise.placers.registry import create
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import judge_placement

QUICK: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "throughput": (
        ("single", {}), ("balanced", {}), ("dpl", {}), ("etf", {}), ("heft", {}), ("etf", {"by": "start"}),
    ),
    "latency": (
        ("single", {}), ("heft", {}), ("etf", {}), ("critical_path", {}), ("topo", {}), ("balanced", {}),
        ("greedy", {}), ("etf", {"by": "start"}),
    ),
}  # fmt: skip
"""Quick placers with their options, per objective. A placer that does not support the problem is skipped."""
QUICK_SHARE, PACE = 0.25, 1e-6
"""Default share of the remaining time for the quick placers, and the seconds per op, tensor and edge that one needs."""
LAST_RESORT, LAST_RESORT_SHARE = "pack", 0.5
SEARCH, SEARCH_EVALUATIONS = "local", 3000
"""The local search, and how many placements it may price for latency where the budget has no time limit."""


@dataclass(slots=True)
class StartingPlacements:
    """Valid placements in the order in which they were found, hints first, with the best bound of the placers asked.

    `infeasible` is a proof that no placement exists, or empty; `asked` names the placers that ran; `check_seconds` is
    the longest time that a check of the rules took.
    """

    placements: list[Placement] = field(default_factory=list)
    bound: Bound | None = None
    infeasible: str = ""
    interrupted: bool = False
    asked: list[str] = field(default_factory=list)
    check_seconds: float = 0.0

    @property
    def devices(self) -> list[Ints]:
        """The devices [n_ops] of each placement."""
        return [placement.device for placement in self.placements]


def find_starting_placements(
    search: SearchContext, *, plain: bool = True, quick_share: float = QUICK_SHARE, search_share: float = 0.0
) -> StartingPlacements:
    """The placements from which a search begins.

    Quick placers run where no hint is valid. With a `search_share` of the remaining time, a local search goes on from
    there, and `quick_share` is of that share.
    `plain` drops the calls, orders and replicas of placements. Ctrl-C ends the search for starts, not the caller.
    """
    finder = _StartFinder(search, plain, StartingPlacements(bound=search.hints.bound))
    starts = finder.starts
    try:
        for hint in search.hints.placements:
            finder.add(hint)
        if not starts.placements:
            finder.run_quick_placers(quick_share * (search_share or 1.0))
        if search_share and not starts.interrupted:
            finder.run_local_search(search_share)
        if not starts.placements and not starts.infeasible:
            finder.run(LAST_RESORT, {}, LAST_RESORT_SHARE * search.watch.left, on_progress=search.on_progress)
    except KeyboardInterrupt:
        starts.interrupted = True
    return starts


def keeps_rules(problem: Problem, placement: Placement) -> bool:
    """Whether a placement is valid; calls, orders and replicas of its own are judged as well."""
    if len(placement.device) != problem.n_ops:
        return False
    if placement.call is None and placement.order is None and placement.replicas is None:
        return not find_broken_rule(problem, placement.device)
    return judge_placement(problem, placement).valid


@dataclass(frozen=True, slots=True)
class _StartFinder:
    """Runs placers and collects what they propose."""

    search: SearchContext
    plain: bool
    starts: StartingPlacements

    def add(self, placement: Placement) -> None:
        """Keep a placement if it is valid."""
        placement = Placement(placement.device) if self.plain else placement
        started = self.search.watch.elapsed
        if keeps_rules(self.search.problem, placement):
            self.starts.placements.append(placement)
        self.starts.check_seconds = max(self.starts.check_seconds, self.search.watch.elapsed - started)

    def run_quick_placers(self, share: float) -> None:
        """Run the quick placers one after the other; the first valid placement may take more than its share."""
        problem, watch = self.search.problem, self.search.watch
        graph = problem.graph
        end = watch.elapsed + share * watch.left
        cost = PACE * (graph.n_ops + graph.n_tensors + graph.n_edges)
        for name, options in QUICK[problem.objective.kind]:
            left = end - watch.elapsed
            if self.starts.placements and left < cost:
                continue
            if watch.out or self.starts.interrupted or self.starts.infeasible:
                return
            self.run(name, options, left if self.starts.placements else watch.left)

    def run_local_search(self, share: float) -> None:
        """Improve on what was found so far."""
        problem, watch = self.search.problem, self.search.watch
        seconds, latency = share * watch.left, problem.objective.kind == "latency"
        limit = SEARCH_EVALUATIONS if latency and not np.isfinite(seconds) else None
        bound = self.starts.bound or self.search.bound
        found = Hints(tuple(self.starts.placements), bound=bound)
        self.run(SEARCH, {}, seconds, hints=found, evaluations=limit, on_progress=self.search.on_progress)

    def run(
        self,
        name: str,
        options: dict[str, Any],
        seconds: float,
        *,
        hints: Hints = NO_HINTS,
        evaluations: int | None = None,
        on_progress: OnProgress = ignore,
    ) -> None:
        """Run one placer, if it supports the problem, and collect its placement, bound and proof."""
        search, starts, problem = self.search, self.starts, self.search.problem
        placer = create(name, options)
        if placer.supports(problem) is not None:
            return
        budget: Budget = replace(
            search.watch.rest(),
            seconds=seconds,
            latest=search.watch.last,
            iterations=None,
            evaluations=evaluations,
        )
        starts.asked.append(name)
        proposal = run_placer(placer, problem, budget, hints=hints, evaluate=search.evaluate, on_progress=on_progress)
        starts.interrupted |= proposal.reason is Reason.INTERRUPTED
        starts.infeasible = starts.infeasible or proposal.infeasible
        if proposal.bound is not None and (placer.info.replicates or problem.max_replicas == 1):
            starts.bound = max(starts.bound or proposal.bound, proposal.bound, key=lambda bound: bound.value)
        if proposal.placement is not None:
            self.add(proposal.placement)
