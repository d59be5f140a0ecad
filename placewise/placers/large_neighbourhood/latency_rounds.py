"""Rounds of windows for latency: each is a CP-SAT model in which a part of the placement is free."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewise.model.placement import Placement
from placewise.model.result import Reason
from placewise.placers.base import Progress, SearchContext
from placewise.placers.large_neighbourhood import latency_windows
from placewise.placers.shared.schedule_models.assignment import op_groups
from placewise.placers.shared.schedule_models.incumbent import Incumbent
from placewise.placers.shared.schedule_models.model_builder import time_scale
from placewise.placers.shared.solve import solve_models, solver_parameters

UNITS = 1 << 22
"""Units of a value: a window proves no bound, and small numbers are quicker."""
ROUNDS = 12
"""Rounds of windows where the budget has no limit."""
SMALLEST, LARGEST = 4, 160
"""OpGroups in a window."""
STEP = 5e-4
"""Of the value: the least gain that a window looks for. Solvers that may gain less do so again and again, by one unit
each time, which their own measure of work hardly counts.
"""
WORK = 0.5
"""The most work on one window, in CP-SAT's own measure: about as many seconds."""


class LatencyWindows:
    """One call: the incumbent, the placement from which windows are cut, and their size for each kind."""

    def __init__(self, search: SearchContext, incumbent: Incumbent, *, size: int, together: int) -> None:
        self.search, self.incumbent, self.together = search, incumbent, together
        self._groups = op_groups(search.problem)
        self._neighbours = latency_windows.GroupNeighbours(search.problem, self._groups)
        self._rng = np.random.default_rng(search.budget.seed)
        self._size = dict.fromkeys(latency_windows.KINDS, float(size))
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
            latency_windows.KINDS[int(self._rng.integers(len(latency_windows.KINDS)))] for _ in range(self.together)
        ]
        models, budget = [self._model(kind) for kind in kinds], self.search.budget
        chosen = solver_parameters(self.search.watch) | {"max_deterministic_time": WORK, "relative_gap_limit": 0.0}
        if self.search.problem.objective.op_by_op:  # linear relaxations of queues bound next to nothing
            chosen["linearization_level"] = 0
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
        if problem.objective.op_by_op:
            model: Any = latency_windows.operator_window(problem, window, now, free, scale)
        else:
            model = latency_windows.subgraph_window(problem, window, devices, now, free, scale, self._rng)
        latency_windows.count_in_steps(model, STEP)
        return model

    def _take(self, placement: Placement) -> None:
        """Continue from a solution that is no worse than the current placement."""
        self.incumbent.offer(placement)
        state = latency_windows.window_state(self.search.problem, self._groups, placement)
        if self.incumbent.best is not None and self.incumbent.value < self._now.value:
            self._now = latency_windows.window_state(self.search.problem, self._groups, self.incumbent.best)
        elif state.value <= self._now.value:
            self._now = state
