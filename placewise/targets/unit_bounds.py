"""A bound for one sample on devices that run one thing at a time, where memory is short.

Every op takes its seconds on one device, and all of them add up. With prices λ ≥ 0 for the bytes of each device,
Σ over blocks of min over devices (seconds + λ · bytes) − Σ λ · capacity is below every placement (Lagrange). The prices
are the dual values of the linear program; any others would prove less, and nothing wrong.
"""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp

from placewise.model.columns import Floats
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import unshared_bytes

MOST = 20_000
"""Blocks times devices, at most, in the linear program."""


def assignment_bound(problem: Problem) -> Bound:
    """The bound of a problem of sequential latency; 0 for any other, or where the program would be large."""
    seconds = _block_seconds(problem)
    if problem.objective.kind != "latency" or problem.objective.execution != "sequential" or seconds.size > MOST:
        return Bound(0.0, "none")
    weight = unshared_bytes(problem)
    limited = np.isfinite(problem.capacity)
    prices = _find_prices(seconds, weight, problem.capacity, limited)
    priced = np.where(np.isfinite(seconds), seconds + prices * weight[:, None], np.inf)
    capacity = np.where(limited, problem.capacity, 0.0)
    value = float(priced.min(axis=1).sum()) * (1 - 1e-9) - float(prices @ capacity) * (1 + 1e-9)
    return Bound(max(value, 0.0), "seconds and memory of every block")


def _block_seconds(problem: Problem) -> Floats:
    """Seconds [blocks, devices]; inf where a block cannot be."""
    table = np.where(problem.allowed, problem.costs.op_seconds, np.inf)
    seconds = np.zeros((problem.n_blocks, problem.n_devices))
    np.add.at(seconds, problem.block, table)
    return seconds


def _find_prices(seconds: Floats, weight: Floats, capacity: Floats, limited: Floats) -> Floats:
    """Seconds per byte of every device; 0 for all if the program has no solution."""
    solver = pywraplp.Solver("assignment", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
    unit, prices = max(float(weight.max(initial=0.0)), 1.0), np.zeros(len(capacity))
    rooms = {d: solver.Constraint(-solver.infinity(), capacity[d] / unit) for d in np.flatnonzero(limited).tolist()}
    goal = solver.Objective()
    for block, row in enumerate(seconds):
        once = solver.Constraint(1.0, 1.0)
        for device in np.flatnonzero(np.isfinite(row)).tolist():
            share = solver.NumVar(0.0, solver.infinity(), "")
            once.SetCoefficient(share, 1.0)
            goal.SetCoefficient(share, float(row[device]))
            if device in rooms:
                rooms[device].SetCoefficient(share, float(weight[block] / unit))
    goal.SetMinimization()
    if solver.Solve() == pywraplp.Solver.OPTIMAL:
        for device, room in rooms.items():
            prices[device] = max(-room.dual_value(), 0.0) / unit
    return prices
