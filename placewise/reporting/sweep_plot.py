"""Line plots of a sweep as SVG, without scripts: values over a size, one line per cluster and other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 260, 74, 16, 12, 44
DASHES = ("", "6 3", "2 3", "8 3 2 3")
MARKS = ("circle", "square", "diamond", "triangle")
COLOURS = 6
MAX_SERIES = 12


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, its points (x, y) in ascending x, and the x from which on nothing fits (None: all fits)."""

    name: str
    points: tuple[tuple[float, float], ...]
    ends: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers to places along an axis; logarithmic where `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = (math.log2(v) if self.log else v for v in (self.low, self.high, value))
        share = 0.5 if high == low else (at - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Round numbers between the ends: powers of two, or multiples of 1, 2 or 5 times a power of ten."""
        if self.log:
            first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
            step = max(-(-(last - first + 1) // most), 1)
            return [2.0**power for power in range(first, last + 1, step)]
        span = (self.high - self.low) or 1.0
        unit = 10 ** math.floor(math.log10(span / most))
        step_size = next(unit * k for k in (1, 2, 5, 10, 20) if span / (unit * k) <= most)
        first_tick = math.ceil(self.low / step_size)
        return [k * step_size for k in range(first_tick, math.floor(self.high / step_size + 1e-9) + 1)]


def line_plot(title: str, x_name: str, y_name: str, series: Sequence[Series], describe: Callable[[float], str]) -> str:
    """An SVG of at most `MAX_SERIES` lines; `describe` writes a y as text. Where nothing fits, a dashed rule stands."""
    shown = [one for one in series if one.points][:MAX_SERIES]
    xs = [x for one in shown for x, _ in one.points] + [one.ends for one in shown if one.ends is not None]
    ys = [y for one in shown for _, y in one.points]
    wide = min(xs) > 0 and max(xs) / min(xs) >= 4
    tall = min(ys) > 0 and max(ys) / min(ys) >= 20
    across = Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT, wide)
    up = Scale(min(ys) if tall else min(0.0, *ys), max(ys) or 1.0, HEIGHT - BOTTOM, TOP, tall)
    body = [*_grid(across, up, describe)]
    body.append(f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}">{escape(x_name)}</text>')
    middle = f"{HEIGHT / 2:.0f}"
    body.append(f'<text class="name" x="14" y="{middle}" transform="rotate(-90 14 {middle})">{escape(y_name)}</text>')
    for number, one in enumerate(shown):
        body += _draw(number, one, across, up, describe)
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(body)}</svg>'


def legend(series: Sequence[Series]) -> str:
    """What each line is, as a list with its mark; says how many are not drawn."""
    drawn = [one for one in series if one.points]
    items = [
        f'<li><svg viewBox="0 0 34 12" aria-hidden="true"><path class="line s{k % COLOURS}" '
        f'stroke-dasharray="{DASHES[k % len(DASHES)]}" d="M1 6H33"/>{_mark(k, 17, 6)}</svg> {escape(one.name)}</li>'
        for k, one in enumerate(drawn[:MAX_SERIES])
    ]
    if len(drawn) > MAX_SERIES:
        items.append(f"<li>{len(drawn) - MAX_SERIES} more are in the table</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _grid(across: Scale, up: Scale, describe: Callable[[float], str]) -> list[str]:
    parts = []
    for x in across.ticks(8):
        at = across(x)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}">{_short(x)}</text>'
        )
    for y in up.ticks(6):
        at = up(y)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 5}" y="{at + 4:.1f}">{escape(describe(y))}</text>'
        )
    return parts


def _draw(number: int, one: Series, across: Scale, up: Scale, describe: Callable[[float], str]) -> list[str]:
    places = [(across(x), up(y)) for x, y in one.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dash, colour = DASHES[number % len(DASHES)], number % COLOURS
    parts = [f'<path class="line s{colour}" stroke-dasharray="{dash}" d="{path}"/>']
    for (x, y), (size, value) in zip(places, one.points, strict=True):
        words = escape(f"{one.name} {_short(size)}: {describe(value)}".strip())
        parts.append(f'<g class="s{colour}"><title>{words}</title>{_mark(number, x, y)}</g>')
    if one.ends is not None:
        words = escape(f"{one.name} {_short(one.ends)}: does not fit".strip())
        rule = f"M{across(one.ends):.1f} {TOP}V{HEIGHT - BOTTOM}"
        parts.append(f'<path class="ends s{colour}" d="{rule}"><title>{words}</title></path>')
    return parts


def _mark(number: int, x: float, y: float) -> str:
    shape = MARKS[number % len(MARKS)]
    if shape == "circle":
        return f'<circle class="s{number % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    corners = {
        "square": ((-3, -3), (3, -3), (3, 3), (-3, 3)),
        "diamond": ((0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)),
        "triangle": ((0, -4.5), (4.5, 3.5), (-4.5, 3.5)),
    }[shape]
    path = "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in corners)
    return f'<path class="s{number % COLOURS}" d="M{path}Z"/>'


def _short(size: float) -> str:
    """A size with k or M where that is exact."""
    whole = round(size)
    for factor, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if whole >= factor and whole % factor == 0:
            return f"{whole // factor}{letter}"
    return f"{whole:,}" if size == whole else f"{size:g}"
