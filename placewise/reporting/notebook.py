"""What the terminal shows as HTML for notebooks: tables, lines, and timelines as small pictures.

There are no scripts, and all names are escaped. Colours are those of the page around it; options have their names in
Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from placewise._util.text import shortened, visible
from placewise._util.units import format_seconds
from placewise._util.voice import spoken
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.reporting.lanes import BUSY, IDLE, MARKED, PARTLY, busiest_lanes, draw_lane, lanes_of, legend, mark_runs

SLOTS, LABEL, HIGH, GAP = 600, 200, 16, 5
"""Width of the drawing and of the names beside it, height of a lane and of the gap between two, in pixels."""
MAX_LANES, LONGEST_NAME = 24, 30
SHARE_OF_HEIGHT = {MARKED: 1.0, BUSY: 0.6, PARTLY: 0.25}
"""Marks differ by height, so that no colour is needed."""
_LINE = "white-space:pre-wrap;line-height:1.4"
_STYLES = {"bold": ";font-weight:bold", "dim": ";opacity:0.7"}
_WIDE = 10_000
"""Characters: no column is dropped for lack of room."""


def render_html(*parts: RenderableType) -> str:
    """What a terminal would show, as HTML: a line of text is a line, a table a table, a chart a picture."""
    console = Console(width=_WIDE, color_system=None)
    return f"<div>{''.join(_part_html(part) for each in parts for part in _flatten(each, console))}</div>"


def timeline_svg(problem: Problem, placement: Placement, judgement: Judgement) -> str:
    """The timeline as SVG, with a lane per device and link; "" for a placement that cannot run."""
    lanes, left = busiest_lanes(lanes_of(problem, placement, judgement, SLOTS), MAX_LANES)
    if not lanes:
        return ""
    height = (len(lanes) + 2) * (HIGH + GAP)
    value = format_seconds(judgement.value)
    elements = [_svg_text(LABEL, HIGH, "0"), _svg_text(LABEL + SLOTS, HIGH, value, anchor="end")]
    for row, lane in enumerate(lanes, 1):
        top = row * (HIGH + GAP)
        share = f"{min(lane.seconds / judgement.value, 9.99):.0%}"
        name = escape(visible(lane.name))
        shapes = "".join(_lane_shapes(draw_lane(lane), top))
        elements.append(f"<g><title>{name}: {format_seconds(lane.seconds)}, {share}</title>{shapes}</g>")
        elements.append(_svg_text(LABEL - 6, top + HIGH - 4, shortened(visible(lane.name), LONGEST_NAME), anchor="end"))
        elements.append(_svg_text(LABEL + SLOTS + 6, top + HIGH - 4, share))
    high, lower, low, _ = legend(judgement)
    key = f"high: {high}, lower: {lower}, low: {low}"
    key += f"; {left} more lanes, less busy" if left else ""
    elements.append(_svg_text(LABEL, height - GAP, key))
    size = f'viewBox="0 0 {LABEL + SLOTS + 60} {height}" style="max-width:{LABEL + SLOTS + 60}px;width:100%"'
    role = f'role="img" aria-label="What runs when, on {len(lanes)} devices and links, from 0 to {value}"'
    style = 'font-size="12" font-family="sans-serif" fill="currentColor"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {role} {style}>'
    return f"{head}{''.join(elements)}</svg>"


def _flatten(part: Any, console: Console) -> Iterator[Any]:
    """The texts, tables and pictures that a renderable consists of."""
    if isinstance(part, Group):
        for inner in part.renderables:
            yield from _flatten(inner, console)
    elif isinstance(part, (str, Text, Table)) or hasattr(part, "_repr_html_"):
        yield part
    else:
        for inner in part.__rich_console__(console, console.options):
            yield from _flatten(inner, console)


def _part_html(part: Any) -> str:
    if isinstance(part, Table):
        return _table_html(part)
    if not isinstance(part, (str, Text)):
        return str(part._repr_html_())
    text, style = (part.plain, str(part.style)) if isinstance(part, Text) else (part, "")
    return f'<div style="{_LINE}{_STYLES.get(style, "")}">{_escape(spoken(text))}</div>' if text.strip() else "<br>"


def _table_html(table: Table) -> str:
    """The cells of a table of rich, numbers on the right."""
    sides = [f' style="text-align:{"right" if column.justify == "right" else "left"}"' for column in table.columns]
    columns = [[_cell_html(cell) for cell in column.cells] for column in table.columns]
    head = "".join(
        f'<th scope="col"{side}>{_cell_html(column.header)}</th>'
        for column, side in zip(table.columns, sides, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(f'<td{side}>{cell}</td>' for cell, side in zip(row, sides, strict=True))}</tr>"
        for row in zip(*columns, strict=True)
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if table.show_header else ''}<tbody>{rows}</tbody></table>"


def _cell_html(cell: Any) -> str:
    text = _escape(cell.plain if isinstance(cell, Text) else str(cell))
    return f"<b>{text}</b>" if isinstance(cell, Text) and "bold" in str(cell.style) else text


def _escape(text: str) -> str:
    return escape("\n".join(map(visible, text.split("\n"))))


def _lane_shapes(line: str, top: int) -> list[str]:
    """Rectangles for the runs of equal marks of a lane."""
    shapes = []
    for mark, at, length in mark_runs(line):
        if mark != IDLE:
            high = HIGH * SHARE_OF_HEIGHT[mark]
            shapes.append(f'<rect x="{LABEL + at}" y="{top + HIGH - high:g}" width="{length}" height="{high:g}"/>')
    shapes.append(f'<rect x="{LABEL}" y="{top + HIGH}" width="{SLOTS}" height="0.5" opacity="0.4"/>')
    return shapes


def _svg_text(x: int, y: int, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(visible(words))}</text>'
