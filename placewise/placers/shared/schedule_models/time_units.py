"""Seconds as whole units, rounded down, so that what a program proves about units is true of seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Floats, Longs
from placewise.model.problem import Problem

ROUNDED = 1 - 1e-12
"""Covers the rounding of quotients and sums in floating point."""
_LARGEST = 1 << 44
"""No sum of a program comes near what 64 bits hold."""


@dataclass(frozen=True, slots=True)
class Units:
    """`seconds` per unit: a power of two, so that dividing by it is exact and costs that are its multiples are too."""

    seconds: float

    def of(self, seconds: Floats) -> Longs:
        """Whole units, rounded down; 0 where something cannot be."""
        units: Longs = np.floor(np.where(np.isfinite(seconds), seconds, 0.0) / self.seconds).astype(np.int64)
        return units

    def bound(self, units: int) -> float:
        """Seconds that are surely no more than what took `units` before costs were rounded down."""
        return max(units, 0) * self.seconds * ROUNDED

    def error(self, terms: int) -> float:
        """What rounding can hide at most in a sum of so many terms, in seconds."""
        return terms * self.seconds


def units_of(problem: Problem, value: float, count: int) -> Units:
    """About `count` units for `value` seconds, fewer where the sum of all costs would become too large."""
    seconds, transfer = problem.costs.op_seconds, problem.costs.transfer_seconds
    total = float(np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1, initial=0.0).sum())
    total += float(transfer.max(axis=1, initial=0.0).sum()) * (problem.n_devices + 1)
    total += sum(device.call_overhead for device in problem.cluster) * problem.n_ops
    value = value if 0 < value < math.inf else total
    size = max(value / count, total / _LARGEST)
    return Units(2.0 ** math.floor(math.log2(size)) if size > 0 else 1.0)
