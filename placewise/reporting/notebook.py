"""Results in notebooks: the text of the terminal, and timelines as small pictures. All names are escaped."""

from __future__ import annotations

from html import escape
from itertools import groupby

from rich.console import RenderableType

from placewise._util.text import visible
from placewise._util.units import format_seconds
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.reporting.lanes import BUSY, IDLE, MARKED, PARTLY, busiest_lanes, draw_lane, lanes_of, legend
from placewise.reporting.plain import plain

SLOTS, LABEL, HIGH, GAP = 600, 200, 16, 5
"""Width of the drawing and of the names beside it, height of a lane and of the gap between two, in pixels."""
MAX_LANES = 24
SHARE_OF_HEIGHT = {MARKED: 1.0, BUSY: 0.6, PARTLY: 0.25}
"""Marks differ by height, so that no colour is needed."""


def text_html(*parts: RenderableType, width: int = 120) -> str:
    """The text that a terminal shows, as preformatted HTML."""
    style = "white-space:pre;overflow-x:auto;line-height:1.3"
    return f'<pre style="{style}">{escape(plain(*parts, width=width))}</pre>'


def timeline_svg(problem: Problem, placement: Placement, judgement: Judgement) -> str:
    """The timeline as SVG, with a lane per device and link; "" for a placement that cannot run."""
    lanes, left = busiest_lanes(lanes_of(problem, placement, judgement, SLOTS), MAX_LANES)
    if not lanes:
        return ""
    height = (len(lanes) + 2) * (HIGH + GAP)
    value = format_seconds(judgement.value)
    elements = [_text(LABEL, HIGH, "0"), _text(LABEL + SLOTS, HIGH, value, anchor="end")]
    for row, lane in enumerate(lanes, 1):
        top = row * (HIGH + GAP)
        share = f"{min(lane.seconds / judgement.value, 9.99):.0%}"
        name = escape(visible(lane.name))
        shapes = "".join(_lane_shapes(draw_lane(lane), top))
        elements.append(f"<g><title>{name}: {format_seconds(lane.seconds)}, {share}</title>{shapes}</g>")
        elements.append(_text(LABEL - 6, top + HIGH - 4, _shorten(visible(lane.name)), anchor="end"))
        elements.append(_text(LABEL + SLOTS + 6, top + HIGH - 4, share))
    high, lower, low, _ = legend(judgement)
    key = f"high: {high}, lower: {lower}, low: {low}"
    key += f"; {left} more lanes, less busy" if left else ""
    elements.append(_text(LABEL, height - GAP, key))
    size = f'viewBox="0 0 {LABEL + SLOTS + 60} {height}" style="max-width:{LABEL + SLOTS + 60}px;width:100%"'
    role = f'role="img" aria-label="What runs when, on {len(lanes)} devices and links, from 0 to {value}"'
    style = 'font-size="12" font-family="sans-serif" fill="currentColor"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {role} {style}>'
    return f"{head}{''.join(elements)}</svg>"


def _lane_shapes(line: str, top: int) -> list[str]:
    """Rectangles for the runs of equal marks of a lane."""
    shapes, at = [], 0
    for mark, run in groupby(line):
        length = len(list(run))
        if mark != IDLE:
            high = HIGH * SHARE_OF_HEIGHT[mark]
            shapes.append(f'<rect x="{LABEL + at}" y="{top + HIGH - high:g}" width="{length}" height="{high:g}"/>')
        at += length
    shapes.append(f'<rect x="{LABEL}" y="{top + HIGH}" width="{SLOTS}" height="0.5" opacity="0.4"/>')
    return shapes


def _text(x: int, y: int, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(visible(words))}</text>'


def _shorten(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:14]}…{name[-15:]}"
