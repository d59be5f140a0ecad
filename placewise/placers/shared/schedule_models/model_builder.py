"""Building CP-SAT models of schedules: literals that may be constants, and seconds as whole units.

Windows of a search fix most of a placement. Literals may therefore be plain True or False, and what follows from them
never reaches the solver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placewise.model.columns import Floats, Longs
from placewise.model.problem import Problem

ROUNDED = 1 - 1e-12
"""Covers the rounding of quotients and sums in floating point."""
_LARGEST_SUM = 1 << 44
"""Units of all costs together: far below what 64 bits hold."""

Literal = Any
"""A Boolean variable of CP-SAT, or True, or False."""


@dataclass(frozen=True, slots=True)
class TimeScale:
    """`seconds` per unit: a power of two, so that division is exact, and so are costs that are multiples of it."""

    seconds: float

    def round_down(self, seconds: Floats) -> Longs:
        """Whole units, rounded down; 0 for infinite seconds."""
        return np.floor(np.where(np.isfinite(seconds), seconds, 0.0) / self.seconds).astype(np.int64)

    def lower_bound(self, units: int) -> float:
        """A lower bound in seconds of a value that takes `units` after its costs were rounded down."""
        return max(units, 0) * self.seconds * ROUNDED

    def rounding_error(self, terms: int) -> float:
        """The most seconds that rounding takes from a sum of this many terms."""
        return terms * self.seconds


def time_scale(problem: Problem, value: float, count: int) -> TimeScale:
    """About `count` units for `value` seconds, fewer where the sum of all costs would become too large."""
    seconds, transfer = problem.costs.op_seconds, problem.costs.transfer_seconds
    total = float(np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1, initial=0.0).sum())
    total += float(transfer.max(axis=1, initial=0.0).sum()) * (problem.n_devices + 1)
    total += sum(device.call_overhead for device in problem.cluster) * problem.n_ops
    value = value if 0 < value < math.inf else total
    size = max(value / count, total / _LARGEST_SUM)
    return TimeScale(2.0 ** math.floor(math.log2(size)) if size > 0 else 1.0)


class Sum:
    """A linear sum, collected term by term."""

    def __init__(self) -> None:
        self.constant = 0
        self._variables: list[Any] = []
        self._factors: list[int] = []

    def add(self, factor: int, literal: Any) -> None:
        """Add factor · literal."""
        if literal is True or literal is False:
            self.constant += factor * literal
        elif factor:
            self._variables.append(literal)
            self._factors.append(factor)

    @property
    def largest(self) -> int:
        """The value if every literal is true; factors must not be negative."""
        return self.constant + sum(self._factors)

    def expression(self) -> Any:
        if not self._variables:
            return self.constant
        return cp_model.LinearExpr.weighted_sum(self._variables, self._factors) + self.constant


class ModelBuilder:
    """A CP-SAT model under construction, with helpers that fold constant literals."""

    def __init__(self) -> None:
        self.model = cp_model.CpModel()

    def literal(self) -> Any:
        return self.model.new_bool_var("")

    def number(self, low: int, high: int) -> Any:
        return self.model.new_int_var(low, high, "")

    def one_of(self, literals: list[Literal]) -> None:
        """Require that exactly one literal holds."""
        open_ = [x for x in literals if x is not False]
        if any(x is True for x in open_):
            for x in open_:
                if x is not True:
                    self.model.add(x == 0)
        else:
            self.model.add_exactly_one(open_)

    def either(self, literals: Iterable[Literal]) -> Literal:
        """A literal that is true if one of `literals` is; these exclude each other."""
        open_ = [x for x in literals if x is not False]
        if any(x is True for x in open_):
            return True
        if len(open_) <= 1:
            return open_[0] if open_ else False
        result = self.literal()
        self.model.add(sum(open_) == result)
        return result

    def unless(self, causes: Iterable[Literal], excuse: Literal) -> Literal:
        """A literal that must be true if one of `causes` is and `excuse` is not; it may be true in other cases."""
        open_ = [x for x in causes if x is not False]
        if excuse is True or not open_:
            return False
        if excuse is False:
            if any(x is True for x in open_):
                return True
            if len(open_) == 1:
                return open_[0]
        result = self.literal()
        for cause in open_:
            self.model.add(result >= _plus(cause) - _plus(excuse))
        return result

    def unless_all(self, cause: Literal, excuses: Iterable[Literal]) -> Literal:
        """A literal that must be true if `cause` is and one of `excuses` is not; it may be true in other cases."""
        open_ = [x for x in excuses if x is not True]
        if cause is False or not open_:
            return False
        if any(x is False for x in open_):
            return cause
        result = self.literal()
        for excuse in open_:
            self.model.add(result >= _plus(cause) - excuse)
        return result

    def both(self, one: Literal, other: Literal) -> Literal:
        """A literal that must be true if both are; it may be true in other cases."""
        if one is False or other is False:
            return False
        if one is True or other is True:
            return other if one is True else one
        result = self.literal()
        self.model.add(result >= one + other - 1)
        return result

    def require(self, constraint: Any, *conditions: Literal) -> None:
        """Require `constraint` where all conditions hold."""
        if any(x is False for x in conditions) or constraint is True:
            return
        open_ = [x for x in conditions if x is not True]
        added = self.model.add(constraint)
        if open_:
            added.only_enforce_if(open_)


def negated(literal: Literal) -> Literal:
    """The negation of a literal."""
    return not literal if isinstance(literal, bool) else ~literal


def _plus(literal: Literal) -> Any:
    return int(literal) if isinstance(literal, bool) else literal
