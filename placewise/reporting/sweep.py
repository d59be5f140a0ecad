"""A sweep as a table in the terminal, and as CSV."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.text import shortened
from placewise._util.units import format_bytes, format_number, format_seconds
from placewise.errors import InputError
from placewise.files.sweep_file import AnswerRecord, LargestRecord, MemoryRecord, PointRecord, SweepFile
from placewise.reporting.console import FittedTable, rows_table
from placewise.reporting.plain import shown_text

FORMATS = {".json": "json", ".csv": "csv", ".html": "page", ".htm": "page", ".txt": "table"}
LONGEST_REASON = 60
_DROPS = (
    "samples/s ",
    "per million samples ",
    "speed beside the best baseline",
    "per million tokens ",
    "per hour ",
    "front",
)
"""The columns to drop, one after the other, on a narrow terminal."""
_PLAIN = (
    "status", "reason", "value", "lower_bound", "latency", "throughput", "tokens_per_second", "baseline",
    "baseline_ratio", "price_per_hour", "price_per_million_tokens", "price_per_million_samples", "pareto", "probe",
    "placer",
)  # fmt: skip


def format_of(path: str | os.PathLike[str]) -> str:
    """json, csv, page or table, by the suffix of a file. Raises InputError."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        remedy = "end it in .html, .json, .csv or .txt"
        raise InputError(f"the suffix {suffix!r} names no format of a sweep", where=str(path), remedy=remedy)
    return FORMATS[suffix]


def sweep_view(sweep: SweepFile) -> RenderableType:
    """Everything that `sweep` prints: a row per point that was asked for, what fits, answers and remarks."""
    columns, rows = point_rows(sweep)
    parts: list[RenderableType] = [FittedTable(columns, rows, _DROPS), Text()]
    if sweep.largest:
        parts += [rows_table(*largest_rows(sweep)), Text()]
    parts += [shown_text(line) for line in remark_lines(sweep)]
    return Group(*parts)


def point_rows(sweep: SweepFile) -> tuple[list[str], list[list[str]]]:
    """The columns and cells of the table of points; a heading that ends in a space is of numbers."""
    points = [point for point in sweep.points if not point.probe]
    cells = {f"{name} ": [f"{point.sizes[name]:,}" for point in points] for name in sweep.varied}
    if len(sweep.clusters) > 1:
        cells["devices"] = [point.devices for point in points]
    cells["fits"] = [describe_fit(point) for point in points]
    cells[f"{value_title(sweep)} "] = [format_seconds(point.value) if point.fits else "–" for point in points]
    cells["tokens/s "] = [_number(point.tokens_per_second) for point in points]
    cells["samples/s "] = [_number(point.throughput) for point in points]
    cells["least free"] = [_least_free(point) for point in points]
    cells["speed beside the best baseline"] = [_describe_baseline(point) for point in points]
    cells["per hour "] = [_number(point.price_per_hour) for point in points]
    cells["per million tokens "] = [_number(point.price_per_million_tokens) for point in points]
    if not any(point.tokens_per_second for point in points):
        cells["per million samples "] = [_number(point.price_per_million_samples) for point in points]
    if any(point.fits and not point.pareto for point in points):
        cells["front"] = ["◆" if point.pareto else "" for point in points]
    shown = {name: column for name, column in cells.items() if any(cell not in ("", "–") for cell in column)}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def largest_rows(sweep: SweepFile) -> tuple[list[str], list[list[str]]]:
    """The columns and cells of the table of the largest sizes that fit."""
    columns = ["largest that fits", "", *(["devices"] if len(sweep.clusters) > 1 else []), "", "found by"]
    rows = []
    for record in sweep.largest:
        others = ", ".join(f"{name}={size:,}" for name, size in record.others.items())
        size = "none" if record.fits is None else f"{record.fits:,}"
        cluster = [record.devices] if len(sweep.clusters) > 1 else []
        rows.append([f"{record.name} {size}", others, *cluster, describe_limit(record), describe_method(record)])
    keep = [place for place in range(len(columns)) if place == 0 or any(row[place] for row in rows)]
    return [columns[place] for place in keep], [[row[place] for place in keep] for row in rows]


