"""A sweep as the text of a file: JSON, CSV, the table, or one HTML page of plots that loads and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files

from placewise._util.text import visible
from placewise._util.units import format_number, format_seconds
from placewise.files.records import json_bytes
from placewise.files.sweep_file import PointRecord, SweepFile
from placewise.reporting.plain import plain
from placewise.reporting.sweep import largest_rows, point_rows, remark_lines, sweep_csv, sweep_view, value_title
from placewise.reporting.sweep_plot import Series, legend, line_plot

GIB = 1 << 30
_STYLE = """
figure { margin: 1rem 0; } figcaption { font-weight: 600; } svg { max-width: 100%; height: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); stroke-width: 1; } .tick { fill: var(--muted); font-size: 11px; }
.name { fill: var(--ink); font-size: 12px; text-anchor: middle; } .line { fill: none; stroke-width: 2; }
.ends { stroke-width: 1.5; stroke-dasharray: 2 4; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .9rem; }
.legend svg { width: 34px; height: 12px; }
.s0 { stroke: #0b57b7; fill: #0b57b7; } .s1 { stroke: #a3103f; fill: #a3103f; }
.s2 { stroke: #1a7a3c; fill: #1a7a3c; }
.s3 { stroke: #8a5a00; fill: #8a5a00; } .s4 { stroke: #6a3fb5; fill: #6a3fb5; } .s5 { stroke: #00727a; fill: #00727a; }
.line.s0, .line.s1, .line.s2, .line.s3, .line.s4, .line.s5, .ends { fill: none; }
@media (prefers-color-scheme: dark) {
  .s0 { stroke: #7db4ff; fill: #7db4ff; } .s1 { stroke: #ff7ba0; fill: #ff7ba0; }
  .s2 { stroke: #6fd695; fill: #6fd695; }
  .s3 { stroke: #ffcf7a; fill: #ffcf7a; } .s4 { stroke: #c3a5ff; fill: #c3a5ff; }
  .s5 { stroke: #6fdbe3; fill: #6fdbe3; }
}
"""

_FIGURES: tuple[tuple[str, Callable[[PointRecord], float | None], Callable[[float], str]], ...] = (
    ("value", lambda point: point.value, format_seconds),
    ("tokens per second", lambda point: point.tokens_per_second, lambda value: format_number(value, 3)),
    ("samples per second", lambda point: point.throughput, lambda value: format_number(value, 3)),
    ("memory of all devices", lambda point: point.used_memory / GIB, lambda value: f"{value:.3g} GiB"),
    ("price per million tokens", lambda point: point.price_per_million_tokens, lambda value: f"{value:.3g}"),
)


def sweep_page(sweep: SweepFile) -> str:
    """The HTML of a sweep. Its security policy allows its own style only."""
    style = files("placewise.reporting.page").joinpath("assets", "report.css").read_text("utf-8") + _STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    title = escape(visible(f"{sweep.model} by size"))
    points = _table(*point_rows(sweep)) if sweep.points else ""
    largest = f"<section><h2>Largest that fits</h2>{_table(*largest_rows(sweep))}</section>" if sweep.largest else ""
    remarks = "".join(f"<p>{escape(visible(line))}</p>" for line in remark_lines(sweep))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<title>{title}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>\n'
        f'<header><p class="brand">Placewise sweep</p><h1>{title}</h1></header>\n<main>\n'
        f"{''.join(_sections(sweep))}{largest}<section><h2>Points</h2>{points}{remarks}</section>\n</main>\n</body>\n</html>\n"
    )


def _sections(sweep: SweepFile) -> Iterator[str]:
    """A section of plots per dimension with more than one size."""
    for name in sweep.varied:
        if len({point.sizes[name] for point in sweep.points if point.fits}) < 2:
            continue
        plots, drawn = [], list[Series]()
        for figure, get, describe in _FIGURES:
            series = list_series(sweep, name, get)
            if not any(len(one.points) > 1 for one in series):
                continue
            heading = value_title(sweep) if figure == "value" else figure
            caption = escape(f"{heading[:1].upper()}{heading[1:]} over {visible(name)}")
            plot = line_plot(f"{heading} over {name}", visible(name), heading, series, describe)
            plots.append(f"<figure><figcaption>{caption}</figcaption>{plot}</figure>")
            drawn = drawn or series
        if plots:
            body = f'{legend(drawn)}<div class="plots">{"".join(plots)}</div>'
            yield f'<section><h2>{escape(visible(name))}</h2>{body}<p class="muted">Dotted: does not fit.</p></section>'


def list_series(sweep: SweepFile, name: str, get: Callable[[PointRecord], float | None]) -> list[Series]:
    """A line per cluster and combination of the other sizes, over the sizes of one dimension."""
    ends = {(line.devices, tuple(line.others.items())): line.fails for line in sweep.largest if line.name == name}
    asked = {key: {point.sizes[key] for point in sweep.points if not point.probe} for key in sweep.varied}
    groups: dict[tuple[str, tuple[tuple[str, int], ...]], list[tuple[float, float]]] = {}
    for point in sweep.points:
        others = tuple((key, size) for key, size in point.sizes.items() if key != name)
        value = get(point) if point.fits else None
        on_grid = all(size in asked[key] for key, size in others)
        row = groups.setdefault((point.devices, others), []) if on_grid else []
        if value is not None and math.isfinite(value):
            row.append((float(point.sizes[name]), value))
    return [
        Series(_series_name(sweep, devices, others), tuple(sorted(row)), ends.get((devices, others)))
        for (devices, others), row in groups.items()
    ]


def _series_name(sweep: SweepFile, devices: str, others: Sequence[tuple[str, int]]) -> str:
    sizes = ", ".join(f"{name}={size:,}" for name, size in others)
    parts = [sizes, devices if len(sweep.clusters) > 1 or not sizes else ""]
    return visible(" on ".join(part for part in parts if part))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    kinds = ["number" if column.endswith(" ") else "" for column in columns]
    head = "".join(
        f'<th class="{kind}">{escape(visible(c.strip()))}</th>' for kind, c in zip(kinds, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{escape(visible(c))}</td>' for kind, c in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def render_sweep(sweep: SweepFile, form: str) -> str:
    """The sweep as json, csv, page or table, with a line break at the end."""
    if form == "json":
        return json_bytes(sweep).decode("utf-8")
    if form == "csv":
        return sweep_csv(sweep)
    if form == "page":
        return sweep_page(sweep)
    return plain(sweep_view(sweep), width=10_000)
