"""Results as figures of matplotlib, which is optional."""

from __future__ import annotations

import math
from typing import Any

from placewise._util.text import shortened, visible
from placewise.errors import InputError, MissingExtraError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.reporting.lanes import BUSY, MARKED, PARTLY, busiest_lanes, draw_lane, lanes_of, legend, mark_runs
from placewise.reporting.leaderboard import LeaderboardTable

Axes = Any
"""A matplotlib.axes.Axes."""
SLOTS, MAX_LANES, LONGEST_NAME = 1000, 24, 30
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_LOOKS = {MARKED: (0.8, 1.0), BUSY: (0.5, 0.6), PARTLY: (0.2, 0.35)}
"""Height and opacity of each mark: no meaning is in the colour alone."""


def plot_timeline(problem: Problem, placement: Placement | None, judgement: Judgement | None, axes: Axes) -> Axes:
    """What runs when, a bar per device and link, in `axes` or in new ones. Raises InputError, MissingExtraError."""
    axes = _new_axes() if axes is None else axes
    lanes, left = (
        ([], 0)
        if placement is None or judgement is None
        else busiest_lanes(lanes_of(problem, placement, judgement, SLOTS), MAX_LANES)
    )
    if not lanes or judgement is None:
        raise InputError("there is nothing to plot: no placement runs", remedy="see the plan's status")
    unit, scale = _unit_of(judgement.value)
    slot = judgement.value / scale / SLOTS
    meanings = dict(zip((MARKED, BUSY, PARTLY), legend(judgement), strict=False))
    for row, lane in enumerate(lanes):
        runs = [*mark_runs(draw_lane(lane))]
        for mark, (height, opacity) in _LOOKS.items():
            bars = [(at * slot, length * slot) for found, at, length in runs if found == mark]
            if bars:
                colour, label = "C1" if lane.is_link else "C0", meanings.pop(mark, None)
                axes.broken_barh(bars, (row + 0.4 - height, height), facecolors=colour, alpha=opacity, label=label)
    axes.set_yticks(range(len(lanes)), [_name(lane.name) for lane in lanes])
    axes.invert_yaxis()
    axes.set_xlim(0, judgement.value / scale)
    axes.set_xlabel(f"{'one sample' if judgement.timeline is not None else 'one period'}, in {unit}")
    if left:
        axes.set_title(f"{left} more devices and links, less busy, are not shown", fontsize="small")
    shown = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=len(_LOOKS), frameon=False)
    for bar in shown.legend_handles:
        bar.set_facecolor((0.5, 0.5, 0.5, bar.get_facecolor()[3]))
    return axes


def plot_leaderboard(board: LeaderboardTable, axes: Axes) -> Axes:
    """The value of each placer beside the best lower bound, in `axes` or in new ones.

    Raises InputError, MissingExtraError.
    """
    axes = _new_axes() if axes is None else axes
    rows = [(row.placer, row.value) for row in board.rows if row.value is not None and math.isfinite(row.value)]
    if not rows:
        raise InputError("there is nothing to plot: no placer found a placement", remedy="see the leaderboard")
    unit, scale = _unit_of(max(value for _, value in rows))
    axes.barh([_name(name) for name, _ in rows], [value / scale for _, value in rows])
    if board.lower_bound:
        axes.axvline(board.lower_bound / scale, color="black", linestyle="--", label="lower bound")
        axes.legend()
    axes.invert_yaxis()
    axes.set_xlabel(f"value, in {unit}")
    return axes


def _name(name: str) -> str:
    """A name as matplotlib shows it: short, and without mathematics between dollar signs."""
    return shortened(visible(name), LONGEST_NAME).replace("$", r"\$")


def _unit_of(seconds: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in _UNITS if seconds >= scale), _UNITS[-1])


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("plot()", "plot") from None
    return pyplot.subplots(figsize=(9, 3.5), layout="constrained")[1]
