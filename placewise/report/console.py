"""The terminal's view of a result: headline, verdict, a line per device. No word of the user's is markup or control."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from placewise.model.problem import Problem
from placewise.model.result import Judgement, Result
from placewise.report.devices import DeviceView
from placewise.report.gantt import Gantt
from placewise.report.visible import visible
from placewise.report.words import (
    baseline_lines,
    headline,
    history_line,
    host_remark,
    phase_line,
    replica_lines,
    value_name,
    verdict,
)
from placewise.units import format_seconds


def lines(*parts: RenderableType, width: int = 120) -> str:
    """Renderables as text without colour: tables fit the width, sentences stay whole, no line ends in spaces."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(printable(part), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def printable(part: RenderableType) -> RenderableType:
    """A sentence as text that is no markup and has no control characters; anything else as it is."""
    return _text(part) if isinstance(part, str) else part


def plain(*parts: RenderableType, width: int = 120) -> str:
    """The same without blank lines at its end."""
    return lines(*parts, width=width).rstrip() + "\n"


def result_view(result: Result, *, gantt: bool = True) -> RenderableType:
    """Everything that `place` prints; the Gantt can be left out."""
    parts: list[RenderableType] = [_bold(headline(result))]
    if result.judgement is not None:
        phases = phase_line(result.problem, result.judgement)
        parts += [_text(phases)] if phases else []
        parts += [_text(verdict(result)), Text(), *_devices(result.problem, result.judgement), Text()]
        parts += _gantt(result) if gantt else []
        parts += [baseline_table(result), Text()]
    way = history_line(result)
    parts += [_text(way, style="dim")] if way else []
    parts += [_text(f"note: {note}", style="dim") for note in result.notes]
    how = f"{result.placer}, {result.status}, {result.seconds:.2f} s, seed {result.seed}"
    return Group(*parts, _text(how, style="dim"))


def judgement_view(problem: Problem, judgement: Judgement) -> RenderableType:
    """Everything that `simulate` prints."""
    runs = math.isfinite(judgement.value)
    value = format_seconds(judgement.value) if runs else "none: it cannot run"
    headline = _bold(f"{value_name(problem.objective)} {value}")
    phases = phase_line(problem, judgement)
    said = [_text(phases)] if phases else []
    return Group(headline, *said, *_devices(problem, judgement), violation_view(judgement))


def violation_view(judgement: Judgement) -> RenderableType:
    """The broken rules, or that there are none."""
    if not judgement.violations:
        return Text("keeps every rule", style="green")
    return Group(*(_text(f"✗ {broken.kind}: {broken.message}", style="red") for broken in judgement.violations))


def baseline_table(result: Result) -> Table:
    """The plan beside what people do without it."""
    return rows_table(("compared with", "value ", ""), baseline_lines(result))


def rows_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; columns whose heading ends in a space are numbers and stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=any(column.strip() for column in columns))
    for column in columns:
        table.add_column(_text(column.strip()), justify="right" if column.endswith(" ") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _gantt(result: Result) -> list[RenderableType]:
    if result.placement is None or result.judgement is None:
        return []
    drawn = Gantt(result.problem, result.placement, result.judgement)
    return [drawn, Text()] if drawn.worth_it else []


def _devices(problem: Problem, judgement: Judgement) -> list[RenderableType]:
    remark = host_remark(problem, judgement)
    remarks = [*replica_lines(judgement), *([remark] if remark else [])]
    return [DeviceView(judgement), *(_text(line, style="dim") for line in remarks)]


def _bold(text: str) -> Text:
    return _text(text, style="bold")


def _text(words: str, *, style: str = "") -> Text:
    return Text(visible(words), style=style)
