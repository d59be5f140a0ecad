"""Several runs of one model → one time per row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from placewise.errors import CostError


def median_over_runs(runs: Sequence[float]) -> float:
    """The median over runs; the first, which warms up, is left out where there are others."""
    return float(median(runs[1:] if len(runs) > 1 else runs))


def read_seconds(value: object, place: str, *, unit: float = 1.0) -> float:
    """A time in a file, in seconds. Raises CostError with its place unless it is a number of zero or more."""
    try:
        seconds = float(value) * unit if isinstance(value, (int, float, str)) and value is not True else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise CostError(f"{str(value)[:40]!r} is not a time", where=place, remedy="record it again")
    return seconds
