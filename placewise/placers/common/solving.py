"""Solving a CP-SAT program so that time limits, signs of life and Ctrl-C all work.

The solver runs in a thread of its own and leaves signals alone, so that Ctrl-C reaches Python as it does everywhere;
the solver is then asked to stop, and what it has is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placewise.placers.base import Stopwatch

_TICK = 0.1
"""Seconds between two looks at the clock of the listener."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What came out: values can be read from `solver` if `found`; `bound` is a whole number, −1 for none."""

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


def parameters(watch: Stopwatch, *, workers: int = 1, most_work: float = np.inf) -> dict[str, Any]:
    """CP-SAT's parameters for what is left of a budget; `most_work`, in its own measure, where that has no limit."""
    chosen: dict[str, Any] = {
        "num_workers": workers,
        "random_seed": watch.budget.seed,
        "relative_gap_limit": watch.budget.gap,
        "max_time_in_seconds": watch.left,
    }
    if watch.budget.iterations is not None or not np.isfinite(watch.budget.seconds):
        work = watch.budget.iterations
        chosen["max_deterministic_time"] = most_work if work is None else float(work)
    return chosen


def solve(
    model: cp_model.CpModel, chosen: dict[str, Any], tell: Callable[[cp_model.CpSolver], None] = lambda _: None
) -> Solved:
    """Solve `model`; `tell` is called now and then meanwhile. KeyboardInterrupt ends it with what there is."""
    solver = cp_model.CpSolver()
    for name, value in chosen.items():
        setattr(solver.parameters, name, value)
    solver.parameters.catch_sigint_signal = False
    status: list[Any] = []
    failure: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            status.append(solver.solve(model))
        except BaseException as error:  # handed on to the caller's thread
            failure.append(error)
        finally:
            over.set()

    interrupted = False
    threading.Thread(target=work, daemon=True).start()
    while not over.is_set():
        try:
            over.wait(_TICK)
            if interrupted:
                solver.stop_search()
            else:
                tell(solver)
        except KeyboardInterrupt:
            interrupted = True
    if failure:
        raise failure[0]
    known = status[0] not in (cp_model.INFEASIBLE, cp_model.MODEL_INVALID)
    bound = int(np.ceil(solver.best_objective_bound - 1e-6)) if known else -1
    return Solved(solver, status[0], bound, interrupted)
