"""The compact Gantt chart of the terminal: a line per device and link, time from left to right."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_seconds
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.reporting.critical_path import critical_path
from placewise.reporting.lanes import BUSY, IDLE, MARKED, PARTLY, busiest_lanes, draw_lane, lanes_of, legend
from placewise.reporting.notebook import timeline_svg
from placewise.reporting.plain import lines

WIDEST, NARROWEST, LONGEST_NAME = 72, 16, 24
"""Characters of the lines, at most and at least, and of the names before them."""
MAX_LANES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Gantt:
    """When each device and link is busy; empty for a placement that cannot run."""

    problem: Problem
    placement: Placement
    judgement: Judgement

    @property
    def is_useful(self) -> bool:
        """Whether more than one device runs ops, or ops of stages are split."""
        return bool(self.judgement.stages) or sum(use.ops > 0 for use in self.judgement.devices) > 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        timeline = self.judgement.timeline
        path = None if timeline is None else critical_path(self.problem, self.placement, timeline)
        names = [visible(lane.name) for lane in lanes_of(self.problem, self.placement, self.judgement, 1, path)]
        before = min(max((cell_len(name) for name in names), default=0), LONGEST_NAME)
        width = min(options.max_width - before - len("  100 %"), WIDEST)
        if not names or width < NARROWEST:
            return
        lanes, left = busiest_lanes(lanes_of(self.problem, self.placement, self.judgement, width, path), MAX_LANES)
        value = self.judgement.value
        yield Text(f"{'':{before}}  0{f'{format_seconds(value)}':>{width - 1}}", style="dim")
        for lane in lanes:
            name = _fit_name(visible(lane.name), before)
            yield Text(f"{name}  {draw_lane(lane)} {min(lane.seconds / value, 9.99):>4.0%}")
        if left:
            yield Text(f"… and {left} more, less busy", style="dim")
        meanings = zip((MARKED, BUSY, PARTLY, IDLE), legend(self.judgement), strict=True)
        yield Text("  ".join(f"{mark} {meaning}" for mark, meaning in meanings), style="dim")

    def __str__(self) -> str:
        """The chart as text."""
        return lines(self, width=len("  100 %") + LONGEST_NAME + WIDEST)

    def _repr_html_(self) -> str:
        """The chart as a picture, for notebooks."""
        return timeline_svg(self.problem, self.placement, self.judgement)


def _fit_name(name: str, width: int) -> str:
    """A name in exactly `width` cells: shortened in the middle, or padded with spaces."""
    text = Text(name)
    if text.cell_len > width:
        head = (width - 1) // 2
        text = Text(f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}")
    text.truncate(width, pad=True)
    return text.plain
