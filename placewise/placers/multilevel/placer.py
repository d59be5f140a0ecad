"""multilevel: place a small problem of groups of ops, then refine the placement with ever smaller groups.

The room `coarsen` makes groups of groups, from fine to coarse: chains, heavy edges, scopes. Placers of the registry
solve the coarsest problem and then search on from its placement, level after level, down to the ops where time allows.
With time left, a new hierarchy respects the best placement (no group spans two devices), and the search starts again
from the top. Every candidate is priced on the ops.

For latency, the first descent moves what a model repeats: a layer in all steps, then in runs of steps, then in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from placewise.coarsen.hierarchy import hierarchy
from placewise.coarsen.scopes import repeated_labels, scope_labels
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason, gap_of
from placewise.placers.base import Hints, PlacerInfo, Progress, SearchContext, Stopwatch, make_sound, run_placer
from placewise.placers.multilevel.levels import Level, level_shares, levels_of, tightened
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import interchangeable, relabel
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.starting_placements import find_starting_placements
from placewise.simulate import Evaluator
from placewise.simulate.judge.memory import device_memory
from placewise.simulate.judge.ranks import mean_op_seconds

Calls = tuple[tuple[str, dict[str, Any]], ...]
SEARCHES: dict[str, Calls] = {
    "throughput": (("local", {}), ("cover", {"bound": False}), ("cpsat", {})),
    "latency": (("local", {"bound": False}),),
}
"""Placers that search on from a hint; the first that supports the problem runs."""
CHAINED: Calls = (("dp", {}), ("local", {}))
MAX_CHAINED = 50_000
"""They run one after the other where stages must form a chain, and elsewhere on the first descent, for at most this
many groups."""
FEW_OPS = 30_000
"""For latency, larger graphs refine the placements of the quick placers from the first descent on: a schedule of groups
that large says little about the ops."""
GROUPING = 2.5e-5
"""Seconds per op for grouping and a search among the groups; with less time left the placement stays as it is."""
EXACT_SETUP, PRICINGS = 3.5e-6, 3
"""Seconds per op, tensor and edge to price one placement of the ops: with time for this many, groups move while all ops
are scheduled."""
STARTING_SHARE = 0.25
"""Of a level's time, at most, for starting placements."""
DESCENT_SHARE = 0.5
"""Of the remaining time, for one descent."""
REGROUPING = 3.0
"""Another descent needs this many times the seconds that the last grouping took."""
BUSY_SHARE, IDLE_DESCENTS = 0.2, 2
"""The search ends after this many descents in a row that use less than this share of their time and find nothing."""
GROUPS = {"throughput": (2000, 100), "latency": (400, 40)}
"""The size of the coarsest problem: at least this many groups, and this many per device."""
MOST_PARTS, REPEATED_SHARE = 64, 0.9
"""With more parts that repeat, nothing is gained by moving them as a whole; and the share of the time for that."""
SWEEPS = 16
"""How often, on the mean, repetitions of a part may be tried on each device before those of smaller parts are."""
FITTING_DESCENTS = 6
"""Descents until a placement fits in memory: groups hide the live activations inside them."""


@dataclass(frozen=True, slots=True)
class MultilevelOptions:
    """`groups`: about how many groups the coarsest problem has (0: the placer chooses).

    `repeated`: for latency, whether all repetitions of a part are moved together `first`, `only` so, or `never`.
    """

    groups: int = 0
    repeated: Literal["first", "only", "never"] = "first"

    def __post_init__(self) -> None:
        if self.groups < 0:
            raise PlacerError(f"multilevel cannot make {self.groups} groups", remedy="give 1 or more, or 0")


