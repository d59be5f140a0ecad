"""The leaderboard of several placers on one problem: as a table, JSON, CSV and Markdown. Pure functions on rows."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_seconds
from placewise.errors import InputError
from placewise.report.console import rows_table
from placewise.report.plain import plain

FORMATS = ("table", "json", "csv", "markdown")
SUFFIXES = {".txt": "table", ".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown"}
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One placer: times in seconds, None where there is none.

    `rank` counts from 1 and is shared by equal values; `gap` is that to the best bound of all, `ratio` the value by the
    best value; `own_lower_bound` is what this placer proved, by `bound_method`; `seconds` is the time that it used,
    `devices` how many run an op; `best_bound_by` says who proved the best bound. `refusal` says why it did not run,
    `unmet` why no placement exists. `measured` is what running it took and `spread` the distance between the quartiles
    as a share of it; `failure` says why it did not run.
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


COLUMNS = tuple(column.name for column in fields(Row))


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Every row, the best first; the highest lower bound in seconds, who proved it and how; the best value.

    Where placements were run, also what the best single device took, and its spread.
    """

    rows: tuple[Row, ...]
    lower_bound: float | None
    best_bound_by: str
    bound_method: str
    best_value: float | None
    single_measured: float | None = None
    single_spread: float | None = None

    @property
    def not_run(self) -> int:
        return sum(row.status == NOT_RUN for row in self.rows)


def format_for(path: str | os.PathLike[str] | None, wanted: str | None) -> str:
    """The format that is asked for, else that of a file's suffix, else the table. Raises InputError."""
    if wanted is not None:
        if wanted not in FORMATS:
            raise InputError(f"there is no format {wanted!r}", remedy=f"choose from {', '.join(FORMATS)}")
        return wanted
    if path is None:
        return "table"
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        known = f"end it in {', '.join(SUFFIXES)}, or say the format"
        raise InputError(f"the suffix {suffix!r} names no format", where=str(path), remedy=known)
    return SUFFIXES[suffix]


def text_of(board: Board, form: str) -> str:
    """The leaderboard as a text of one of `FORMATS`, with a line break at its end."""
    if form == "json":
        return json.dumps(document_of(board), ensure_ascii=False, indent=2) + "\n"
    if form == "csv":
        return _csv(board)
    if form == "markdown":
        return _markdown(board)
    return plain(board_view(board), width=10_000)


def document_of(board: Board) -> dict[str, Any]:
    """The leaderboard as JSON takes it."""
    return {
        "lower_bound": board.lower_bound,
        "best_bound_by": board.best_bound_by,
        "bound_method": board.bound_method,
        "best_value": board.best_value,
        "not_run": board.not_run,
        "single_measured": board.single_measured,
        "single_spread": board.single_spread,
        "entries": [asdict(row) | {"notes": list(row.notes)} for row in board.rows],
    }


def board_view(board: Board) -> RenderableType:
    """Everything that `compare` prints."""
    table = (_Table(board),) if any(row.status != NOT_RUN for row in board.rows) else ()
    return Group(*table, *(Text(f"{'  ' * depth}{visible(line)}") for depth, line in _listed(board)))


def _csv(board: Board) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in board.rows:
        cells = asdict(row) | {"notes": "; ".join(row.notes)}
        writer.writerow(["" if cells[name] is None else cells[name] for name in COLUMNS])
    return out.getvalue()


def _markdown(board: Board) -> str:
    shown = _shown(board)
    lines = [
        "| " + " | ".join(column.strip() for column in shown) + " |",
        "|" + "|".join(" ---: " if column.endswith(" ") else " --- " for column in shown) + "|",
    ]
    for row in board.rows:
        if row.status != NOT_RUN:
            lines.append("| " + " | ".join(_escaped(_cells(row)[name]) for name in shown) + " |")
    for depth, line in _listed(board):
        lines.append(f"- {_escaped(line)}" if depth else f"\n{_escaped(line)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown prints as it is in a cell of a table."""
    for sign in "\\|<>*`[]":
        text = text.replace(sign, f"\\{sign}")
    return visible(text)


_SHOWN = (
    "# ", "placer", "value ", "gap ", "measured ", "spread ", "ratio ", "own bound ", "status", "took ", "devices ",
    "best bound by", "source",
)  # fmt: skip
"""The columns that people read; those that end in a space are numbers."""
_LEAVING = ("source", "best bound by", "own bound ", "devices ", "status", "# ", "ratio ")
"""Which of them go, one after the other, where the terminal is narrow."""


def _shown(board: Board) -> tuple[str, ...]:
    """The columns that have something to say."""
    ran = any(row.measured is not None or row.failure for row in board.rows)
    return tuple(name for name in _SHOWN if ran or name not in ("measured ", "spread "))


def _cells(row: Row) -> dict[str, str]:
    cells = (
        _said(row.rank, str), row.placer, _said(row.value, format_seconds), _said(row.gap, "{:.2%}".format),
        _said(row.measured, format_seconds), _said(row.spread, "{:.1%}".format), _said(row.ratio, "{:.4f}".format),
        _said(row.own_lower_bound, format_seconds), _status(row), _said(row.seconds, "{:.2f} s".format),
        _said(row.devices, str), row.best_bound_by, row.source,
    )  # fmt: skip
    return dict(zip(_SHOWN, cells, strict=True))


def _said(value: Any, say: Any) -> str:
    return "–" if value is None else say(value)


def _status(row: Row) -> str:
    return f"{row.status} ({row.reason})" if row.reason else row.status


@dataclass(frozen=True, slots=True)
class _Table:
    """The rows of what ran, with as many columns as the terminal is wide."""

    board: Board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [_cells(row) for row in self.board.rows if row.status != NOT_RUN]
        shown = list(_shown(self.board))
        for leaving in (*_LEAVING, ""):
            table = rows_table(shown, [[row[name] for name in shown] for row in rows])
            if Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width:
                break
            shown = [name for name in shown if name != leaving]
        yield table


def _listed(board: Board) -> Iterator[tuple[int, str]]:
    """What stands below the table, with the depth of each line: the bound, what found nothing, what did not run."""
    unmet = next((row.unmet for row in board.rows if row.unmet), "")
    if unmet:
        yield 0, f"infeasible: {unmet}"
    elif board.lower_bound is not None:
        yield 0, f"lower bound {format_seconds(board.lower_bound)}, by {board.best_bound_by} ({board.bound_method})"
    if board.single_measured is not None:
        spread = "" if board.single_spread is None else f" (spread {board.single_spread:.1%})"
        yield 0, f"measured on the best single device: {format_seconds(board.single_measured)}{spread}"
    for row in board.rows:
        if row.failure:
            yield 1, f"{row.placer} failed when it ran: {row.failure}"
    nothing = [row for row in board.rows if row.status != NOT_RUN and row.value is None]
    if nothing:
        yield 0, f"without a placement: {len(nothing)}"
        for row in nothing:
            yield 1, f"{row.placer}: {row.unmet or '; '.join(row.notes) or _status(row)}"
    yield 0, f"{NOT_RUN}: {board.not_run}"
    for row in board.rows:
        if row.status == NOT_RUN:
            yield 1, f"{row.placer}: {row.refusal}"


def finite(value: float) -> float | None:
    """A number, or None for what no file can hold."""
    return value if math.isfinite(value) else None
