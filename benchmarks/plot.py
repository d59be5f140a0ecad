"""A log-log plot as SVG text: lines with marks, axes with units, a legend; readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

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


def log_log(title: str, x_name: str, y_name: str, lines: Mapping[str, Points], *, guide: str = "") -> str:
    """An SVG of lines of (x, y), both above 0; `guide` names a dashed line of slope 1, if there shall be one."""
    points = [point for line in lines.values() for point in line]
    x_range, y_range = (_decades([point[axis] for point in points]) for axis in (0, 1))

    def x_of(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(x) - x_range[0]) / (x_range[-1] - x_range[0])

    def y_of(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(y) - y_range[0]) / (y_range[-1] - y_range[0])

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
    ]
    for power in x_range:
        x = x_of(10.0**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{_power(power)}</text>')
    for power in y_range:
        y = y_of(10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    corners = f"M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"
    parts.append(f'<path class="axis" d="{corners}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_name)}</text>')
    y_middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 18 {y_middle:.0f})"'
    parts.append(f'<text x="18" y="{y_middle:.0f}" {turned} text-anchor="middle">{escape(y_name)}</text>')
    entries = []
    if guide:
        length = min(x_range[-1] - x_range[0], y_range[-1] - y_range[0])
        ends = [(10.0 ** (x_range[-1] - at), 10.0 ** (y_range[-1] - at)) for at in (length, 0)]
        parts.append(f'<path class="guide" fill="none" d="{_path(ends, x_of, y_of)}"/>')
        entries.append((guide, 'class="guide"'))
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = _path(sorted(line), x_of, y_of)
        parts.append(f'<path fill="none" stroke="{colour}" stroke-width="2" d="{path}"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        entries.append((name, f'stroke="{colour}" stroke-width="2"'))
    for row, (name, look) in enumerate(entries):
        x, y = WIDTH - RIGHT + 16, TOP + 10 + 21 * row
        parts.append(f'<line {look} x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}"/>')
        parts.append(f'<text x="{x + 31}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join((*parts, "</svg>")) + "\n"


def _decades(values: Sequence[float]) -> list[int]:
    """The powers of ten around some values."""
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return list(range(low, max(high, low + 1) + 1))


def _power(power: int) -> str:
    return f'10<tspan dy="-5" font-size="10">{power}</tspan>'


def _path(line, x_of, y_of) -> str:  # type: ignore[no-untyped-def]
    return "M" + "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line)
