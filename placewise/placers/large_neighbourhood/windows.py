"""windows: large-neighbourhood search. Part of a good placement is freed and solved exactly, again and again.

It starts from the hints or from a quick search, and from then on takes every answer that the judge likes at least
as well. Windows are cut as `placers/timed/latency_windows.py` says for latency, and solved by CP-SAT; for throughput as
`placers/parts` says, and solved by placers of the registry. They grow while the solver finishes them early and shrink
where it does not. Several are solved at once, in threads. Shaw, CP 1998 (large-neighbourhood search).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import (
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
)
from placewise.placers.large_neighbourhood import latency_windows
from placewise.placers.large_neighbourhood.throughput_windows import Search
from placewise.placers.shared.schedule_models.assignment import groups_of
from placewise.placers.shared.schedule_models.incumbents import Known, start
from placewise.placers.shared.schedule_models.time_units import units_of
from placewise.placers.shared.solve import solve_models, solver_parameters
from placewise.simulate import lower_bound

UNITS = 1 << 22
"""Units of a value: no bound is read off a window, and small numbers are quicker."""
MOST_OPS = 3000
ROUNDS = 12
"""Rounds of windows where the budget has no limit."""
SMALLEST, LARGEST = 4, 160
"""Groups in a window."""
WORK = 0.5
"""The most work on one window, in CP-SAT's own measure: about as many seconds."""


@dataclass(frozen=True, slots=True)
class WindowsOptions:
    """`size`: groups in the first windows; `together`: windows solved at once; `search`: the share of the time for a
    local search to start from, 0 for none where there are hints.
    """

    size: int = 16
    together: int = 2
    search: float = 0.4

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("together", self.together)):
            if not isinstance(value, int) or value < 1:
                raise PlacerError(f"windows cannot do with {name}={value}", remedy="give one or more")
        if not 0 <= self.search <= 1:
            raise PlacerError(f"windows cannot do with search={self.search}", remedy="give a share from 0 to 1")


class WindowsPlacer:
    """Anytime; better than local search where good moves are many small moves at once."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="windows",
        summary="parts of a placement solved exactly, again and again",
        source="large-neighbourhood search: Shaw, CP 1998; windows solved by OR-Tools CP-SAT, and by dp in pipelines",
    )
    Options: ClassVar[type[WindowsOptions]] = WindowsOptions

    def __init__(self, options: WindowsOptions | None = None) -> None:
        self.options = options or WindowsOptions()

    def supports(self, problem: Problem) -> str | None:
        objective = problem.objective
        if objective.kind == "throughput":
            return None
        if objective.execution == "sequential":
            return "windows knows no sequential execution: it searches for latency in subgraph or operator execution"
        if problem.constraints.shaped:
            return "windows knows no contiguous or convex stages"
        if problem.n_ops > MOST_OPS:
            return f"{problem.n_ops:,} ops make windows too slow, and {MOST_OPS:,} are the most: use temper or auto"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement found, with calls or an order of its own where they help."""
        problem, watch = search.problem, search.watch
        if problem.objective.kind == "throughput":
            return self._throughput(problem, watch, search.hints, search.evaluate, search.on_progress)
        known = start(problem, watch, search.hints, search.evaluate, search.on_progress, self.options.search)
        if known.best is not None and known.reason is not Reason.INTERRUPTED:
            try:
                _Search(problem, known, self.options, watch, search.on_progress).run()
            except KeyboardInterrupt:
                known.reason = Reason.INTERRUPTED
        return known.answer()

    def _throughput(
        self, problem: Problem, watch: Stopwatch, hints: Hints, evaluate: Evaluate | None, on_progress: OnProgress
    ) -> Proposal:
        """The best placement that windows lead to from the hints, or from what the quick placers find."""
        bound = hints.bound or lower_bound(problem)
        chosen = {"size": self.options.size, "together": self.options.together}
        search = Search(problem, hints, watch, bound, evaluate=evaluate, on_progress=on_progress, **chosen)
        try:
            if not search.found:
                search.begin(self.options.search)
            if search.found and search.reason is not Reason.INTERRUPTED:
                search.run()
        except KeyboardInterrupt:
            search.reason = Reason.INTERRUPTED
        return search.answer()


class _Search:
    """One call: the incumbent, and how large windows of each kind are."""

    def __init__(
        self, problem: Problem, known: Known, options: WindowsOptions, watch: Stopwatch, on_progress: OnProgress
    ) -> None:
        self.problem, self.known, self.options, self.watch, self._tell = problem, known, options, watch, on_progress
        self._groups = groups_of(problem)
        self._neighbours = latency_windows.Neighbours(problem, self._groups)
        self._rng = np.random.default_rng(watch.budget.seed)
        self._size = dict.fromkeys(latency_windows.KINDS, float(options.size))
        assert known.best is not None
        self._now = latency_windows.incumbent_of(problem, self._groups, known.best)

    def run(self) -> None:
        """Windows until the budget is used up or nothing is left to find."""
        rounds, told = 0, 0.0
        while not self.known.closed and rounds < self._most:
            if self.watch.out:
                self.known.reason = Reason.TIME_LIMIT
                return
            if self._round():
                self.known.reason = Reason.INTERRUPTED
                return
            rounds += 1
            if self.watch.elapsed > told + 0.5:
                told = self.watch.elapsed
                self._tell(Progress("windows", told, f"round {rounds}", self.known.value, self.known.bound.value))

    @property
    def _most(self) -> float:
        budget = self.watch.budget
        if budget.iterations is not None:
            return budget.iterations
        return np.inf if np.isfinite(budget.seconds) else ROUNDS

    def _round(self) -> bool:
        """Solve some windows, keep the best answer; whether it was interrupted."""
        kinds = [
            latency_windows.KINDS[int(self._rng.integers(len(latency_windows.KINDS)))]
            for _ in range(self.options.together)
        ]
        programs, budget = [self._program(kind) for kind in kinds], self.watch.budget
        chosen = solver_parameters(self.watch) | {"max_deterministic_time": WORK, "relative_gap_limit": 0.0}
        models = [program.program.model for program in programs]
        solved = solve_models(models, chosen, threads=budget.most_threads, stop=budget.stop)
        for kind, program, answer in zip(kinds, programs, solved, strict=True):
            grow = 1.1 if answer.finished else 0.85
            self._size[kind] = min(max(self._size[kind] * grow, SMALLEST), LARGEST, max(self._groups.n, 1))
            if answer.found:
                self._take(program.placement(answer.solver.value))
        return any(answer.interrupted for answer in solved)

    def _program(self, kind: str) -> Any:
        problem, now = self.problem, self._now
        free = latency_windows.choose(kind, now, self._groups, self._neighbours, int(self._size[kind]), self._rng)
        window, devices = latency_windows.narrowed(problem, self._groups, now, free, self._neighbours, self._rng)
        units = units_of(problem, now.value, UNITS)
        if problem.objective.execution == "operator":
            return latency_windows.queue_window(problem, window, now, free, units)
        return latency_windows.call_window(problem, window, devices, now, free, units, self._rng)

    def _take(self, placement: Placement) -> None:
        """Go on from an answer that is no worse than where it began."""
        self.known.offer(placement)
        there = latency_windows.incumbent_of(self.problem, self._groups, placement)
        if self.known.best is not None and self.known.value < self._now.value:
            self._now = latency_windows.incumbent_of(self.problem, self._groups, self.known.best)
        elif there.value <= self._now.value:
            self._now = there
