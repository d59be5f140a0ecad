"""The linear program of set cover: how many devices it takes to hold every block once, sets mixed at will.

Minimize θ such that the chosen shares of sets hold every block exactly once and no class of devices is used
more than θ times over. Its dual variables are prices of blocks and of devices. Nothing here has to be exact:
whoever uses the prices proves with them.
"""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp

from placewise.model.columns import Bools, Floats, Longs

_WIDER = 2.0


class CoverMaster:
    """The program over the sets added so far.

    A block may be missed or held twice for `spare` [n], which keeps prices within bounds; see `widen`.
    """

    def __init__(self, spare: Floats, machines: Longs) -> None:
        self._solver = solver = pywraplp.Solver("cover", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
        solver.SuppressOutput()
        self._blocks = [solver.Constraint(1.0, 1.0) for _ in spare]
        self._classes = [solver.Constraint(-solver.infinity(), 0.0) for _ in machines]
        objective = solver.Objective()
        objective.SetMinimization()
        often = solver.NumVar(0.0, solver.infinity(), "often")
        objective.SetCoefficient(often, 1.0)
        for row, count in zip(self._classes, machines.tolist(), strict=True):
            row.SetCoefficient(often, -float(count))
        self._spare = spare
        self._spares = []
        for row, cost in zip(self._blocks, spare.tolist(), strict=True):
            for sign in (1.0, -1.0):
                slack = solver.NumVar(0.0, solver.infinity(), "")
                row.SetCoefficient(slack, sign)
                objective.SetCoefficient(slack, cost)
                self._spares.append(slack)
        self._known: set[tuple[int, bytes]] = set()

    def add(self, kind: int, blocks: Bools) -> bool:
        """One more set for devices of class `kind`; False if it was there already."""
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
        """Let prices range further, if blocks are still missed or held twice; False if none is."""
        if all(slack.solution_value() < 1e-9 for slack in self._spares):
            return False
        self._spare = self._spare * _WIDER
        for i, slack in enumerate(self._spares):
            self._solver.Objective().SetCoefficient(slack, float(self._spare[i // 2]))
        return True

    def solve(self) -> tuple[float, Floats, Floats] | None:
        """θ, the prices of the blocks [n] and those of one device of each class; None if the solver fails."""
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            afresh = pywraplp.MPSolverParameters()
            afresh.SetIntegerParam(afresh.INCREMENTALITY, afresh.INCREMENTALITY_OFF)
            if self._solver.Solve(afresh) != pywraplp.Solver.OPTIMAL:
                return None
        blocks = np.array([row.dual_value() for row in self._blocks])
        classes = np.array([row.dual_value() for row in self._classes])
        return float(self._solver.Objective().Value()), blocks, np.maximum(-classes, 0.0)
