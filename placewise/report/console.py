"""The terminal's view of a result: headline, verdict, and a line per device."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from placewise.model.problem import Problem
from placewise.model.result import Judgement, Result
from placewise.report.words import baseline_lines, headline, value_name, verdict
from placewise.units import format_bytes, format_seconds

_BAR = 12


def plain(*parts: RenderableType, width: int = 120) -> str:
    """Renderables as text without colour."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    for part in parts:
        console.print(part)
    return out.getvalue().rstrip() + "\n"


def result_view(result: Result) -> RenderableType:
    """Everything that `place` prints."""
    parts: list[RenderableType] = [_bold(headline(result))]
    if result.judgement is not None:
        parts += [Text(verdict(result)), Text(), device_table(result.problem, result.judgement), Text()]
        parts += [baseline_table(result), Text()]
    parts += [Text(f"note: {note}", style="dim") for note in result.notes]
    how = f"{result.placer}, {result.status}, {result.seconds:.2f} s, seed {result.seed}"
    return Group(*parts, Text(how, style="dim"))


def judgement_view(problem: Problem, judgement: Judgement) -> RenderableType:
    """Everything that `simulate` prints."""
    runs = math.isfinite(judgement.value)
    value = format_seconds(judgement.value) if runs else "none: it cannot run"
    parts: list[RenderableType] = [_bold(f"{value_name(problem.objective)} {value}")]
    parts += [device_table(problem, judgement), violation_view(judgement)]
    return Group(*parts)


def violation_view(judgement: Judgement) -> RenderableType:
    """The broken rules, or that there are none."""
    if not judgement.violations:
        return Text("keeps every rule", style="green")
    return Group(*(Text(f"✗ {broken.kind}: {broken.message}", style="red") for broken in judgement.violations))


def device_table(problem: Problem, judgement: Judgement) -> Table:
    """Load, memory and waiting of each device, and the load of each shared link."""
    table = _table(("device", "ops", "load", "", "compute", "send", "receive", "memory", "free", "waits for"))
    for use in judgement.devices:
        share = use.load / judgement.value if judgement.value > 0 and math.isfinite(judgement.value) else 0.0
        table.add_row(
            Text(use.device, style="bold" if use.device == judgement.bottleneck else ""),
            str(use.ops),
            format_seconds(use.load),
            _bar(share),
            format_seconds(use.compute),
            format_seconds(use.send),
            format_seconds(use.receive),
            f"{format_bytes(use.peak)} of {format_bytes(use.capacity)}",
            format_bytes(use.free) if use.free >= 0 else f"−{format_bytes(-use.free)}",
            "bottleneck" if use.device == judgement.bottleneck else use.waits_for if use.ops else "unused",
        )
    for wire, load in judgement.wires.items():
        share = load / judgement.value if judgement.value > 0 else 0.0
        waits = "bottleneck" if wire == judgement.bottleneck else ""
        table.add_row(f"link {wire}", "", format_seconds(load), _bar(share), "", "", "", "", "", waits)
    return table


def baseline_table(result: Result) -> Table:
    """The plan beside what people do without it."""
    table = _table(("compared with", "value", ""))
    for row in baseline_lines(result):
        table.add_row(*row)
    return table


def rows_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; columns whose heading ends in a space are numbers and stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column.strip(), justify="right" if column.endswith(" ") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    numbers = {"ops", "load", "compute", "send", "receive", "memory", "free", "value"}
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=column != "")
    return table


def _bar(share: float) -> str:
    full = round(min(max(share, 0.0), 1.0) * _BAR)
    return "█" * full + "░" * (_BAR - full)


def _bold(text: str) -> Text:
    return Text(text, style="bold")
