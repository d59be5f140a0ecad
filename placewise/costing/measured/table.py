"""One plain table for all formats: what took how long, and what the file says about which op it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from placewise.errors import CostError

LONGEST_NAME = 80
"""Letters of a name that messages show."""


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One kernel, or one op, that took `seconds` per run.

    `name` is what the file calls it, and `aliases` what the op may be called besides; `ops` are the names of all ops
    that it stands for, where the file says them; `kind` is the type of kernel in the file's words; `device` a device's
    name, a kind of device or ``"*"`` ("" where the file does not say); `place` where in the file it stands.
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
    """All rows of a file. `form` names its format.

    `by_op`: rows are of ops and not of kernels: each has the name of an op, or a pattern for several that take so long
    each, and holds all that a phase repeats. Otherwise the file is of a whole run, so that an op without a row of its
    own ran inside another op's kernel. `in_order`: rows have no names of ops, but stand in the order in which they ran.
    """

    form: str
    rows: tuple[TimingRow, ...]
    by_op: bool = False
    in_order: bool = False
    notes: tuple[str, ...] = ()


def clipped(name: str) -> str:
    """A name as messages show it, however long it is in the file."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


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
