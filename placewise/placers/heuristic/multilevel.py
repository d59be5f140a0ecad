"""multilevel: solve a small problem of groups of ops, then let ever smaller groups move.

Groups of groups, from fine to coarse, come from the room `coarsen`: chains, heavy edges, scopes. The coarsest problem
goes to the placers that suit it, through the registry, and what they find is searched on, level after level, down to
the ops themselves where the time allows. With time left, groups are made anew, none of them on two devices, and the
placement is searched on from the top. Every candidate is judged on the ops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from placewise.coarsen.hierarchy import hierarchy
from placewise.coarsen.scopes import scope_labels
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason, gap_of
from placewise.placers.base import (
    NO_HINTS,
    Budget,
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    Stopwatch,
    ignore,
    sound,
)
from placewise.placers.common.alike import alike, relabel
from placewise.placers.common.rules import broken
from placewise.placers.heuristic.levels import Level, levels_of, shares, tightened
from placewise.placers.registry import create, names
from placewise.simulate import Evaluator
from placewise.simulate.infeasible import why_infeasible
from placewise.simulate.memory import device_memory

Calls = tuple[tuple[str, dict[str, Any]], ...]
STARTERS: dict[str, Calls] = {
    "throughput": (("single", {}), ("balanced", {}), ("etf", {}), ("etf", {"by": "start"}), ("heft", {}), ("dpl", {}), ("dp", {})),
    "latency": (
        ("single", {}), ("balanced", {}), ("greedy", {}), ("etf", {}), ("etf", {"by": "start"}), ("heft", {}),
        ("critical_path", {}), ("sct", {}),
    ),
}  # fmt: skip
"""Placers that make the first placements of the coarsest problem, where they are quick."""
SEARCHERS: dict[str, Calls] = {
    "throughput": (("local", {}), ("cover", {"bound": False}), ("dp", {})),
    "latency": (("local", {}), ("temper", {})),
}
"""Placers that go on from a hint: the first one that takes the problem."""
LAST_RESORT = "pack"
STARTING_SHARE = 0.25
"""Of the coarsest problem's time, the most for all that start there."""
CYCLE_SHARE = 0.5
"""Of the time that is left, for one way down."""
LEAST_GROUPS, GROUPS_PER_DEVICE = 2000, 100
ROUNDS = 6
"""Tries to make what fits as groups fit as ops: groups do not see the live activations inside them."""


@dataclass(frozen=True, slots=True)
class MultilevelOptions:
    """`groups`: about how many the coarsest problem has (0: 100 per device, at least 2000)."""

    groups: int = 0

    def __post_init__(self) -> None:
        if self.groups < 0:
            raise PlacerError(f"multilevel cannot make {self.groups} groups", remedy="give some, or 0 for its choice")


class MultilevelPlacer:
    """Never worse than its hints; anytime; without a limit one way down, with little work on each level."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="multilevel",
        summary="groups of ops placed, then ever smaller ones, by the other placers",
        source="Hendrickson and Leland, SC 1995; acyclic clusters: Herrmann et al., SIAM J. Sci. Comput. 41 (2019)",
        replicates=True,
    )
    Options: ClassVar[type[MultilevelOptions]] = MultilevelOptions

    def __init__(self, options: MultilevelOptions | None = None) -> None:
        self.options = options or MultilevelOptions()

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(
        self,
        problem: Problem,
        budget: Budget,
        *,
        hints: Hints = NO_HINTS,
        evaluate: Evaluate | None = None,
        on_progress: OnProgress = ignore,
    ) -> Proposal:
        """The best placement met on any level, hints included."""
        missing = why_infeasible(problem)
        if missing:
            return Proposal(None, reason=Reason.PROVED, infeasible=missing)
        if not problem.n_ops:
            return Proposal(Placement(np.zeros(0, np.int32)))
        run = _Run(problem, Stopwatch(budget), evaluate or Evaluator(problem), on_progress, bound=hints.bound)
        wanted = self.options.groups or max(LEAST_GROUPS, GROUPS_PER_DEVICE * problem.n_devices)
        try:
            for hint in hints.placements:
                run.offer(hint.device)
            _search(run, wanted)
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        if run.infeasible:
            return Proposal(None, reason=Reason.PROVED, infeasible=run.infeasible)
        if run.best is None:
            return Proposal(None, run.bound, run.reason, ("multilevel: no placement of groups fits as ops",))
        return Proposal(Placement(relabel(problem, run.best)), run.bound, run.reason)


@dataclass(slots=True)
class _Run:
    """One call: the best placement that keeps the rules so far, and what is known about it."""

    problem: Problem
    watch: Stopwatch
    price: Evaluate
    on_progress: OnProgress
    best: Ints | None = None
    value: float = np.inf
    bound: Bound | None = None
    reason: Reason = Reason.FINISHED
    infeasible: str = ""
    over: Floats = field(default_factory=lambda: np.zeros(0))

    def offer(self, device: Ints) -> None:
        """Keep a placement [n_ops] if it is better than all before; else note by how much it does not fit."""
        value = float(self.price(device[None])[0])
        if not value < self.value:
            return
        if broken(self.problem, device):
            peak = device_memory(self.problem, Placement(device))[1]
            self.over = np.maximum(peak - self.problem.capacity, 0.0)
        else:
            self.best, self.value = device, value

    @property
    def over_with(self) -> bool:
        """Whether nothing is left to do, or to find."""
        floor, gap = (self.bound.value if self.bound else 0.0), max(self.watch.budget.gap, OPTIMAL_GAP)
        stopped = self.watch.out or self.reason is Reason.INTERRUPTED or bool(self.infeasible)
        return stopped or (self.best is not None and gap_of(self.value, floor) <= gap)

    def ask(self, name: str, options: dict[str, Any], level: Level, seconds: float, starts: list[Ints]) -> Ints | None:
        """What a placer makes of a level's problem, from placements of its groups."""
        placer, problem = create(name, options), level.problem
        finest = problem is self.problem
        hints = Hints(tuple(Placement(start) for start in starts), bound=self.bound if finest else None)
        said = f"{problem.n_blocks:,} groups: {name}"

        def tell(progress: Progress) -> None:
            value = self.value if self.best is not None else None
            self.on_progress(Progress("multilevel", self.watch.elapsed, f"{said}, {progress.message}", value))

        budget = replace(self.watch.rest(), seconds=min(seconds, self.watch.left))
        found = placer.propose(problem, budget, hints=hints, evaluate=self.price if finest else None, on_progress=tell)
        if found.reason is Reason.INTERRUPTED:
            self.reason = Reason.INTERRUPTED
        if finest:
            self.infeasible = self.infeasible or found.infeasible
            bound = sound(placer.info, problem, found).bound
            if bound is not None and (self.bound is None or bound.value > self.bound.value):
                self.bound = bound
        return None if found.placement is None else found.placement.device


