"""A log-log plot as SVG text: lines with marks, axes with units, a legend; readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 74, 190, 46, 58
COLOURS = ("#2f6fd0", "#d1600a", "#17956b", "#b8449c", "#8a6d00", "#6a5acd", "#c0392b", "#3a8fa3")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.axis { stroke: #57606a; fill: none } .grid { stroke: #d0d7de } .guide { stroke: #8c959f; stroke-dasharray: 5 4 }
.title { font-weight: 600; font-size: 15px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .axis { stroke: #8d96a0 } .grid { stroke: #30363d } .guide { stroke: #6e7681 }
}
"""


class _Frame(NamedTuple):
    """The powers of ten that the axes show."""

    across: list[int]
    up: list[int]

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - self.across[0]) / (self.across[-1] - self.across[0])

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.up[0]) / (self.up[-1] - self.up[0])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)


def log_log(title: str, x_name: str, y_name: str, lines: Mapping[str, Points], *, guide: str = "") -> str:
    """An SVG of lines of (x, y), both above 0; `guide` names a dashed line of slope 1, if there shall be one."""
    points = [point for line in lines.values() for point in line]
    frame = _Frame(_decades([x for x, _ in points]), _decades([y for _, y in points]))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [f"<style>{STYLE}</style>", f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>']
    parts += _axes(frame, x_name, y_name)
    legend = []
    if guide:
        length = min(frame.across[-1] - frame.across[0], frame.up[-1] - frame.up[0])
        ends = [(10.0 ** (frame.across[-1] - at), 10.0 ** (frame.up[-1] - at)) for at in (length, 0)]
        parts.append(f'<path class="guide" fill="none" d="{frame.path(ends)}"/>')
        legend.append((guide, 'class="guide"'))
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        look = f'stroke="{colour}" stroke-width="2"'
        parts.append(f'<path fill="none" {look} d="{frame.path(sorted(line))}"/>')
        parts += [f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        legend.append((name, look))
    for row, (name, look) in enumerate(legend):
        x, y = WIDTH - RIGHT + 16, TOP + 10 + 21 * row
        parts.append(f'<line {look} x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}"/>')
        parts.append(f'<text x="{x + 31}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join((*parts, "</svg>")) + "\n"


def _axes(frame: _Frame, x_name: str, y_name: str) -> list[str]:
    """Axes with their names, and a line and a number at every power of ten."""
    low, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for power in frame.across:
        x, number = f"{frame.x(10.0**power):.1f}", f'10<tspan dy="-5" font-size="10">{power}</tspan>'
        parts.append(f'<line class="grid" x1="{x}" y1="{TOP}" x2="{x}" y2="{low}"/>')
        parts.append(f'<text x="{x}" y="{low + 20}" text-anchor="middle">{number}</text>')
    for power in frame.up:
        y = frame.y(10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    x_middle, y_middle = (LEFT + right) // 2, (TOP + low) // 2
    turned = f'transform="rotate(-90 18 {y_middle})"'
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{low}H{right}"/>')
    parts.append(f'<text x="{x_middle}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(f'<text x="18" y="{y_middle}" {turned} text-anchor="middle">{escape(y_name)}</text>')
    return parts


def _decades(values: Sequence[float]) -> list[int]:
    """The powers of ten around some values."""
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return list(range(low, max(high, low + 1) + 1))
