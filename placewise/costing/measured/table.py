"""The common table of all formats: what ran, for how long, and which op the file says it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from placewise.errors import CostError

LONGEST_NAME = 80
"""The most letters of a name in messages."""


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One kernel, or one op, that takes `seconds` per run.

    `spread` is the interquartile range of its times over runs, as a share of their median (0: one time).
    `name` is its name in the file, `aliases` are other names that the op may have. `ops` names all ops in it, if the
    file lists them. `kind` is the kernel's type in the file. `device` is the name or kind of a device or ``"*"`` (""
    if the file does not say); `place` is its place in the file.
    """

    name: str
    seconds: float
    kind: str = ""
    ops: tuple[str, ...] = ()
    device: str = ""
    place: str = ""
    aliases: tuple[str, ...] = ()
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """All rows of a file. `form` describes its format.

    With `by_op`, rows describe ops instead of kernels: each names an op, or a pattern for several that take this long
    each, and includes all repeats of a phase. Otherwise the file covers a whole run, so an op without a row ran inside
    another op's kernel. With `in_order`, rows do not name ops but appear in execution order.
    """

    form: str
    rows: tuple[TimingRow, ...]
    by_op: bool = False
    in_order: bool = False
    notes: tuple[str, ...] = ()

    @property
    def spread(self) -> float:
        """The mean spread of the rows, by their seconds."""
        known = [row for row in self.rows if math.isfinite(row.seconds)]
        total = math.fsum(row.seconds for row in known)
        return math.fsum(row.seconds * row.spread for row in known) / total if total else 0.0


def clipped(name: str) -> str:
    """Shorten a name for messages."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def median_over_runs(runs: Sequence[float]) -> float:
    """The median over runs, without the first (warm-up) run if there are others."""
    return float(median(runs[1:] if len(runs) > 1 else runs))


def spread_over_runs(runs: Sequence[float]) -> float:
    """The interquartile range over runs without the first, as a share of their median; 0 for fewer than three."""
    kept = sorted(runs[1:])
    middle = median(kept) if len(kept) > 1 else 0.0
    if not 0 < middle < math.inf:
        return 0.0
    low, _, high = quantiles(kept, n=4, method="inclusive")
    return (high - low) / middle if high < math.inf else 0.0


def read_seconds(value: object, place: str, *, unit: float = 1.0) -> float:
    """A time in a file, in seconds. Raises CostError with its place unless it is a number ≥ 0."""
    try:
        seconds = float(value) * unit if isinstance(value, (int, float, str)) and value is not True else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise CostError(f"{str(value)[:40]!r} is not a time", where=place, remedy="record it again")
    return seconds