def _search(run: _Run, wanted: int) -> None:
    """Ways down, one after the other, until the time is over; without a limit one, and what memory asks for."""
    timed = np.isfinite(run.watch.budget.seconds)
    taken, kind = np.zeros(run.problem.n_devices), alike(run.problem)
    number = 0
    while not run.over_with and (
        number < 1 or (run.best is None and number < ROUNDS) or (timed and run.best is not None)
    ):
        problem = tightened(run.problem, taken) if taken.any() else run.problem
        start = None if number % 2 else scope_labels(run.problem)
        labels = hierarchy(problem, wanted=wanted, key=run.best, start=start)
        share = CYCLE_SHARE if labels else 1.0
        run.over[:] = 0.0
        _way_down(run, levels_of(problem, labels), share * run.watch.left)
        if run.best is None and len(run.over):
            for d in range(len(kind)):
                taken[d] += run.over[kind == kind[d]].max()
        number += 1
    if run.best is None and not run.over_with:
        level = levels_of(run.problem, [])[0]
        if create(LAST_RESORT).supports(run.problem) is None:
            found = run.ask(LAST_RESORT, {}, level, run.watch.left, [])
            if found is not None:
                run.offer(found)
    if run.watch.out and run.reason is Reason.FINISHED:
        run.reason = Reason.TIME_LIMIT


def _way_down(run: _Run, levels: list[Level], seconds: float) -> None:
    """From the coarsest problem to the finest that the time allows: start there, go on from level to level."""
    share = shares(levels, seconds)
    end = run.watch.elapsed + seconds
    carried: Ints | None = None
    for depth in range(len(levels) - 1, -1, -1):
        if not share[depth] or run.over_with:
            break
        level, left = levels[depth], max(end - run.watch.elapsed, 0.0)
        mine = left * share[depth] / sum(share[: depth + 1]) if np.isfinite(left) else np.inf
        known = [level.down(device) for device in (carried, run.best) if device is not None]
        starts = [device for device in known if device is not None]
        if not starts:
            starts = _first(run, level, mine)
        carried = _go_on(run, level, mine, starts)
        if carried is not None:
            run.offer(carried)


def _first(run: _Run, level: Level, seconds: float) -> list[Ints]:
    """The placements that quick placers make of a level's groups, the best first."""
    end = run.watch.elapsed + STARTING_SHARE * seconds
    found: list[Ints] = []
    for name, options in STARTERS[run.problem.objective.kind]:
        if name not in names() or create(name, options).supports(level.problem) is not None:
            continue
        left = end - run.watch.elapsed
        if (found and left <= 0) or run.over_with:
            break
        device = run.ask(name, options, level, max(left, 0.0) if found else seconds, [])
        if device is not None and not broken(level.problem, device):
            found.append(device)
    if not found:
        return []
    values = Evaluator(level.problem)(np.stack(found))
    order = np.argsort(values, kind="stable")
    for place in order.tolist() if run.problem.objective.kind == "latency" else order[:1].tolist():
        run.offer(level.up(found[place]))
    return [found[place] for place in order.tolist()]


def _go_on(run: _Run, level: Level, seconds: float, starts: list[Ints]) -> Ints | None:
    """The placement [n_ops] that a search makes of starts on a level, or the first of them."""
    for name, options in SEARCHERS[run.problem.objective.kind]:
        if name in names() and create(name, options).supports(level.problem) is None:
            found = run.ask(name, options, level, seconds, starts)
            return level.up(found) if found is not None else level.up(starts[0]) if starts else None
    return level.up(starts[0]) if starts else None
