"""Measured times beside predicted ones, as a table and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_seconds
from placewise.reporting.console import rows_table
from placewise.reporting.plain import shown_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured placement. Times are in seconds; `spread` is the interquartile range as a share of the median, NaN
    after a single round.

    `pieces` counts the pieces per device, `share` is the share of the time that ran where the plan wants it, `idle` the
    devices that ran nothing. `memory` is the bytes that each device should hold by the runtime's own rules. `failure`
    says why the placement failed, if it did. `steady` is the prediction for a full pipeline, where `predicted` is that
    of a stream that begins and ends with an empty one.
    """

    name: str
    devices: int
    predicted: float
    measured: float
    spread: float
    rounds: tuple[float, ...]
    pieces: tuple[int, ...] = ()
    share: float = 1.0
    idle: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()
    failure: str = ""
    notes: tuple[str, ...] = ()
    steady: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementTable:
    """All rows of a measurement; `base` names the one that the others are compared with."""

    runtime: str
    execution: str
    how: str
    places: tuple[str, ...]
    rows: tuple[MeasuredRow, ...]
    base: str
    verdict: str = ""


_COLUMNS = ("placement", "measured ", "spread ", "speed-up ", "predicted ", "off by ", "devices ", "pieces ")


def measurement_view(table: MeasurementTable) -> RenderableType:
    """Everything that is printed of a measurement."""
    base = next(row.measured for row in table.rows if row.name == table.base)
    steady = any(row.steady is not None for row in table.rows)
    columns = (*_COLUMNS[:6], *(("when full ",) if steady else ()), *_COLUMNS[6:])
    cells = [_row_cells(row, base, steady=steady) for row in table.rows if not row.failure]
    parts: list[RenderableType] = [Text(f"{table.runtime}, {table.execution}: {table.how}"), Text()]
    parts += [rows_table(columns, cells), Text()]
    parts += [shown_text(f"{row.name} failed: {row.failure}") for row in table.rows if row.failure]
    parts += [shown_text(table.verdict)] if table.verdict else []
    parts += [shown_text(f"note: {note}", style="dim") for note in _list_notes(table)]
    return Group(*parts)


def document_of(table: MeasurementTable) -> dict[str, Any]:
    """The table as JSON values; times in seconds."""
    return {
        "runtime": table.runtime,
        "execution": table.execution,
        "protocol": table.how,
        "places": list(table.places),
        "base": table.base,
        "verdict": table.verdict,
        "placements": [_row_document(row) for row in table.rows],
    }


def _row_document(row: MeasuredRow) -> dict[str, Any]:
    document = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(row).items()}
    document["share_as_asked"] = document.pop("share")
    return document


def _row_cells(row: MeasuredRow, base: float, *, steady: bool) -> list[str]:
    off = row.predicted / row.measured - 1 if row.measured else math.inf
    predicted = format_seconds(row.predicted) if math.isfinite(row.predicted) else "–"
    return [
        row.name,
        format_seconds(row.measured),
        f"{row.spread:.1%}" if math.isfinite(row.spread) else "–",
        f"{base / row.measured:.2f}×",
        predicted,
        f"{off:+.0%}" if math.isfinite(off) else "–",
        *(["–" if row.steady is None else format_seconds(row.steady)] if steady else []),
        str(row.devices),
        "+".join(map(str, row.pieces)),
    ]


def _list_notes(table: MeasurementTable) -> list[str]:
    notes: list[str] = []
    for row in table.rows:
        if not row.failure:
            notes += [f"{row.name}: nothing ran on {', '.join(row.idle)}"] if row.idle else []
            notes += (
                [f"{row.name}: {row.share:.1%} of the time ran where the plan puts it"] if row.share < 0.999 else []
            )
            notes += row.notes
    return list(dict.fromkeys(notes))
