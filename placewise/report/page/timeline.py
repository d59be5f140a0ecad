"""What runs when, as columns of tasks: ops first and in order, then copies. Rows are devices, then links."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.report.critical import Step
from placewise.report.page.opened import Opened, Period
from placewise.report.page.packed import narrow, packed, shown

MOST_LANES = 64
"""Tasks that run at once on one row beyond so many are drawn on its last lane."""
TOGETHER = 1e-9
"""Share of the whole by which tasks of one lane may overlap: rounding."""


def timeline_part(opened: Opened, tensor_rows: Longs) -> dict[str, Any] | None:
    """The timeline of a page: a run for latency, one sample of a full pipeline for throughput; None if there is none.

    `tensor_rows` [n_tensors] are the rows of the page's table of tensors that cross. A row is of a `device`, or of a
    link (−1) between two `ends` (locations; the host is the number of devices). Columns by task: `row`, `lane`,
    `start`, `seconds`; `tensor` by copy; `critical`, tasks in order; `period` is None in a run.
    """
    problem, placement = opened.problem, opened.placement
    if problem is None or placement is None:
        return None
    judged = opened.judgement
    if judged is not None and judged.timeline is not None and judged.value > 0:
        return _run(problem, placement, judged.timeline, opened.path, tensor_rows)
    return None if opened.period is None else _pipeline(problem, opened.period, tensor_rows)


def why_no_timeline(opened: Opened) -> str:
    """Why a plan has no timeline, in words."""
    problem, judged = opened.problem, opened.judgement
    if problem is None or judged is None:
        return opened.missing
    if not np.isfinite(judged.value):
        return "this placement cannot run, so that nothing has a time"
    if opened.placement is not None and opened.placement.replicas is not None:
        return "stages are replicated: their devices take turns with the samples, and no single order is theirs"
    if problem.objective.schedule == "gpipe":
        return "the schedule gpipe flushes between the phases: it has no steady state to draw"
    return "nothing takes any time"


def crossing(opened: Opened) -> Longs:
    """The tensors that are copied, ascending."""
    judged = opened.judgement
    if judged is not None and judged.timeline is not None:
        return np.unique(judged.timeline.tensor).astype(np.int64)
    if opened.period is None:
        return np.zeros(0, np.int64)
    return np.unique(opened.period.tensor[opened.period.tensor >= 0]).astype(np.int64)


def _run(
    problem: Problem, placement: Placement, timeline: Timeline, path: Sequence[Step], tensor_rows: Longs
) -> dict[str, Any]:
    places = problem.n_devices + 1
    ways, way = np.unique(timeline.source.astype(np.int64) * places + timeline.target, return_inverse=True)
    row = np.concatenate((placement.device, problem.n_devices + way)).astype(np.int64)
    start = np.concatenate((timeline.start, timeline.sent))
    seconds = np.concatenate((timeline.finish, timeline.arrived)) - start
    rows: list[dict[str, Any]] = [{"label": shown(n), "device": d} for d, n in enumerate(problem.cluster.names)]
    for pair in ways.tolist():
        ends = divmod(pair, places)
        rows.append({"label": _link(problem, *ends), "device": -1, "ends": ends})
    tasks = [step.index + (problem.n_ops if step.kind == "copy" else 0) for step in path if step.kind != "overhead"]
    return _columns(rows, row, start, seconds, timeline.makespan) | {
        "tensor": packed(tensor_rows[timeline.tensor], "i4"),
        "critical": packed(tasks, "i4"),
        "period": None,
    }


def _pipeline(problem: Problem, period: Period, tensor_rows: Longs) -> dict[str, Any]:
    numbers = {name: d for d, name in enumerate(problem.cluster.names)}
    order = sorted(range(len(period.tracks)), key=lambda k: (numbers.get(period.tracks[k][0], len(numbers)), k))
    place = np.argsort(order)
    names = [period.tracks[k] for k in order]
    rows = [
        {"label": shown(name if track == "compute" else f"{name} {track}"), "device": numbers.get(name, -1)}
        for name, track in names
    ]
    copies = period.op < 0
    span = float((period.start + period.spent).max(initial=0.0))
    return _columns(rows, place[period.track].astype(np.int64), period.start, period.spent, span) | {
        "tensor": packed(tensor_rows[period.tensor[copies]], "i4"),
        "critical": packed([], "i4"),
        "period": period.seconds,
    }


def _columns(rows: list[dict[str, Any]], row: Longs, start: Floats, seconds: Floats, end: float) -> dict[str, Any]:
    lane, counts = lanes(row, start, start + seconds, len(rows), TOGETHER * end)
    for item, count in zip(rows, counts, strict=True):
        item["lanes"] = count
    return {
        "rows": rows, "row": narrow(row), "lane": narrow(lane) if lane.any() else None, "start": packed(start, "f8"),
        "seconds": packed(seconds, "f4"), "end": end,
    }  # fmt: skip


def lanes(row: Longs, start: Floats, finish: Floats, n_rows: int, slack: float) -> tuple[Ints, list[int]]:
    """The lane of each task within its row, where it runs into no other, and how many lanes each row has."""
    lane, counts = np.zeros(len(row), np.int32), [1] * n_rows
    order = np.lexsort((finish, start, row))
    same = row[order[1:]] == row[order[:-1]]
    crowded = np.unique(row[order[1:]][same & (start[order[1:]] < finish[order[:-1]] - slack)])
    for crowd in crowded.tolist():
        tasks = order[row[order] == crowd].tolist()
        free: list[int] = []
        running: list[tuple[float, int]] = []
        used = 0
        for task in tasks:
            while running and running[0][0] <= start[task] + slack:
                heapq.heappush(free, heapq.heappop(running)[1])
            if not free:
                heapq.heappush(free, min(used, MOST_LANES - 1))
                used = min(used + 1, MOST_LANES)
            own = heapq.heappop(free)
            lane[task] = own
            heapq.heappush(running, (float(finish[task]), own))
        counts[crowd] = used
    return lane, counts


def _link(problem: Problem, source: int, target: int) -> str:
    names, wire = (*problem.cluster.names, HOST), int(problem.cluster.wire[source, target])
    shared = f" ({problem.cluster.wires[wire]})" if wire >= 0 else ""
    return shown(f"{names[source]} → {names[target]}{shared}")