def remark_lines(sweep: SweepFile) -> Iterator[str]:
    """Sentences below the tables."""
    for answer in sweep.answers:
        yield describe_answer(sweep, answer)
    probes = sum(point.probe for point in sweep.points)
    if probes:
        yield f"{probes} more sizes were tried to find the largest that fit; JSON and CSV have them"
    if any(point.fits and not point.pareto for point in sweep.points):
        yield "◆ on the Pareto front of latency, throughput, memory and price: no other plan is as good in all of them"
    if sweep.list_prices:
        used = "; ".join(
            f"{price.device} {price.per_hour:g}, {price.source}, {price.date}" for price in sweep.list_prices
        )
        yield f"list prices in USD per hour: {used}"
    reasons: dict[str, str] = {}
    for point in sweep.points:
        if not point.fits and point.reason and not point.probe:
            reasons.setdefault(point.reason, _name_point(point))
    for reason, where in list(reasons.items())[:3]:
        yield f"{where}: {reason}"
    if len(reasons) > 3:
        left = len(reasons) - 3
        yield f"{left} more {'reason is' if left == 1 else 'reasons are'} in the JSON"
    if not sweep.complete:
        yield "interrupted: these are the points so far"


def value_title(sweep: SweepFile) -> str:
    """The heading of the value."""
    return {"throughput": "time per sample", "step": "time per step"}.get(sweep.objective, "latency")


def describe_fit(point: PointRecord) -> str:
    """Whether a point fits, in a word."""
    if point.status == "error":
        return "error"
    return {True: "yes", False: "no", None: "unknown"}[point.fits]


def describe_limit(record: LargestRecord) -> str:
    """What stops the size from growing."""
    if record.fails is None:
        return ""
    if record.fits is None:
        return f"{record.fails:,} does not fit" if record.known else f"no plan was found at {record.fails:,}"
    return f"{record.fails:,} does not" if record.known else f"no plan was found at {record.fails:,}, which is no proof"


def describe_method(record: LargestRecord) -> str:
    """How the largest size was found, and whether memory grows with it."""
    if record.fits is None:
        return "no size that was tried fits"
    if record.fails is None:
        return "every size that was tried fits"
    if not record.monotone:
        return f"trying: memory does not always grow with {record.name}"
    if record.method == "trying":
        return f"trying; memory grows with {record.name}"
    return f"bisection: memory grows with {record.name} at every size tried"


def describe_answer(sweep: SweepFile, answer: AnswerRecord) -> str:
    """What the goal found, as a sentence."""
    sizes = ", ".join(f"{name}={size:,}" for name, size in answer.sizes.items())
    prefix = f"{sizes}: " if sizes else ""
    if answer.devices is None and not sweep.complete:
        tried = len({point.devices for point in sweep.points if point.sizes == answer.sizes})
        return f"{prefix}no cluster of the {tried} tried so far reaches {sweep.until}"
    if answer.devices is None:
        return f"{prefix}no cluster of the {len(sweep.clusters)} reaches {sweep.until}"
    point = next(p for p in sweep.points if p.devices == answer.devices and p.sizes == answer.sizes)
    price = "" if point.price_per_hour is None else f" for {point.price_per_hour:.4g} per hour"
    rate = "" if point.tokens_per_second is None else f", {format_number(point.tokens_per_second)} tokens per second"
    first = "cheapest" if sweep.cheapest else "smallest"
    return f"{prefix}the {first} cluster with {sweep.until} is {answer.devices}{price}{rate}"


def sweep_csv(sweep: SweepFile) -> str:
    """A row per point, also those that bisection added, with the free memory of each device in bytes."""
    names = list(dict.fromkeys(device.device for point in sweep.points for device in point.memory))
    columns = [*sweep.varied, "devices", "fits", *_PLAIN, "used_memory", "free_memory", *(f"free {n}" for n in names)]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for point in sweep.points:
        row: dict[str, Any] = {**point.sizes, "devices": point.devices, "fits": describe_fit(point)}
        row |= {name: _finite(getattr(point, name)) for name in _PLAIN}
        row |= {"used_memory": point.used_memory if point.fits else "", "free_memory": _finite(point.free_memory)}
        row |= {f"free {device.device}": _finite(device.free) for device in point.memory}
        writer.writerow(row)
    return out.getvalue()


def _least_free(point: PointRecord) -> str:
    """The free memory of the device that is fullest, of those that run anything."""
    used = [device for device in point.memory if device.peak > 0]
    if not point.fits or not used:
        return "–"
    least: MemoryRecord = min(used, key=lambda device: device.free)
    return f"{format_bytes(least.free)} on {least.device}" if len(used) > 1 else format_bytes(least.free)


def _describe_baseline(point: PointRecord) -> str:
    if not point.fits:
        return "–"
    if point.baseline_ratio is None:
        return "none fits"
    return f"{point.baseline_ratio:.2f}× {point.baseline}"


def _name_point(point: PointRecord) -> str:
    sizes = ", ".join(f"{name}={size:,}" for name, size in point.sizes.items())
    return " on ".join(part for part in (sizes, shortened(point.devices, LONGEST_REASON)) if part) or "the model"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _finite(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
