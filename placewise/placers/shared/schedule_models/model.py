"""A CP-SAT model in which what is known already costs nothing: literals may be plain True or False.

Windows of a search fix most of a placement. What follows from it is worked out here, so that the solver
never sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ortools.sat.python import cp_model

Literal = Any
"""A Boolean variable of CP-SAT, or True, or False."""


class Sum:
    """A linear sum that is collected term by term."""

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
        """The value where every literal is true and no factor negative."""
        return self.constant + sum(self._factors)

    def expression(self) -> Any:
        if not self._variables:
            return self.constant
        return cp_model.LinearExpr.weighted_sum(self._variables, self._factors) + self.constant


class Program:
    """The model under construction, and the number of its literals and terms, which is what it costs."""

    def __init__(self) -> None:
        self.model = cp_model.CpModel()

    def literal(self) -> Any:
        return self.model.new_bool_var("")

    def number(self, low: int, high: int) -> Any:
        return self.model.new_int_var(low, high, "")

    def one_of(self, literals: list[Literal]) -> None:
        """Exactly one of them holds."""
        open_ = [x for x in literals if x is not False]
        if any(x is True for x in open_):
            for x in open_:
                if x is not True:
                    self.model.add(x == 0)
        else:
            self.model.add_exactly_one(open_)

    def either(self, literals: Iterable[Literal]) -> Literal:
        """True if one of literals that exclude each other is."""
        open_ = [x for x in literals if x is not False]
        if any(x is True for x in open_):
            return True
        if len(open_) <= 1:
            return open_[0] if open_ else False
        result = self.literal()
        self.model.add(sum(open_) == result)
        return result

    def unless(self, causes: Iterable[Literal], excuse: Literal) -> Literal:
        """A literal that must be true if one of `causes` is and `excuse` is not; nothing keeps it from being true."""
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
        """A literal that must be true if `cause` is and one of `excuses` is not; nothing keeps it from being true."""
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
        """A literal that must be true if both are; nothing keeps it from being true."""
        if one is False or other is False:
            return False
        if one is True or other is True:
            return other if one is True else one
        result = self.literal()
        self.model.add(result >= one + other - 1)
        return result

    def require(self, constraint: Any, *conditions: Literal) -> None:
        """`constraint` holds where all conditions do."""
        if any(x is False for x in conditions) or constraint is True:
            return
        open_ = [x for x in conditions if x is not True]
        added = self.model.add(constraint)
        if open_:
            added.only_enforce_if(open_)


def negated(literal: Literal) -> Literal:
    """Not `literal`."""
    return not literal if isinstance(literal, bool) else ~literal


def _plus(literal: Literal) -> Any:
    return int(literal) if isinstance(literal, bool) else literal
