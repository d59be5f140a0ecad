"""The fractional assignment: blocks spread over devices in fractions, bounded by prices of their time and memory.

If every device ends by T, blocks can be spread over the devices with Σ time ≤ T on each and within memory. For prices
λ ≥ 0 of the time of m_c equal devices (Σ m_c λ_c ≤ 1) and μ ≥ 0 of bytes, the least total price of all blocks, less
that of the memory there is, is at most T. Column generation (Dantzig and Wolfe 1960) finds good prices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from ortools.linear_solver import pywraplp

from placewise.model.columns import Bools, Floats, Longs

_STEP = 0.2
"""How far prices move from the best ones towards those of the master program."""
_PENALTY = 1e6


def round_down(value: float, terms: int) -> float:
    """A lower bound of the exact sum behind `value`, which has this many terms ≥ 0."""
    return value * (1 - 4 * sys.float_info.epsilon * (terms + 1000))


def block_prices_bound(
    times: Floats,
    usable: Bools,
    weight: Floats,
    capacity: Floats,
    machines: Longs,
    go_on: Callable[[], bool] = lambda: True,
) -> float:
    """The fractional assignment of blocks with `times` [n_blocks, n_classes] and `weight` bytes, in seconds.

    A class has `machines` of equal devices that hold `capacity` bytes together; `usable` pairs may occur. It is weaker
    where `go_on` ends it early.
    """
    priced = np.flatnonzero(np.isfinite(capacity))
    cost = np.where(usable, times, 0.0)
    unusable = np.where(usable, 0.0, np.inf)
    scale = float(np.where(usable, times, np.inf).min(axis=1).sum()) or 1.0
    rows = np.arange(len(times))

    def spread(pace: Floats, per_byte: Floats) -> tuple[float, Floats, Floats]:
        reduced = cost * pace + unusable
        reduced[:, priced] += weight[:, None] * per_byte
        choice = reduced.argmin(axis=1)
        seconds = np.bincount(choice, weights=cost[rows, choice], minlength=len(machines)).astype(np.float64)
        held = np.bincount(choice, weights=weight, minlength=len(machines))[priced].astype(np.float64)
        return round_down(float(reduced[rows, choice].sum()), len(times)), seconds, held

    unit = max(float(weight.sum()), 1.0)
    return find_prices(spread, machines, capacity[priced], scale, unit, go_on=go_on)[0]


def find_prices(
    spread: Callable[[Floats, Floats], tuple[float, Floats, Floats]],
    machines: Longs,
    room: Floats,
    scale: float,
    unit: float,
    *,
    rounds: int = 60,
    least: float = 0.0,
    go_on: Callable[[], bool] = lambda: True,
) -> tuple[float, Floats]:
    """The best bound over prices, in seconds, and these prices; each round gives a valid bound.

    `spread` takes the prices of a second on one of the `machines` of each kind and of a byte in each limited memory of
    `room` bytes; it returns the least price of all blocks, rounded down, and the seconds and bytes that this needs.
    `scale` seconds and `unit` bytes are about as much as all blocks need. It may stop where no more than `least`
    seconds can come out.

    The prices of the master program oscillate: two rounds of three use prices near the best so far (Wentges 1997), the
    third those of the program, which end the search on small problems.
    """
    n = len(machines)
    prices = np.concatenate((np.full(n, 1.0 / machines.sum()), np.zeros(len(room))))
    master, best, best_prices = AssignmentMaster(machines, room / unit), 0.0, prices
    for round_ in range(rounds):
        gained, seconds, held = spread(prices[:n], scale * prices[n:] / unit)
        paid = scale * float(prices[n:] @ (room / unit))
        bound = gained - paid * (1 + 1e-12)
        if bound > best:
            best, best_prices = bound, prices
        master.add(np.concatenate((seconds / scale, held / unit)))
        target, ceiling = master.solve()
        if ceiling * scale - best <= 1e-7 * ceiling * scale or ceiling * scale <= least or not go_on():
            break
        target[:n] /= max(float(machines @ target[:n]), 1.0)
        prices = target if round_ % 3 == 0 else best_prices + _STEP * (target - best_prices)
    return best, best_prices


class AssignmentMaster:
    """The master program of the fractional assignment: a linear program with generated columns, solved by GLOP.

    A column is an assignment: its seconds on each class of devices, then its bytes in limited memories. The program
    mixes columns such that no class needs more than T per device, with a penalty for missing memory, and minimizes T.
    Its dual variables are prices; they need not be exact, as the bound holds for any prices.
    """

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
