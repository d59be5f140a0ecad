"""The compact Gantt of the terminal: a line per device and link, time from left to right."""

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
from placewise.report.critical import critical_path
from placewise.report.lanes import BUSY, IDLE, MARKED, PARTLY, chosen, lanes_of, legend, marks
from placewise.report.notebook import timeline_svg
from placewise.report.plain import lines

WIDEST, NARROWEST, LONGEST_NAME = 72, 16, 24
"""Characters of the lines, at most and at least, and of the names before them."""
MOST_LANES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Gantt:
    """What runs when; nothing is drawn of a placement that cannot run."""

    problem: Problem
    placement: Placement
    judgement: Judgement

    @property
    def worth_it(self) -> bool:
        """Whether there is anything to see: more than one device that works."""
        return sum(use.ops > 0 for use in self.judgement.devices) > 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        timeline = self.judgement.timeline
        path = None if timeline is None else critical_path(self.problem, self.placement, timeline)
        names = [visible(lane.name) for lane in lanes_of(self.problem, self.placement, self.judgement, 1, path)]
        before = min(max((cell_len(name) for name in names), default=0), LONGEST_NAME)
        width = min(options.max_width - before - len("  100 %"), WIDEST)
        if not names or width < NARROWEST:
            return
        lanes = lanes_of(self.problem, self.placement, self.judgement, width, path)
        shown, left = chosen(lanes, MOST_LANES)
        value = self.judgement.value
        yield Text(f"{'':{before}}  0{f'{format_seconds(value)}':>{width - 1}}", style="dim")
        for lane in shown:
            name = _short(visible(lane.name), before)
            yield Text(f"{name}  {marks(lane)} {min(lane.seconds / value, 9.99):>4.0%}")
        if left:
            yield Text(f"… and {left} more, less busy", style="dim")
        meanings = zip((MARKED, BUSY, PARTLY, IDLE), legend(self.judgement), strict=True)
        yield Text("  ".join(f"{mark} {meaning}" for mark, meaning in meanings), style="dim")

    def __str__(self) -> str:
        """The same as text."""
        return lines(self, width=len("  100 %") + LONGEST_NAME + WIDEST)

    def _repr_html_(self) -> str:
        """The same as a picture, in notebooks."""
        return timeline_svg(self.problem, self.placement, self.judgement)


def _short(name: str, width: int) -> str:
    """A name in that many cells: cut in the middle if it is longer, filled with spaces if it is shorter."""
    text = Text(name)
    if text.cell_len > width:
        head = (width - 1) // 2
        text = Text(f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}")
    text.truncate(width, pad=True)
    return text.plain
