"""Times by op and device, written by hand or by a script, as CSV or JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from statistics import median

from placewise._util.units import parse_seconds
from placewise.costing.measured.content import load_json, read_text
from placewise.costing.measured.table import TimingRow, Timings, clipped, spread_over_runs
from placewise.errors import CostError, InputError

COLUMNS = ["op", "device", "seconds"]
_CANNOT = ("inf", "Infinity")
"""Markers for a device that cannot run an op: ours, and that of JSON writers."""
_REMEDY = "give seconds ≥ 0 (or 5us, 1.5ms), or inf where the device cannot run it"

TimeEntry = tuple[str, str, str, object]
"""Place in the file, op, device, time."""


def read_csv(path: Path) -> Timings:
    """Read rows ``op,device,seconds`` below that header. Raises CostError with the line."""
    return _build_timings("times in CSV", _csv_entries(read_text(path)))


def read_json(path: Path) -> Timings:
    """Read ``[{"op": …, "device": …, "seconds": …}, …]`` or ``{op: {device: seconds}}``. Raises CostError."""
    return _build_timings("times in JSON", _json_entries(load_json(path)))


def _build_timings(form: str, entries: Iterator[TimeEntry]) -> Timings:
    times_of: dict[tuple[str, str], list[float]] = {}
    places: dict[tuple[str, str], str] = {}
    for place, op, device, value in entries:
        times_of.setdefault((op, device), []).append(_seconds(value, place))
        places.setdefault((op, device), place)
    if not times_of:
        raise CostError("holds no times", remedy="write op, device and seconds")
    rows = tuple(
        TimingRow(
            op,
            float(median(times)),
            ops=(op,),
            device=device,
            place=places[op, device],
            spread=spread_over_runs((0.0, *times)),
        )
        for (op, device), times in times_of.items()
    )
    several = sum(len(times) > 1 for times in times_of.values())
    notes = (f"{several} ops have several times on one device: the median is used",) if several else ()
    return Timings(form, rows, by_op=True, notes=notes)


def _csv_entries(text: str) -> Iterator[TimeEntry]:
    rows = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        if [name.strip() for name in next(rows, [])] != COLUMNS:
            raise CostError("does not begin with the line op,device,seconds", where="line 1", remedy="add it")
        for row in rows:
            if row and len(row) != len(COLUMNS):
                problem = f"has {len(row)} fields instead of 3"
                raise CostError(problem, where=f"line {rows.line_num}", remedy="quote names with commas")
            if row:
                yield f"line {rows.line_num}", row[0], row[1].strip(), row[2]
    except csv.Error as error:
        raise CostError(f"is not CSV ({error})", remedy="save it as UTF-8 with commas") from None


def _json_entries(value: object) -> Iterator[TimeEntry]:
    if isinstance(value, list):
        for number, entry in enumerate(value):
            place = f"entry {number}"
            known = isinstance(entry, Mapping) and isinstance(entry.get("op"), str)
            if not known or not isinstance(entry.get("device", ""), str) or "seconds" not in entry:
                remedy = 'write {"op": "conv1", "device": "cuda", "seconds": 0.001}'
                raise CostError("names no op with its device and seconds", where=place, remedy=remedy)
            yield place, entry["op"], entry.get("device", ""), entry["seconds"]
    elif isinstance(value, Mapping):
        for op, times in value.items():
            if not isinstance(times, Mapping):
                remedy = 'write {"conv1": {"cuda": 0.001}}'
                raise CostError("has no times by device", where=f"op {clipped(op)!r}", remedy=remedy)
            for device, seconds in times.items():
                yield f"op {clipped(op)!r}", op, device, seconds
    else:
        raise CostError("holds neither a list nor a table of times", remedy="write op, device and seconds")


def _seconds(value: object, place: str) -> float:
    if isinstance(value, str) and value.strip() in _CANNOT:
        return math.inf
    try:
        seconds = parse_seconds(value) if isinstance(value, str) else float(json.dumps(value))
    except (InputError, ValueError, TypeError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 <= seconds < math.inf:
        raise CostError(f"{str(value)[:40]!r} is not a time", where=place, remedy=_REMEDY)
    return seconds
