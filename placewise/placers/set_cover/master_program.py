"""The linear program of set cover: how many devices it takes to hold every block once, with fractions of sets.

Minimize θ such that the fractions of sets hold every block exactly once and no class of devices is used more than θ
times. The dual variables are prices of blocks and devices. They need not be exact: the proof holds for any prices.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from ortools.linear_solver import pywraplp

from placewise.model.columns import Bools, Floats, Longs

_WIDER = 1.5
_LONGEST = 1 << 40
"""Milliseconds that the solver can count."""


class Box(NamedTuple):
    """The range of the prices of blocks: `centre` [n] ± `reach` [n]."""

    centre: Floats
    reach: Floats


class CoverMaster:
    """The program over the sets added so far.

    A block may be missed or held twice, at the prices at the border of the box; see `widen`.
    """

    def __init__(self, box: Box, machines: Longs) -> None:
        self._solver = solver = pywraplp.Solver("cover", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
        solver.SuppressOutput()
        self._blocks = [solver.Constraint(1.0, 1.0) for _ in box.centre]
        self._classes = [solver.Constraint(-solver.infinity(), 0.0) for _ in machines]
        objective = solver.Objective()
        objective.SetMinimization()
        often = solver.NumVar(0.0, solver.infinity(), "often")
        objective.SetCoefficient(often, 1.0)
        for row, count in zip(self._classes, machines.tolist(), strict=True):
            row.SetCoefficient(often, -float(count))
        self._missed = [solver.NumVar(0.0, solver.infinity(), "") for _ in self._blocks]
        self._twice = [solver.NumVar(0.0, solver.infinity(), "") for _ in self._blocks]
        for row, missed, twice in zip(self._blocks, self._missed, self._twice, strict=True):
            row.SetCoefficient(missed, 1.0)
            row.SetCoefficient(twice, -1.0)
        self._known: set[tuple[int, bytes]] = set()
        self.box = box
        self._bound()

    def _bound(self) -> None:
        objective, (centre, reach) = self._solver.Objective(), self.box
        for variables, price in ((self._missed, centre + reach), (self._twice, reach - centre)):
            for variable, cost in zip(variables, price.tolist(), strict=True):
                objective.SetCoefficient(variable, cost)

    def add(self, kind: int, blocks: Bools) -> bool:
        """Add a set for devices of class `kind`; False if it is known already."""
        key = (kind, blocks.tobytes())
        if key in self._known:
            return False
        self._known.add(key)
        share = self._solver.NumVar(0.0, self._solver.infinity(), "")
        self._classes[kind].SetCoefficient(share, 1.0)
        for block in np.flatnonzero(blocks).tolist():
            self._blocks[block].SetCoefficient(share, 1.0)
        return True

    def widen(self) -> bool:
        """Move and widen the box where prices reached its border; False if none did."""
        slacks = zip(self._missed, self._twice, strict=True)
        stopped = np.array([one.solution_value() + other.solution_value() > 1e-9 for one, other in slacks])
        if not stopped.any():
            return False
        price = np.array([row.dual_value() for row in self._blocks])
        centre, reach = self.box
        self.box = Box(np.where(stopped, price, centre), np.where(stopped, _WIDER * reach, reach))
        self._bound()
        return True

    def solve(self, seconds: float = math.inf) -> tuple[float, Floats, Floats] | None:
        """θ, the prices of the blocks [n] and those of one device of each class; None if the solver fails, or takes
        longer than `seconds`.
        """
        if math.isfinite(seconds):
            self._solver.SetTimeLimit(int(min(max(seconds * 1000, 1), _LONGEST)))
        started, status = time.monotonic(), self._solver.Solve()
        if status != pywraplp.Solver.OPTIMAL:
            if time.monotonic() - started >= seconds:
                return None
            afresh = pywraplp.MPSolverParameters()
            afresh.SetIntegerParam(afresh.INCREMENTALITY, afresh.INCREMENTALITY_OFF)
            if self._solver.Solve(afresh) != pywraplp.Solver.OPTIMAL:
                return None
        blocks = np.array([row.dual_value() for row in self._blocks])
        classes = np.array([row.dual_value() for row in self._classes])
        return float(self._solver.Objective().Value()), blocks, np.maximum(-classes, 0.0)