class MultilevelPlacer:
    """Anytime, never worse than its hints. Without a time limit it makes one descent, with little work per level."""

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
        """The best placement found on any level, hints included."""
        problem = search.problem
        least, each = GROUPS[problem.objective.kind]
        wanted = self.options.groups or max(least, each * problem.n_devices)
        run = _Descents(search, wanted, bound=search.hints.bound)
        try:
            for hint in search.hints.placements:
                run.offer(hint.device)
            run.refines = run.best is not None
            if problem.objective.kind == "latency" and run.best is None:
                run.start_from_ops()
                run.refines = run.best is not None and problem.n_ops > FEW_OPS
            repeated = self.options.repeated if problem.objective.kind == "latency" else "never"
            if repeated != "never" and run.best is not None:
                run.search_repetitions()
            if repeated != "only":
                run.search_levels()
            elif run.ran_out and run.reason is Reason.FINISHED:
                run.reason = Reason.TIME_LIMIT
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        if run.infeasible:
            return Proposal(None, reason=Reason.PROVED, infeasible=run.infeasible)
        if run.best is None:
            return Proposal(None, run.bound, run.reason, ("multilevel: no placement of groups fits as ops",))
        return Proposal(Placement(relabel(problem, run.best)), run.bound, run.reason)


@dataclass(slots=True)
class _Descents:
    """One call: the best valid placement so far, its value, and the bound.

    `wanted` is the size of the coarsest problem; `refines` says that the first descent already starts from the best
    placement; `number` counts descents; `missing` [n_devices] are the bytes by which candidates did not fit; `ran_out`
    says whether the last search of a level had too little time.
    """

    context: SearchContext
    wanted: int
    refines: bool = False
    best: Ints | None = None
    value: float = np.inf
    bound: Bound | None = None
    reason: Reason = Reason.FINISHED
    infeasible: str = ""
    number: int = 0
    started_from_ops: bool = False
    ran_out: bool = False
    missing: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def problem(self) -> Problem:
        return self.context.problem

    @property
    def watch(self) -> Stopwatch:
        return self.context.watch

    @property
    def finished(self) -> bool:
        """Whether the search must end, or has nothing left to find."""
        floor, gap = (self.bound.value if self.bound else 0.0), max(self.watch.budget.gap, OPTIMAL_GAP)
        stopped = self.watch.out or self.reason is Reason.INTERRUPTED or bool(self.infeasible)
        return stopped or (self.best is not None and gap_of(self.value, floor) <= gap)

    def offer(self, device: Ints) -> None:
        """Keep a placement [n_ops] if it is the best so far; if it does not fit, note what is missing."""
        value = float(self.context.price(device[None])[0])
        if not value < self.value:
            return
        if find_broken_rule(self.problem, device):
            peak = device_memory(self.problem, Placement(device))[1]
            self.missing = np.maximum(peak - self.problem.capacity, 0.0)
        else:
            self.best, self.value = device, value

    def start_from_ops(self) -> None:
        """Offer what quick placers propose for the ops themselves, or the last resort."""
        self.started_from_ops = True
        starts = find_starting_placements(self._context_of(levels_of(self.problem, [])[0], self.watch.left, "ops"))
        self._take_proof(starts.bound, starts.infeasible, interrupted=starts.interrupted)
        for device in starts.devices:
            self.offer(device)

    def search_repetitions(self) -> None:
        """One descent over what the model repeats, where time allows to schedule all ops some times."""
        ops = levels_of(self.problem, [])[0]
        labels = repeated_labels(self.problem) if self._affords(ops, REPEATED_SHARE) else []
        if not labels or labels[-1].max() >= MOST_PARTS:
            return
        levels, left = levels_of(self.problem, labels, exact=True)[1:], REPEATED_SHARE * self.watch.left
        end, seconds, timed = self.watch.elapsed + left, mean_op_seconds(self.problem), bool(np.isfinite(left))
        current: Ints | None = None
        for depth in range(len(levels) - 1, -1, -1):
            if self.finished or self.best is None:
                break
            level, left = levels[depth], max(end - self.watch.elapsed, 0.0)
            coarse = [level.down(device) for device in (self.best, current) if device is not None]
            starts = [device for device in coarse if device is not None]
            if coarse[0] is None:
                starts.append(level.nearest(self.best, seconds))
            tried = SWEEPS * level.problem.n_blocks * level.problem.n_devices if timed else None
            current = self._refine(level, left / (depth + 1), starts, tried)
            if current is not None:
                self.offer(current)

    def search_levels(self) -> None:
        """Descend until the time is over or nothing is left to do; without a time limit, once.

        Without a valid placement further descents follow, each with less memory.
        """
        taken, kind, idle = np.zeros(self.problem.n_devices), interchangeable(self.problem), 0
        timed = bool(np.isfinite(self.watch.budget.seconds))
        if self.best is not None and self.watch.left < GROUPING * self.problem.n_ops:
            self.reason = Reason.TIME_LIMIT
            return
        while not self.finished and idle < IDLE_DESCENTS:
            share = DESCENT_SHARE * self.watch.left
            started, value = self.watch.elapsed, self.value
            self.missing = np.zeros(self.problem.n_devices)
            levels = self._group(taken)
            grouping = self.watch.elapsed - started
            self._descend(levels, share)
            idle = idle + 1 if self.watch.elapsed - started < BUSY_SHARE * share and self.value >= value else 0
            self.number += 1
            if self.best is None:
                taken += [self.missing[kind == k].max() for k in kind.tolist()]
            hopeless = self.best is None and (self.number >= FITTING_DESCENTS or len(levels) == 1)
            if hopeless or (self.best is not None and not timed):
                break
            if not self.finished and self.watch.left < REGROUPING * grouping:
                self.reason = Reason.TIME_LIMIT
                break
        if self.best is None and not self.finished and not self.started_from_ops:
            self.start_from_ops()
        if self.watch.out and self.reason is Reason.FINISHED:
            self.reason = Reason.TIME_LIMIT

    def _group(self, taken: Floats) -> list[Level]:
        """The levels of the next descent, on devices with less memory by `taken` bytes [n_devices].

        The first descent groups freely; later ones, and those from a hint, respect the best placement. For latency
        these schedule every op where time allows.
        """
        problem = tightened(self.problem, taken) if taken.any() else self.problem
        latency = problem.objective.kind == "latency"
        refines = self.best is not None and (self.refines or self.number > 0)
        start = scope_labels(problem) if (self.number % 2 == 1) == latency else None
        labels = hierarchy(problem, wanted=self.wanted, key=self.best if refines else None, start=start)
        ops = levels_of(self.problem, [])[0]
        return [ops, *levels_of(problem, labels, exact=latency and refines and self._affords(ops, DESCENT_SHARE))[1:]]

    def _affords(self, ops: Level, share: float) -> bool:
        """Whether this share of the time is enough to schedule all ops for each candidate."""
        return self.watch.budget.seconds * share >= PRICINGS * EXACT_SETUP * ops.size

    def _descend(self, levels: list[Level], seconds: float) -> None:
        """From the coarsest problem to the finest that time allows: start there, search on from level to level."""
        seconds = seconds if len(levels) > 1 else self.watch.left
        share, end = level_shares(levels, seconds), self.watch.elapsed + seconds
        current: Ints | None = None
        for depth in range(len(levels) - 1, -1, -1):
            if not share[depth] or self.finished:
                break
            level, left = levels[depth], max(end - self.watch.elapsed, 0.0)
            mine = left * share[depth] / sum(share[: depth + 1]) if np.isfinite(left) else np.inf
            coarse = [level.down(device) for device in (current, self.best) if device is not None]
            starts = [device for device in coarse if device is not None]
            if not starts:
                starts = self._start_level(level, mine)
            current = self._refine(level, mine, starts)
            if current is not None:
                self.offer(current)

    def _start_level(self, level: Level, seconds: float) -> list[Ints]:
        """Starting placements of a level's groups, the best first."""
        context = self._context_of(level, seconds, "starting placements")
        starts = find_starting_placements(context, quick_share=STARTING_SHARE)
        bound, proof = (starts.bound, starts.infeasible) if level.problem is self.problem else (None, "")
        self._take_proof(bound, proof, interrupted=starts.interrupted)
        if not starts.placements:
            return []
        devices = _best_first(level.problem, starts.devices, self.watch.budget.threads)
        for device in devices if self.problem.objective.kind == "latency" else devices[:1]:
            self.offer(level.up(device))
        return devices

    def _refine(self, level: Level, seconds: float, starts: list[Ints], tried: int | None = None) -> Ints | None:
        """The best placement [n_ops] that searches on a level find from starts, or the first of these.

        Each prices at most `tried` placements, if given.
        """
        objective, shaped = self.problem.objective.kind, level.problem.constraints.shaped
        devices, end = starts[:], self.watch.elapsed + seconds
        calls = _supporting(SEARCHES[objective], level.problem)[:1]
        if objective == "throughput" and (shaped or (not self.number and level.problem.n_blocks <= MAX_CHAINED)):
            calls = _supporting(CHAINED, level.problem) or calls
        for number, (name, options) in enumerate(calls):
            if self.finished:
                break
            mine = max(end - self.watch.elapsed, 0.0) / (len(calls) - number)
            placer, context = create(name, options), self._context_of(level, mine, name, devices)
            limits = [limit for limit in (tried, context.budget.evaluations) if limit is not None]
            budget = replace(context.budget, evaluations=min(limits, default=None))
            proposal = run_placer(
                placer, level.problem, budget,
                hints=context.hints, evaluate=context.evaluate, on_progress=context.on_progress,
            )  # fmt: skip
            self.ran_out = proposal.reason is Reason.TIME_LIMIT
            finest = level.problem is self.problem
            bound, proof = (
                (make_sound(placer.info, self.problem, proposal).bound, proposal.infeasible) if finest else (None, "")
            )
            self._take_proof(bound, proof, interrupted=proposal.reason is Reason.INTERRUPTED)
            if proposal.placement is not None:
                devices = _best_first(level.problem, [proposal.placement.device, *devices], self.watch.budget.threads)
        return level.up(devices[0]) if devices else None

    def _take_proof(self, bound: Bound | None, infeasible: str, *, interrupted: bool) -> None:
        """Keep a bound and a proof of infeasibility of the ops' own problem, and whether Ctrl-C came."""
        if bound is not None and (self.bound is None or bound.value > self.bound.value):
            self.bound = bound
        self.infeasible = self.infeasible or infeasible
        if interrupted:
            self.reason = Reason.INTERRUPTED

    def _context_of(self, level: Level, seconds: float, label: str, starts: Sequence[Ints] = ()) -> SearchContext:
        """The context of a search for placements of a level's groups."""
        problem = level.problem
        hints = Hints(
            tuple(map(Placement, starts)),
            bound=self.bound if problem is self.problem else None,
        )
        message = f"{problem.n_blocks:,} groups: {label}"

        def report(progress: Progress) -> None:
            value = self.value if self.best is not None else None
            text = f"{message}, {progress.message}"
            self.context.on_progress(Progress("multilevel", self.watch.elapsed, text, value))

        budget = replace(self.watch.rest(), seconds=min(seconds, self.watch.left))
        price = self.context.price if problem.graph.tensors is self.problem.graph.tensors else None
        return SearchContext(problem, budget, hints, price, report)


def _supporting(calls: Calls, problem: Problem) -> list[tuple[str, dict[str, Any]]]:
    """The calls of placers that are registered and support the problem."""
    return [(name, options) for name, options in calls if create(name).supports(problem) is None]


def _best_first(problem: Problem, devices: list[Ints], threads: int | None) -> list[Ints]:
    """Placements of a level's groups by their values there; valid ones come first."""
    values = Evaluator(problem, threads=threads)(np.stack(devices))
    invalid = np.array([bool(find_broken_rule(problem, device)) for device in devices])
    return [devices[k] for k in np.lexsort((values, invalid)).tolist()]
