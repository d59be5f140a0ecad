"""The leaderboard of several placers on one problem, as a table, JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_seconds
from placewise.errors import InputError
from placewise.reporting.console import FittedTable
from placewise.reporting.plain import plain

FORMATS = ("table", "json", "csv", "markdown")
SUFFIXES = {".txt": "table", ".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown"}
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardRow:
    """The result of one placer. Times are in seconds, None where unknown.

    `rank` counts from 1, and equal values share it. `gap` is relative to the best bound of all placers, `ratio` to the
    best value. `own_lower_bound` is what this placer proved, by `bound_method`; `best_bound_by` names the placers that
    proved the best bound. `seconds` is the search time, `devices` how many devices run an op. `refusal` says why the
    placer did not run, `unmet` why no placement exists. `measured` is the measured time of the placement, `spread` its
    interquartile range as a share of it, and `failure` says why the placement did not run.
    """

    rank: int | None = None
    placer: str
    value: float | None = None
    gap: float | None = None
    ratio: float | None = None
    own_lower_bound: float | None = None
    bound_method: str = ""
    status: str = NOT_RUN
    reason: str = ""
    seconds: float | None = None
    devices: int | None = None
    best_bound_by: str = ""
    source: str = ""
    seed: int | None = None
    notes: tuple[str, ...] = ()
    unmet: str = ""
    refusal: str = ""
    measured: float | None = None
    spread: float | None = None
    failure: str = ""


COLUMNS = tuple(column.name for column in fields(LeaderboardRow))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardTable:
    """All rows, best first; the highest lower bound, who proved it and how; the best value. Times in seconds.

    Where placements were run, also the measured time of the best single device, and its spread, and by name the
    measured times of what else needs no placer (`plain_measured`).
    """

    rows: tuple[LeaderboardRow, ...]
    lower_bound: float | None
    best_bound_by: str
    bound_method: str
    best_value: float | None
    single_measured: float | None = None
    single_spread: float | None = None
    plain_measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def not_run(self) -> int:
        return sum(row.status == NOT_RUN for row in self.rows)


def format_for(path: str | os.PathLike[str] | None, name: str | None) -> str:
    """The format called `name`, else that of the file's suffix, else the table. Raises InputError."""
    if name is not None:
        if name not in FORMATS:
            raise InputError(f"there is no format {name!r}", remedy=f"choose from {', '.join(FORMATS)}")
        return name
    if path is None:
        return "table"
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        known = f"end it in {', '.join(SUFFIXES)}, or say the format"
        raise InputError(f"the suffix {suffix!r} names no format", where=str(path), remedy=known)
    return SUFFIXES[suffix]


def render_leaderboard(board: LeaderboardTable, form: str) -> str:
    """The leaderboard in one of `FORMATS`, with a line break at the end."""
    if form == "json":
        return json.dumps(document_of(board), ensure_ascii=False, indent=2) + "\n"
    if form == "csv":
        return _csv(board)
    if form == "markdown":
        return _markdown(board)
    return plain(board_view(board), width=10_000)


def document_of(board: LeaderboardTable) -> dict[str, Any]:
    """The leaderboard as JSON values."""
    return {
        "lower_bound": board.lower_bound,
        "best_bound_by": board.best_bound_by,
        "bound_method": board.bound_method,
        "best_value": board.best_value,
        "not_run": board.not_run,
        "single_measured": board.single_measured,
        "single_spread": board.single_spread,
        "plain_measured": dict(board.plain_measured),
        "entries": [asdict(row) | {"notes": list(row.notes)} for row in board.rows],
    }


def board_view(board: LeaderboardTable) -> RenderableType:
    """Everything that `compare` prints."""
    shown, rows = _visible_columns(board), [_row_cells(row) for row in board.rows if row.status != NOT_RUN]
    table = [FittedTable(shown, [[row[name] for name in shown] for row in rows], _DROPS)] if rows else []
    return Group(*table, *(Text(f"{'  ' * depth}{visible(line)}") for depth, line in _list_remarks(board)))


def _csv(board: LeaderboardTable) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) | {"notes": "; ".join(row.notes)} for row in board.rows)
    return out.getvalue()


