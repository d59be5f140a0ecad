"""multilevel: solve a small problem of groups of ops, then let ever smaller groups move.

Groups of groups, from fine to coarse, come from the room `coarsen`: chains, heavy edges, scopes. The coarsest problem
goes to the placers that suit it, through the registry, and what they find is searched on, level after level, down to
the ops themselves where the time allows. With time left, groups are made anew, none of them on two devices, and the
placement is searched on from the top. Every candidate is judged on the ops. Probabilities among the hints are those
of groups by the means of their ops.
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
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
    run_placer,
    sound,
)
from placewise.placers.multilevel.levels import Level, levels_of, shares, tightened
from placewise.placers.registry import create, known_names
from placewise.placers.shared.interchangeable import interchangeable, relabel
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator
from placewise.simulate.judge.memory import device_memory

Calls = tuple[tuple[str, dict[str, Any]], ...]
STARTERS: dict[str, Calls] = {
    "throughput": (
        ("single", {}), ("balanced", {}), ("etf", {}), ("etf", {"by": "start"}), ("heft", {}), ("dpl", {}),
    ),
    "latency": (
        ("single", {}), ("balanced", {}), ("greedy", {}), ("etf", {}), ("etf", {"by": "start"}), ("heft", {}),
        ("critical_path", {}), ("sct", {}),
    ),
}  # fmt: skip
"""Placers that make the first placements of the coarsest problem, where they are quick."""
SEARCHERS: dict[str, Calls] = {
    "throughput": (("local", {}), ("cover", {"bound": False}), ("cpsat", {})),
    "latency": (("temper", {"bound": False}),),
}
"""Placers that go on from a hint: the first one that takes the problem."""
CHAINED: Calls = (("dp", {}), ("local", {}))
MOST_CHAINED = 50_000
"""Asked one after the other where stages must form a chain; on the first way down also where they need not, with so
many groups at most."""
WHOLE: Calls = (("heft", {}), ("critical_path", {}), ("etf", {}))
"""For latency, of which groups know less than ops do: what is asked to place the ops themselves, where it is quick."""
QUICK, WHOLE_SHARE = 3.5e-6, 0.1
"""Seconds per op, tensor and edge that they may need, and the most of the time for each; the first one may take all
where there is nothing yet."""
FEW_OPS, FALLBACK = 30_000, "topo"
"""With more ops, what they find is searched on from the first way down, and if they have no time this placer is asked:
what groups of so many ops are scheduled as says little about the ops."""
GROUPING = 2.5e-5
"""Seconds per op for making groups and searching among them: with less a placement stays as it is."""
PRICINGS = 3
"""Where there is time for so much of that, all ops are scheduled when groups move."""
LAST_RESORT = "pack"
STARTING_SHARE = 0.25
"""Of the coarsest problem's time, the most for all that start there."""
CYCLE_SHARE = 0.5
"""Of the time that is left, for one way down."""
REGROUPING = 3.0
"""Another way down needs so many times the seconds that grouping took for the last one."""
WORKING, IDLE = 0.2, 2
"""So many ways down, one after the other, that neither take this share of their time nor find anything are the last."""
GROUPS = {"throughput": (2000, 100), "latency": (400, 40)}
"""About how many groups are fewest: at least so many, and so many per device."""
ROUNDS = 6
"""Tries to make what fits as groups fit as ops: groups do not see the live activations inside them."""


