"""The master program of the fractional assignment: a linear program with generated columns, solved by GLOP.

A column is an assignment: its seconds on each class of devices, and its bytes. The program mixes columns such that no
class needs more than T per device, with a penalty for missing memory, and minimizes T. Its dual variables are prices of
time and memory. They need not be exact: the bound holds for any prices.
"""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp

from placewise.model.columns import Floats, Longs

_PENALTY = 1e6


class AssignmentMaster:
    """The program over the assignments added so far; its rows are classes, limited memories, and Σ shares = 1."""

    def __init__(self, machines: Longs, room: Floats) -> None:
        self._n_time = len(machines)
        self._solver = solver = pywraplp.Solver("master", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
        right = (*np.zeros(len(machines)).tolist(), *room.tolist())
        self._rows = [solver.Constraint(-solver.infinity(), bound) for bound in right]
        self._whole = solver.Constraint(1.0, 1.0)
        objective = solver.Objective()
        pace = solver.NumVar(0.0, solver.infinity(), "T")
        objective.SetCoefficient(pace, 1.0)
        for row, count in zip(self._rows, machines.tolist(), strict=False):
            row.SetCoefficient(pace, -float(count))
        for row in self._rows[self._n_time :]:
            missing = solver.NumVar(0.0, solver.infinity(), "")
            row.SetCoefficient(missing, -1.0)
            objective.SetCoefficient(missing, _PENALTY)
        objective.SetMinimization()

    def add(self, column: Floats) -> None:
        """Add an assignment: seconds per class, then bytes per limited memory."""
        share = self._solver.NumVar(0.0, self._solver.infinity(), "")
        for row, amount in zip(self._rows, column.tolist(), strict=True):
            row.SetCoefficient(share, amount)
        self._whole.SetCoefficient(share, 1.0)

    def solve(self) -> tuple[Floats, float]:
        """The prices of the classes' time and of memory, and the least T (with penalties) over all mixtures."""
        self._solver.Solve()
        duals = np.array([row.dual_value() for row in self._rows])
        return np.maximum(-duals, 0.0), float(self._solver.Objective().Value())