def _markdown(board: LeaderboardTable) -> str:
    shown = _visible_columns(board)
    lines = [
        "| " + " | ".join(column.strip() for column in shown) + " |",
        "|" + "|".join(" ---: " if column.endswith(" ") else " --- " for column in shown) + "|",
    ]
    for row in board.rows:
        if row.status != NOT_RUN:
            lines.append("| " + " | ".join(_escape_markdown(_row_cells(row)[name]) for name in shown) + " |")
    for depth, line in _list_remarks(board):
        lines.append(f"- {_escape_markdown(line)}" if depth else f"\n{_escape_markdown(line)}")
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    """Text that Markdown shows literally in a table cell."""
    for sign in "\\|<>*`[]":
        text = text.replace(sign, f"\\{sign}")
    return visible(text)


_TABLE_COLUMNS = (
    "# ", "placer", "value ", "gap ", "measured ", "spread ", "ratio ", "own bound ", "status", "took ", "devices ",
    "best bound by", "source",
)  # fmt: skip
"""The columns of the table; those that end in a space hold numbers."""
_DROPS = ("source", "best bound by", "own bound ", "devices ", "status", "# ", "ratio ")
"""The columns to drop, one after the other, on a narrow terminal."""


def _visible_columns(board: LeaderboardTable) -> tuple[str, ...]:
    """The columns, without those of measurements if nothing was run."""
    ran = any(row.measured is not None or row.failure for row in board.rows)
    return tuple(name for name in _TABLE_COLUMNS if ran or name not in ("measured ", "spread "))


def _row_cells(row: LeaderboardRow) -> dict[str, str]:
    share = "{:.1%}".format
    columns: tuple[tuple[Any, Callable[[Any], str]], ...] = (
        (row.rank, str), (row.placer, str), (row.value, format_seconds), (row.gap, "{:.2%}".format),
        (row.measured, format_seconds), (row.spread, share), (row.ratio, "{:.4f}".format),
        (row.own_lower_bound, format_seconds), (_format_status(row), str), (row.seconds, "{:.2f} s".format),
        (row.devices, str), (row.best_bound_by, str), (row.source, str),
    )  # fmt: skip
    cells = ("–" if value is None else form(value) for value, form in columns)
    return dict(zip(_TABLE_COLUMNS, cells, strict=True))


def _format_status(row: LeaderboardRow) -> str:
    return f"{row.status} ({row.reason})" if row.reason else row.status


def _list_remarks(board: LeaderboardTable) -> Iterator[tuple[int, str]]:
    """(depth, line) below the table: the bound, failed runs, placers without a placement, placers that did not run."""
    unmet = next((row.unmet for row in board.rows if row.unmet), "")
    if unmet:
        yield 0, f"infeasible: {unmet}"
    elif board.lower_bound is not None:
        yield 0, f"lower bound {format_seconds(board.lower_bound)}, by {board.best_bound_by} ({board.bound_method})"
    if board.single_measured is not None:
        spread = "" if board.single_spread is None else f" (spread {board.single_spread:.1%})"
        yield 0, f"measured on the best single device: {format_seconds(board.single_measured)}{spread}"
        for name, seconds in board.plain_measured.items():
            yield 0, f"measured with {name}: {format_seconds(seconds)}"
    for row in board.rows:
        if row.failure:
            yield 1, f"{row.placer} failed when it ran: {row.failure}"
    nothing = [row for row in board.rows if row.status != NOT_RUN and row.value is None]
    if nothing:
        yield 0, f"without a placement: {len(nothing)}"
        for row in nothing:
            yield 1, f"{row.placer}: {row.unmet or '; '.join(row.notes) or _format_status(row)}"
    yield 0, f"{NOT_RUN}: {board.not_run}"
    refusals: dict[str, list[str]] = {}
    for row in board.rows:
        if row.status == NOT_RUN:
            refusals.setdefault(row.refusal, []).append(row.placer)
    for refusal, placers in refusals.items():
        yield 1, f"{', '.join(placers)}: {refusal}"


def finite(value: float) -> float | None:
    """The number, or None if it is infinite or NaN, which JSON cannot hold."""
    return value if math.isfinite(value) else None