@dataclass(frozen=True, slots=True)
class MultilevelOptions:
    """`groups`: about how many the coarsest problem has (0: the placer's choice)."""

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

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement met on any level, hints included."""
        problem = search.problem
        run = _Run(
            problem,
            search.watch,
            search.price,
            search.on_progress,
            search.hints.probabilities,
            bound=search.hints.bound,
        )
        least, each = GROUPS[problem.objective.kind]
        wanted = self.options.groups or max(least, each * problem.n_devices)
        try:
            for hint in search.hints.placements:
                run.offer(hint.device)
            run.hinted = run.best is not None
            if problem.objective.kind == "latency":
                _whole(run)
                run.hinted |= run.best is not None and problem.n_ops > FEW_OPS
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
    likely: Floats | None
    hinted: bool = False
    best: Ints | None = None
    value: float = np.inf
    bound: Bound | None = None
    reason: Reason = Reason.FINISHED
    infeasible: str = ""
    number: int = 0
    over: Floats = field(default_factory=lambda: np.zeros(0))

    def offer(self, device: Ints) -> None:
        """Keep a placement [n_ops] if it is better than all before; else note by how much it does not fit."""
        value = float(self.price(device[None])[0])
        if not value < self.value:
            return
        if find_broken_rule(self.problem, device):
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
        likely = None if self.likely is None else level.mean(self.likely)
        placements = tuple(Placement(start) for start in starts)
        hints = Hints(placements, probabilities=likely, bound=self.bound if finest else None)
        said = f"{problem.n_blocks:,} groups: {name}"

        def tell(progress: Progress) -> None:
            value = self.value if self.best is not None else None
            self.on_progress(Progress("multilevel", self.watch.elapsed, f"{said}, {progress.message}", value))

        budget = replace(self.watch.rest(), seconds=min(seconds, self.watch.left))
        price = self.price if problem.graph.tensors is self.problem.graph.tensors else None
        found = run_placer(placer, problem, budget, hints=hints, evaluate=price, on_progress=tell)
        if found.reason is Reason.INTERRUPTED:
            self.reason = Reason.INTERRUPTED
        if finest:
            self.infeasible = self.infeasible or found.infeasible
            bound = sound(placer.info, problem, found).bound
            if bound is not None and (self.bound is None or bound.value > self.bound.value):
                self.bound = bound
        return None if found.placement is None else found.placement.device


def _search(run: _Run, wanted: int) -> None:
    """Ways down, one after the other, until the time is over or they have nothing to do; without a limit, one.

    More where nothing fits yet: with less memory each time.
    """
    taken, kind, idle = np.zeros(run.problem.n_devices), interchangeable(run.problem), 0
    if run.best is not None and run.watch.left < GROUPING * run.problem.n_ops:
        run.reason = Reason.TIME_LIMIT
        return
    while not run.over_with and idle < IDLE:
        share = CYCLE_SHARE * run.watch.left
        begun, value = run.watch.elapsed, run.value
        run.over = np.zeros(run.problem.n_devices)
        levels = _levels(run, wanted, taken)
        grouping = run.watch.elapsed - begun
        _way_down(run, levels, share)
        idle = idle + 1 if run.watch.elapsed - begun < WORKING * share and run.value >= value else 0
        run.number += 1
        if run.best is None:
            taken += [run.over[kind == k].max() for k in kind.tolist()]
        hopeless = run.best is None and (run.number >= ROUNDS or len(levels) == 1)
        if hopeless or (run.best is not None and not np.isfinite(run.watch.budget.seconds)):
            break
        if not run.over_with and run.watch.left < REGROUPING * grouping:
            run.reason = Reason.TIME_LIMIT
            break
    if run.best is None and not run.over_with and create(LAST_RESORT).supports(run.problem) is None:
        found = run.ask(LAST_RESORT, {}, levels_of(run.problem, [])[0], run.watch.left, [])
        if found is not None:
            run.offer(found)
    if run.watch.out and run.reason is Reason.FINISHED:
        run.reason = Reason.TIME_LIMIT


def _levels(run: _Run, wanted: int, taken: Floats) -> list[Level]:
    """The levels of the next way down, on devices of which so many bytes are taken.

    The first one is free to go anywhere, the others and those from a hint respect what there is. For latency these
    schedule every op where there is time for it.
    """
    problem = tightened(run.problem, taken) if taken.any() else run.problem
    latency = problem.objective.kind == "latency"
    again = run.best is not None and (run.hinted or run.number > 0)
    start = scope_labels(problem) if (run.number % 2 == 1) == latency else None
    labels = hierarchy(problem, wanted=wanted, key=run.best if again else None, start=start)
    affordable = run.watch.budget.seconds * CYCLE_SHARE >= PRICINGS * QUICK * levels_of(problem, [])[0].size
    levels = levels_of(problem, labels, exact=latency and again and affordable)
    return [*levels_of(run.problem, []), *levels[1:]]


def _whole(run: _Run) -> None:
    """Offer what quick placers make of the ops themselves."""
    level = levels_of(run.problem, [])[0]
    cost = QUICK * level.size
    for name, options in WHOLE:
        most = WHOLE_SHARE * run.watch.left
        enough = run.watch.left if run.best is None else most
        if _takes(name, run.problem) and enough >= cost:
            device = run.ask(name, options, level, max(most, cost), [])
            if device is not None and run.reason is not Reason.INTERRUPTED:
                run.offer(device)
    if run.best is None and run.problem.n_ops > FEW_OPS and _takes(FALLBACK, run.problem):
        device = run.ask(FALLBACK, {}, level, run.watch.left, [])
        if device is not None:
            run.offer(device)


def _way_down(run: _Run, levels: list[Level], seconds: float) -> None:
    """From the coarsest problem to the finest that the time allows: start there, go on from level to level."""
    seconds = seconds if len(levels) > 1 else run.watch.left
    share, end = shares(levels, seconds), run.watch.elapsed + seconds
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
        if not _takes(name, level.problem):
            continue
        left = end - run.watch.elapsed
        if (found and left <= 0) or run.over_with:
            break
        device = run.ask(name, options, level, max(left, 0.0) if found else seconds, [])
        if device is not None:
            found.append(device)
    if not found:
        return []
    found = _best_first(level.problem, found, run.watch.budget.threads)
    for device in found if run.problem.objective.kind == "latency" else found[:1]:
        run.offer(level.up(device))
    return found


def _go_on(run: _Run, level: Level, seconds: float, starts: list[Ints]) -> Ints | None:
    """The best placement [n_ops] that searches make of starts on a level, or the first of them."""
    objective, shaped = run.problem.objective.kind, level.problem.constraints.shaped
    end, found = run.watch.elapsed + seconds, starts[:]
    calls = [call for call in SEARCHERS[objective] if _takes(call[0], level.problem)][:1]
    if objective == "throughput" and (shaped or (not run.number and level.problem.n_blocks <= MOST_CHAINED)):
        calls = [call for call in CHAINED if _takes(call[0], level.problem)] or calls
    for number, (name, options) in enumerate(calls):
        if run.over_with:
            break
        mine = max(end - run.watch.elapsed, 0.0) / (len(calls) - number)
        device = run.ask(name, options, level, mine, found)
        if device is not None:
            found = _best_first(level.problem, [device, *found], run.watch.budget.threads)
    return level.up(found[0]) if found else None


def _takes(name: str, problem: Problem) -> bool:
    return name in known_names() and create(name).supports(problem) is None


def _best_first(problem: Problem, found: list[Ints], threads: int | None) -> list[Ints]:
    """Placements of a level's groups, by their values there; those that keep the rules before those that do not."""
    values = Evaluator(problem, threads=threads)(np.stack(found))
    bad = np.array([bool(find_broken_rule(problem, device)) for device in found])
    return [found[place] for place in np.lexsort((values, bad)).tolist()]
