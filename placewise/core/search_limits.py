"""When a search ends: the limits of every function and command, as a `Budget`."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

from placewise._util.units import parse_fraction, parse_seconds
from placewise.errors import InputError
from placewise.placers.base import Budget


def budget_from(
    time_limit: float | str | None = None,
    gap: float | str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    budget: Budget | float | str | None = None,
    **limits: int | None,
) -> Budget:
    """A budget with the limits that are given; the others are those of `budget`. Raises InputError.

    A gap and a seed of 0 are the defaults of every function: they leave those of `budget`.
    """
    if budget is not None and not isinstance(budget, Budget):
        if time_limit is not None:
            raise InputError("budget and time_limit are both seconds", remedy="give one of them")
        time_limit = budget
    given: dict[str, Any] = {"seed": None if _is_zero(seed) else seed, "threads": threads, **limits}
    if time_limit is not None:
        given["seconds"] = _seconds(time_limit)
    if gap is not None and not _is_zero(gap):
        given["gap"] = parse_fraction(gap)
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(budget if isinstance(budget, Budget) else Budget(), **chosen)


def _is_zero(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == 0


def _seconds(limit: float | str) -> float:
    if isinstance(limit, bool) or not isinstance(limit, (int, float, str)):
        raise InputError(f"the time limit is {limit!r}", remedy="give seconds, or a text like '60s'")
    return parse_seconds(limit)
