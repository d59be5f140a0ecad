"""The common table of all formats: what ran, for how long, and which op the file says it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from placewise.errors import CostError

LONGEST_NAME = 80
"""The most letters of a name in messages."""


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One kernel, or one op, that takes `seconds` per run.

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


def clipped(name: str) -> str:
    """Shorten a name for messages."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def median_over_runs(runs: Sequence[float]) -> float:
    """The median over runs, without the first (warm-up) run if there are others."""
    return float(median(runs[1:] if len(runs) > 1 else runs))


def read_seconds(value: object, place: str, *, unit: float = 1.0) -> float:
    """A time in a file, in seconds. Raises CostError with its place unless it is a number ≥ 0."""
    try:
        seconds = float(value) * unit if isinstance(value, (int, float, str)) and value is not True else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise CostError(f"{str(value)[:40]!r} is not a time", where=place, remedy="record it again")
    return seconds
