"""Solving CP-SAT models so that time limits, progress reports and Ctrl-C all work.

The solver runs in a thread of its own and leaves signals alone, so that Ctrl-C reaches Python as usual. The solver is
then asked to stop, and its best solution is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placewise import _native
from placewise.placers.base import Stopwatch

_TICK = 0.1
"""Seconds between two calls of the progress listener."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The result: values can be read from `solver` if `found`; `bound` is a whole number, −1 for none."""

    solver: cp_model.CpSolver
    status: Any
    bound: int
    interrupted: bool

    @property
    def found(self) -> bool:
        return self.status in (cp_model.OPTIMAL, cp_model.FEASIBLE)

    @property
    def finished(self) -> bool:
        return self.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)


def solver_parameters(watch: Stopwatch, *, workers: int = 1, most_work: float = np.inf) -> dict[str, Any]:
    """CP-SAT's parameters for the rest of a budget; without a limit, `most_work` in its deterministic time applies."""
    values: dict[str, Any] = {
        "num_workers": workers,
        "random_seed": watch.budget.seed,
        "relative_gap_limit": watch.budget.gap,
        "max_time_in_seconds": watch.left,
    }
    if watch.budget.iterations is not None or not np.isfinite(watch.budget.seconds):
        work = watch.budget.iterations
        values["max_deterministic_time"] = most_work if work is None else float(work)
    return values


def solve_model(
    model: cp_model.CpModel,
    values: dict[str, Any],
    report: Callable[[cp_model.CpSolver], None] = lambda _: None,
    *,
    stop: _native.StopFlag | None = None,
) -> Solved:
    """Solve `model`, calling `report` at intervals. KeyboardInterrupt and `stop` end it with its best solution."""
    return solve_models([model], values, report, stop=stop)[0]


def solve_models(
    models: Sequence[cp_model.CpModel],
    values: dict[str, Any],
    report: Callable[[cp_model.CpSolver], None] = lambda _: None,
    *,
    threads: int | None = None,
    stop: _native.StopFlag | None = None,
) -> list[Solved]:
    """Solve several models, up to `threads` at once (None: all), each in a thread of its own; see `solve_model`.

    The time limit holds for all of them together.
    """
    slots, until = threading.Semaphore(threads or len(models)), time.monotonic() + values["max_time_in_seconds"]
    jobs: list[_Job] = []
    interrupted = False
    try:
        for model in models:
            jobs.append(_Job(model, values, slots, until))
    except KeyboardInterrupt:
        for job in jobs:
            job.stop()
        raise
    while running := [job for job in jobs if not job.over.is_set()]:
        try:
            running[0].over.wait(_TICK)
            interrupted |= stop is not None and stop.is_set()
            if interrupted:
                for job in jobs:
                    job.stop()
            else:
                report(jobs[0].solver)
        except KeyboardInterrupt:
            interrupted = True
    return [job.solved(interrupted) for job in jobs]


class _Job:
    """One model, solved as soon as a slot is free. An event marks its end, since joining a thread blocks Ctrl-C."""

    def __init__(
        self, model: cp_model.CpModel, values: dict[str, Any], slots: threading.Semaphore, until: float
    ) -> None:
        self.model, self.over, self.solver = model, threading.Event(), cp_model.CpSolver()
        self._slots, self._until, self._stopped = slots, until, False
        self._status: Any = None
        self._failure: BaseException | None = None
        for name, value in values.items():
            setattr(self.solver.parameters, name, value)
        self.solver.parameters.catch_sigint_signal = False
        threading.Thread(target=self._work, daemon=True).start()

    def stop(self) -> None:
        """Ask the solver to stop. Call it again until the job is over: a solver that has not started ignores it."""
        self._stopped = True
        self.solver.stop_search()

    def _work(self) -> None:
        try:
            with self._slots:
                seconds = 0.0 if self._stopped else max(self._until - time.monotonic(), 0.0)
                self.solver.parameters.max_time_in_seconds = seconds
                self._status = self.solver.solve(self.model)
        except BaseException as error:  # raised again in the caller's thread
            self._failure = error
        finally:
            self.over.set()

    def solved(self, interrupted: bool) -> Solved:
        if self._failure is not None:
            raise self._failure
        known = self._status not in (cp_model.INFEASIBLE, cp_model.MODEL_INVALID)
        bound = int(np.ceil(self.solver.best_objective_bound - 1e-6)) if known else -1
        return Solved(self.solver, self._status, bound, interrupted)
