"""Goals such as ``tokens_per_second>=30``, and the order in which clusters are tried for one."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from placewise._util.units import parse_bytes, parse_seconds
from placewise.errors import InputError
from placewise.files.sweep_file import PointRecord

_GOAL = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|=?[<>]|==?)?\s*(.*?)\s*", re.DOTALL)
_HOLDS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{text[:40]!r} is not a number", remedy="write it like 30 or 2.5") from None
    return number


def _memory(text: str) -> float:
    if text.strip().replace(".", "", 1).isdigit():
        raise InputError(f"the memory {text[:40]} has no unit", remedy=f"write {text[:40]}GiB")
    return parse_bytes(text)


_PARSERS: dict[str, Callable[[str], float]] = {
    "value": parse_seconds,
    "latency": parse_seconds,
    "throughput": _number,
    "tokens_per_second": _number,
    "memory": _memory,
}
"""What may be asked for: seconds (as 50ms), rates, and bytes of all devices together (as 40GiB)."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of a point, ``<=`` or ``>=``, and its limit."""

    figure: str
    sign: str
    limit: float
    text: str

    def is_met(self, point: PointRecord) -> bool:
        """Whether a plan exists and its figure is there and keeps the limit."""
        value = figure_of(point, self.figure)
        return bool(point.fits) and value is not None and _HOLDS[self.sign](value, self.limit)


def parse_goal(text: str) -> Goal:
    """A goal from a text. Raises InputError.

    >>> goal = parse_goal("latency<=50ms")
    >>> goal.figure, goal.sign, goal.limit
    ('latency', '<=', 0.05)
    """
    match = _GOAL.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in _HOLDS or not match[3]:
        shown = str(text)[:60]
        raise InputError(f"--until {shown!r} has no <= or >= with a limit", remedy="write 'tokens_per_second>=30'")
    if match[1] not in _PARSERS:
        raise InputError(f"--until knows no {match[1][:40]!r}", remedy=f"choose from {', '.join(_PARSERS)}")
    try:
        limit = _PARSERS[match[1]](match[3])
    except InputError as error:
        raise error.at("--until") from None
    if not math.isfinite(limit):
        raise InputError(f"the limit of --until is {match[3][:40]}", remedy="give a finite number")
    return Goal(match[1], match[2], limit, f"{match[1]}{match[2]}{match[3]}")


def figure_of(point: PointRecord, figure: str) -> float | None:
    """A figure that goals and the Pareto front know; None if the point has none."""
    if not point.fits:
        return None
    if figure == "memory":
        return point.used_memory
    if figure == "price":
        return point.price_per_hour
    value: float | None = getattr(point, figure)
    return value
