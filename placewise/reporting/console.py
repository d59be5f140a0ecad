"""The terminal view of a result: headline, verdict, tables, Gantt chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from placewise._util.units import format_seconds
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Result
from placewise.reporting.copies import copy_rows
from placewise.reporting.device_parts import describe_device_parts
from placewise.reporting.devices import DeviceView, device_remarks, peak_line
from placewise.reporting.gantt import Gantt
from placewise.reporting.pipeline import COLUMNS, pipeline_line, pipeline_rows
from placewise.reporting.plain import shown_text
from placewise.reporting.sentences import (
    assumption_lines,
    baseline_lines,
    expected_line,
    headline,
    history_line,
    host_remark,
    phase_line,
    replica_lines,
    value_name,
    verdict,
    whole_op_line,
)
from placewise.reporting.stages import COLUMNS as STAGE_COLUMNS
from placewise.reporting.stages import cut_rows, stage_rows
from placewise.simulate import MemoryPeak

HASH_DIGITS = 12
"""How many digits of a hash are shown."""


def result_view(result: Result, *, gantt: bool = True, targets: str = "") -> RenderableType:
    """Everything that `place` prints, with or without the Gantt chart; `targets` says which tools could run it."""
    problem, parts = result.problem, list[RenderableType]([shown_text(headline(result), style="bold")])
    parts += [shown_text(line) for line in assumption_lines(problem.cluster)]
    if result.judgement is not None:
        phases = phase_line(problem, result.judgement)
        parts += [shown_text(phases)] if phases else []
        sentence = verdict(result)
        parts += [
            shown_text(line) for line in (expected_line(result), sentence, targets, whole_op_line(problem)) if line
        ]
        parts += [Text(), *use_of_devices(problem, result.judgement, result.placement), Text()]
        parts += _run_parts(result, gantt=gantt)
        parts += [baseline_table(result), Text()] if result.compared else []
    history = history_line(result)
    parts += [shown_text(history, style="dim")] if history else []
    parts += [shown_text(f"note: {note}", style="dim") for note in result.notes]
    run = f"{result.placer}, {result.status}, {result.seconds:.2f} s, seed {result.seed}"
    if result.placement:
        run += f", placement {result.placement_hash[:HASH_DIGITS]}"
    return Group(*parts, shown_text(run, style="dim"))


def judgement_view(
    problem: Problem, judgement: Judgement, peaks: Sequence[MemoryPeak] = (), placement: Placement | None = None
) -> RenderableType:
    """Everything that `judge` prints, with a line per memory peak."""
    value = format_seconds(judgement.value) if math.isfinite(judgement.value) else "none: it cannot run"
    parts: list[RenderableType] = [shown_text(f"{value_name(problem.objective, problem.ways)} {value}", style="bold")]
    phases = phase_line(problem, judgement)
    parts += [shown_text(phases)] if phases else []
    parts += use_of_devices(problem, judgement, placement)
    parts += [shown_text(peak_line(peak), style="dim") for peak in peaks]
    return Group(*parts, violation_view(judgement))


def violation_view(judgement: Judgement) -> RenderableType:
    """The violated rules, or a line that there are none."""
    if not judgement.violations:
        return Text("keeps every rule", style="green")
    return Group(*(shown_text(f"✗ {broken.kind}: {broken.message}", style="red") for broken in judgement.violations))


def baseline_table(result: Result) -> Table:
    """The plan beside the naive baselines."""
    return rows_table(("compared with", "value ", ""), baseline_lines(result))


def rows_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table. Columns whose heading ends in a space hold numbers and are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=any(column.strip() for column in columns))
    for column in columns:
        right = column.endswith(" ")
        table.add_column(shown_text(column.strip()), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(shown_text(cell) for cell in row))
    return table


def rows_beside_nodes(columns: Sequence[str], nodes: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose rows begin with a device; its node is beside it, where any of them is in one."""
    if not any(nodes):
        return rows_table(columns, rows)
    beside = [(row[0], node, *row[1:]) for row, node in zip(rows, nodes, strict=True)]
    return rows_table((columns[0], "node", *columns[1:]), beside)


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table with as many columns as fit; `drops` are those to drop, one after the other."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    drops: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(range(len(self.columns)))
        for drop in (*self.drops, ""):
            table = rows_table([self.columns[k] for k in shown], [[row[k] for k in shown] for row in self.rows])
            if Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width:
                break
            shown = [k for k in shown if self.columns[k] != drop]
        yield table


def _run_parts(result: Result, *, gantt: bool) -> list[RenderableType]:
    """The copies of a run, and its Gantt chart; nothing for stages, which have tables of their own."""
    problem, placement, judgement = result.problem, result.placement, result.judgement
    if placement is None or judgement is None or problem.ways is not None or judgement.pipeline is not None:
        return []
    parts: list[RenderableType] = []
    if rows := copy_rows(problem, placement, judgement.timeline):
        parts += [rows_table(("copies", "number ", "bytes ", "seconds ", "most expensive"), rows), Text()]
    chart = Gantt(problem, placement, judgement)
    return [*parts, chart, Text()] if gantt and chart.is_useful else parts


def device_parts_view(problem: Problem, placement: Placement) -> RenderableType:
    """A line per device that runs anything: its node, where there are any, and what it holds, in words."""
    cluster, words = problem.cluster, describe_device_parts(problem, placement)
    rows = [(name, node, text) for name, node, text in zip(cluster.names, cluster.nodes, words, strict=True) if text]
    if any(node for _, node, _ in rows):
        return rows_table(("", "", ""), rows)
    return rows_table(("", ""), [(name, text) for name, _, text in rows])


def use_of_devices(problem: Problem, judgement: Judgement, placement: Placement | None) -> list[RenderableType]:
    """What each device holds and does; by stage where ops may be split."""
    if problem.ways is None:
        parts = [] if placement is None else [device_parts_view(problem, placement), Text()]
        return [*parts, *_devices(problem, judgement, placement), *_pipeline(judgement)]
    if placement is None or not judgement.stages:
        return []
    devices = sum(len(group.devices) for group in placement.stages)
    count = len(placement.stages)
    used = f"{count} {'stage' if count == 1 else 'stages'} on {devices} of {problem.n_devices} devices"
    rows = cut_rows(stage_rows(problem, placement, judgement))
    return [rows_table(STAGE_COLUMNS, rows), shown_text(used, style="dim")]


def _pipeline(judgement: Judgement) -> list[RenderableType]:
    """The schedule and the stages of a training step, if there are any."""
    use = judgement.pipeline
    if use is None:
        return []
    return [Text(), shown_text(pipeline_line(use)), rows_table(COLUMNS, pipeline_rows(use))]


def _devices(problem: Problem, judgement: Judgement, placement: Placement | None = None) -> list[RenderableType]:
    remark = host_remark(problem, judgement)
    remarks = [*replica_lines(judgement), *([remark] if remark else []), *device_remarks(problem, judgement, placement)]
    closed = frozenset(device.name for device in problem.cluster if not device.available)
    return [DeviceView(judgement, closed), *(shown_text(line, style="dim") for line in remarks)]
