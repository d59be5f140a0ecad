"""windows: large-neighbourhood search. Part of a good placement is freed and solved exactly, again and again.

The search starts from the hints and a short local search, and accepts every solution that the judge prices no higher.
For latency CP-SAT solves the windows (`latency_windows.py`), for throughput placers of the registry do
(`throughput_windows.py`). Windows grow while the solver finishes early and shrink where it does not. Several are solved
at once, in threads. Shaw, CP 1998 (large-neighbourhood search).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, Progress, SearchContext
from placewise.placers.large_neighbourhood import latency_windows
from placewise.placers.large_neighbourhood.throughput_windows import ThroughputWindows
from placewise.placers.shared.schedule_models.assignment import op_groups
from placewise.placers.shared.schedule_models.incumbent import Incumbent, find_incumbent
from placewise.placers.shared.schedule_models.model_builder import time_scale
from placewise.placers.shared.solve import solve_models, solver_parameters

UNITS = 1 << 22
"""Units of a value: a window proves no bound, and small numbers are quicker."""
MAX_OPS = 3000
ROUNDS = 12
"""Rounds of windows where the budget has no limit."""
SMALLEST, LARGEST = 4, 160
"""OpGroups in a window."""
WORK = 0.5
"""The most work on one window, in CP-SAT's own measure: about as many seconds."""


@dataclass(frozen=True, slots=True)
class WindowsOptions:
    """`size`: groups in the first windows; `together`: windows solved at once; `search`: the share of the time for a
    local search first.
    """

    size: int = 16
    together: int = 2
    search: float = 0.4

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("together", self.together)):
            if not isinstance(value, int) or value < 1:
                raise PlacerError(f"windows does not support {name}={value}", remedy="give 1 or more")
        if not 0 <= self.search <= 1:
            raise PlacerError(f"windows does not support search={self.search}", remedy="give a share from 0 to 1")


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
            return "windows does not support sequential execution, only subgraph and operator execution for latency"
        if problem.constraints.shaped:
            return "windows does not support contiguous or convex stages for latency"
        if problem.n_ops > MAX_OPS:
            return f"{problem.n_ops:,} ops make windows too slow, and {MAX_OPS:,} are the most: use local or auto"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement found, with calls or an order of its own where they help."""
        options = self.options
        if search.problem.objective.kind == "throughput":
            windows = ThroughputWindows(search, size=options.size, together=options.together)
            windows.start(options.search)
            try:
                windows.run()
            except KeyboardInterrupt:
                windows.reason = Reason.INTERRUPTED
            return windows.answer()
        incumbent = find_incumbent(search, options.search)
        if incumbent.best is not None and incumbent.reason is not Reason.INTERRUPTED:
            try:
                _LatencyWindows(search, incumbent, options).run()
            except KeyboardInterrupt:
                incumbent.reason = Reason.INTERRUPTED
        return incumbent.answer()


class _LatencyWindows:
    """One call: the incumbent, the placement from which windows are cut, and their size for each kind."""

    def __init__(self, search: SearchContext, incumbent: Incumbent, options: WindowsOptions) -> None:
        self.search, self.incumbent, self.options = search, incumbent, options
        self._groups = op_groups(search.problem)
        self._neighbours = latency_windows.GroupNeighbours(search.problem, self._groups)
        self._rng = np.random.default_rng(search.budget.seed)
        self._size = dict.fromkeys(latency_windows.KINDS, float(options.size))
        assert incumbent.best is not None
        self._now = latency_windows.window_state(search.problem, self._groups, incumbent.best)

    def run(self) -> None:
        """Solve windows until the budget is exhausted or the incumbent is proved optimal."""
        rounds, reported, watch, incumbent = 0, 0.0, self.search.watch, self.incumbent
        while not incumbent.optimal and rounds < self._most_rounds:
            if watch.out:
                incumbent.reason = Reason.TIME_LIMIT
                return
            if self._run_round():
                incumbent.reason = Reason.INTERRUPTED
                return
            rounds += 1
            if watch.elapsed > reported + 0.5:
                reported = watch.elapsed
                self.search.on_progress(
                    Progress("windows", reported, f"round {rounds}", incumbent.value, incumbent.bound.value)
                )

    @property
    def _most_rounds(self) -> float:
        budget = self.search.budget
        if budget.iterations is not None:
            return budget.iterations
        return np.inf if np.isfinite(budget.seconds) else ROUNDS

    def _run_round(self) -> bool:
        """Solve some windows and keep the best solution; whether Ctrl-C came."""
        kinds = [
            latency_windows.KINDS[int(self._rng.integers(len(latency_windows.KINDS)))]
            for _ in range(self.options.together)
        ]
        models, budget = [self._model(kind) for kind in kinds], self.search.budget
        chosen = solver_parameters(self.search.watch) | {"max_deterministic_time": WORK, "relative_gap_limit": 0.0}
        programs = [model.builder.model for model in models]
        solutions = solve_models(programs, chosen, threads=budget.most_threads, stop=budget.stop)
        for kind, model, solved in zip(kinds, models, solutions, strict=True):
            grow = 1.1 if solved.finished else 0.85
            self._size[kind] = min(max(self._size[kind] * grow, SMALLEST), LARGEST, max(self._groups.n, 1))
            if solved.found:
                self._take(model.placement(solved.solver.value))
        return any(solved.interrupted for solved in solutions)

    def _model(self, kind: str) -> Any:
        """The model of a new window of some kind."""
        problem, now = self.search.problem, self._now
        free = latency_windows.choose_groups(
            kind, now, self._groups, self._neighbours, int(self._size[kind]), self._rng
        )
        window, devices = latency_windows.narrow_domains(problem, self._groups, now, free, self._neighbours, self._rng)
        scale = time_scale(problem, now.value, UNITS)
        if problem.objective.execution == "operator":
            return latency_windows.operator_window(problem, window, now, free, scale)
        return latency_windows.subgraph_window(problem, window, devices, now, free, scale, self._rng)

    def _take(self, placement: Placement) -> None:
        """Continue from a solution that is no worse than the current placement."""
        self.incumbent.offer(placement)
        state = latency_windows.window_state(self.search.problem, self._groups, placement)
        if self.incumbent.best is not None and self.incumbent.value < self._now.value:
            self._now = latency_windows.window_state(self.search.problem, self._groups, self.incumbent.best)
        elif state.value <= self._now.value:
            self._now = state
