"""What was measured beside what was predicted: a table, sentences, and the same for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_seconds
from placewise.report.console import rows_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measured placement: seconds, the spread between quartiles as a share, and why it failed, if it did.

    `memory` is what each device is predicted to hold by the runtime's own rules, in bytes.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All lines of a race; `base` is the one that the others are compared with."""

    runtime: str
    execution: str
    how: str
    places: tuple[str, ...]
    lines: tuple[Line, ...]
    base: str
    verdict: str = ""


_COLUMNS = ("placement", "measured ", "spread ", "speed-up ", "predicted ", "off by ", "devices ", "pieces ")


def sheet_view(sheet: Sheet) -> RenderableType:
    """Everything that is printed of a race."""
    base = next(line.measured for line in sheet.lines if line.name == sheet.base)
    rows = [_cells(line, base) for line in sheet.lines if not line.failure]
    parts: list[RenderableType] = [Text(f"{sheet.runtime}, {sheet.execution}: {sheet.how}"), Text()]
    parts += [rows_table(_COLUMNS, rows), Text()]
    parts += [Text(visible(f"{line.name} failed: {line.failure}")) for line in sheet.lines if line.failure]
    parts += [Text(visible(sheet.verdict))] if sheet.verdict else []
    parts += [Text(visible(f"note: {note}"), style="dim") for note in _notes(sheet)]
    return Group(*parts)


def document_of(sheet: Sheet) -> dict[str, Any]:
    """The sheet as JSON takes it; times in seconds."""
    return {
        "runtime": sheet.runtime,
        "execution": sheet.execution,
        "protocol": sheet.how,
        "places": list(sheet.places),
        "base": sheet.base,
        "verdict": sheet.verdict,
        "placements": [_plain(line) for line in sheet.lines],
    }


def _plain(line: Line) -> Mapping[str, Any]:
    return {
        "name": line.name,
        "measured": line.measured,
        "spread": line.spread,
        "predicted": line.predicted,
        "devices": line.devices,
        "pieces": list(line.pieces),
        "share_as_asked": line.share,
        "idle": list(line.idle),
        "memory": list(line.memory),
        "rounds": list(line.rounds),
        "failure": line.failure,
        "notes": list(line.notes),
    }


def _cells(line: Line, base: float) -> list[str]:
    off = line.predicted / line.measured - 1 if line.measured else math.inf
    return [
        line.name,
        format_seconds(line.measured),
        f"{line.spread:.1%}",
        f"{base / line.measured:.2f}×",
        format_seconds(line.predicted),
        f"{off:+.0%}" if math.isfinite(off) else "–",
        str(line.devices),
        "+".join(map(str, line.pieces)),
    ]


def _notes(sheet: Sheet) -> Sequence[str]:
    notes: dict[str, None] = {}
    for line in sheet.lines:
        if line.failure:
            continue
        if line.idle:
            notes[f"{line.name}: nothing ran on {', '.join(line.idle)}"] = None
        if line.share < 0.999:
            notes[f"{line.name}: {line.share:.1%} of the time ran where it was asked to"] = None
        notes |= dict.fromkeys(line.notes)
    return list(notes)
