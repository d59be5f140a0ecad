"""The timeline as columns of tasks: ops first and in order, then copies. Rows are devices, then links.

Stages whose ops are split have a row per replica, with a lane per activity.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.model.sharding import KINDS
from placewise.model.tables import Interned
from placewise.model.ways import StageGroup
from placewise.reporting.page.columns import clean_text, pack_column, pack_integers, pack_words
from placewise.reporting.page.plan_view import Period, PlacedModel, PlanView, StagePeriod
from placewise.reporting.ranges import name_range

MAX_LANES = 64
"""The most lanes of a row; further simultaneous tasks share the last one."""
TOGETHER = 1e-9
"""Tasks of one lane may overlap by this share of the whole: rounding."""


def timeline_part(view: PlanView, tensors: Longs) -> dict[str, Any] | None:
    """The timeline of a page: a run for latency, one sample of a full pipeline for throughput; None if there is none.

    `tensors` are those of the page's table of copied tensors. A row belongs to a `device`, or to a link (−1) between
    two `ends` (memories; the host is the number of devices). Columns by task: `row`, `lane`, `start`, `seconds`;
    `tensor` by copy, a row of that table; `critical`, the tasks of the critical path; `period`, None for a run.

    Stages whose ops are split have `activities`, one per lane, and a row per replica: the first one of a stage has
    `turns` (its replicas) and `shown` (how many have a row, below it). Tasks behind the ops then have words (`what`),
    an `op` and a `tensor` (−1: none); `begins` are the ops that begin a pass, `note` are sentences about what is drawn.
    """
    if view.placed is None:
        return None
    tensor_rows = np.full(view.placed.problem.graph.n_tensors, -1, np.int64)
    tensor_rows[tensors] = np.arange(len(tensors))
    if view.placed.stages is not None:
        return stage_part(view.placed, view.placed.stages, tensor_rows)
    timeline = view.placed.judgement.timeline
    if timeline is not None and view.placed.judgement.value > 0:
        return _run_part(view.placed, timeline, tensor_rows)
    return None if view.placed.period is None else _period_part(view.placed.problem, view.placed.period, tensor_rows)


def why_no_timeline(view: PlanView) -> str:
    """Why a plan has no timeline, in words."""
    if view.placed is None:
        return view.missing
    if not np.isfinite(view.placed.judgement.value):
        return "this placement cannot run, so that nothing has a time"
    if view.placed.placement.replicas is not None:
        return "stages are replicated: their devices take turns with the samples, and no single order is theirs"
    if view.placed.problem.objective.schedule == "gpipe":
        return "the schedule gpipe flushes between the phases: it has no steady state to draw"
    return "nothing takes any time"


def copied_tensors(view: PlanView) -> Longs:
    """The tensors that are copied, ascending."""
    if view.placed is not None and view.placed.judgement.timeline is not None:
        return np.unique(view.placed.judgement.timeline.tensor).astype(np.int64)
    period = None if view.placed is None else view.placed.stages or view.placed.period
    if period is None:
        return np.zeros(0, np.int64)
    tensor = period.tensor
    return np.unique(tensor[tensor >= 0]).astype(np.int64)


def _run_part(placed: PlacedModel, timeline: Timeline, tensor_rows: Longs) -> dict[str, Any]:
    problem, places = placed.problem, placed.problem.n_devices + 1
    keys, route = np.unique(timeline.source.astype(np.int64) * places + timeline.target, return_inverse=True)
    row = np.concatenate((placed.placement.device, problem.n_devices + route)).astype(np.int64)
    start = np.concatenate((timeline.start, timeline.sent))
    seconds = np.concatenate((timeline.finish, timeline.arrived)) - start
    rows: list[dict[str, Any]] = [{"label": clean_text(n), "device": d} for d, n in enumerate(problem.cluster.names)]
    for key in keys.tolist():
        ends = divmod(key, places)
        rows.append({"label": _link_label(problem, *ends), "device": -1, "ends": ends})
    critical = (step for step in placed.path if step.kind != "overhead")
    tasks = [step.index + (problem.n_ops if step.kind == "copy" else 0) for step in critical]
    return _task_columns(rows, row, start, seconds, timeline.makespan) | {
        "tensor": pack_column(tensor_rows[timeline.tensor], "i4"),
        "critical": pack_column(tasks, "i4"),
        "period": None,
    }


def _period_part(problem: Problem, period: Period, tensor_rows: Longs) -> dict[str, Any]:
    numbers = {name: d for d, name in enumerate(problem.cluster.names)}
    order = sorted(range(len(period.tracks)), key=lambda k: (numbers.get(period.tracks[k][0], len(numbers)), k))
    tracks = [period.tracks[k] for k in order]
    rows: list[dict[str, Any]] = [
        {"label": clean_text(name if track == "compute" else f"{name} {track}"), "device": numbers.get(name, -1)}
        for name, track in tracks
    ]
    row = np.argsort(order)[period.track].astype(np.int64)
    span = float((period.start + period.spent).max(initial=0.0))
    return _task_columns(rows, row, period.start, period.spent, span) | {
        "tensor": pack_column(tensor_rows[period.tensor[period.op < 0]], "i4"),
        "critical": pack_column([], "i4"),
        "period": period.seconds,
    }


def _task_columns(rows: list[dict[str, Any]], row: Longs, start: Floats, seconds: Floats, end: float) -> dict[str, Any]:
    lane, counts = assign_lanes(row, start, start + seconds, len(rows), TOGETHER * end)
    for item, count in zip(rows, counts, strict=True):
        item["lanes"] = count
    return {
        "rows": rows, "row": pack_integers(row), "lane": pack_integers(lane) if lane.any() else None,
        "start": pack_column(start, "f8"), "seconds": pack_column(seconds, "f4"), "end": end,
    }  # fmt: skip


def assign_lanes(row: Longs, start: Floats, finish: Floats, n_rows: int, slack: float) -> tuple[Ints, list[int]]:
    """The lane of each task within its row, so that none overlap, and how many lanes each row has."""
    lane, counts = np.zeros(len(row), np.int32), [1] * n_rows
    order = np.lexsort((finish, start, row))
    same = row[order[1:]] == row[order[:-1]]
    crowded = np.unique(row[order[1:]][same & (start[order[1:]] < finish[order[:-1]] - slack)])
    for busy_row in crowded.tolist():
        tasks = order[row[order] == busy_row].tolist()
        free: list[int] = []
        running: list[tuple[float, int]] = []
        used = 0
        for task in tasks:
            while running and running[0][0] <= start[task] + slack:
                heapq.heappush(free, heapq.heappop(running)[1])
            if not free:
                heapq.heappush(free, min(used, MAX_LANES - 1))
                used = min(used + 1, MAX_LANES)
            own = heapq.heappop(free)
            lane[task] = own
            heapq.heappush(running, (float(finish[task]), own))
        counts[busy_row] = used
    return lane, counts


def _link_label(problem: Problem, source: int, target: int) -> str:
    names, wire = (*problem.cluster.names, HOST), int(problem.cluster.wire[source, target])
    shared = f" ({problem.cluster.wires[wire]})" if wire >= 0 else ""
    return clean_text(f"{names[source]} → {names[target]}{shared}")


MOST_ROWS = 32
"""Rows of replicas; of pipelines with more, every stage shows the same number of its first ones, at least one."""
ACTIVITIES = ("compute", "recomputation", "collectives", "transfers", "gradient exchange")
"""In the order of their lanes."""


def stage_part(placed: PlacedModel, made: StagePeriod, tensor_rows: Longs) -> dict[str, Any]:
    """The timeline of a page; see `timeline_part`."""
    groups = placed.placement.stages
    shown = _count_rows(groups)
    first = np.concatenate(([0], np.cumsum(shown)[:-1]))
    activity = np.concatenate(
        (np.zeros(placed.problem.n_ops, np.int64), np.array([_activity_of(what) for what in made.what], np.int64))
    )
    used, lane = np.unique(activity, return_inverse=True)
    rows = []
    for s, group in enumerate(groups):
        for replica in range(shown[s]):
            row = _row(placed.problem, s, group, replica) | {"lanes": len(used), "of": int(first[s])}
            rows.append(row if replica else row | {"turns": group.data_parallel, "shown": shown[s]})
    whole = np.where(made.tensor >= 0, tensor_rows[made.tensor], -1)
    return {
        "rows": rows,
        "row": pack_integers(first[made.stage]),
        "lane": pack_integers(lane),
        "start": pack_column(made.start, "f8"),
        "seconds": pack_column(made.spent, "f4"),
        "end": float((made.start + made.spent).max(initial=0.0)),
        "tensor": pack_column(whole, "i4"),
        "critical": pack_column([], "i4"),
        "period": made.seconds,
        "activities": [ACTIVITIES[k] for k in used.tolist()],
        "what": pack_words(_intern(made.what)),
        "op": pack_column(made.op, "i4"),
        "begins": pack_column(made.begins, "i4"),
        "note": _describe(placed.problem, made, groups, shown),
    }


def _intern(words: Sequence[str]) -> Interned[str]:
    values = {word: code for code, word in enumerate(dict.fromkeys(words))}
    return Interned(tuple(values), np.array([values[word] for word in words], np.int32))


def _count_rows(groups: Sequence[StageGroup]) -> list[int]:
    """How many replicas of each stage have a row."""
    most = max(group.data_parallel for group in groups)
    while most > 1 and sum(min(group.data_parallel, most) for group in groups) > MOST_ROWS:
        most -= 1
    return [min(group.data_parallel, most) for group in groups]


def _row(problem: Problem, stage: int, group: StageGroup, replica: int) -> dict[str, Any]:
    t, names = group.tensor_parallel, problem.cluster.names
    devices = group.devices[replica * t : (replica + 1) * t]
    return {"label": clean_text(f"{stage}: {name_range([names[d] for d in devices])}"), "device": devices[0]}


def _activity_of(what: str) -> int:
    if what in (*KINDS, "collectives"):
        return ACTIVITIES.index("collectives")
    return {"recompute": 1, "gradient exchange": 4}.get(what, 3)


def _describe(problem: Problem, made: StagePeriod, groups: Sequence[StageGroup], shown: Sequence[int]) -> str:
    said = ["Each row is a replica of a stage, all of whose devices do the same."]
    if any(group.data_parallel > 1 for group in groups):
        said.append("Replicas take micro-batches in turns.")
    if any(group.data_parallel > rows for group, rows in zip(groups, shown, strict=True)):
        said.append("Not all replicas have a row: the others do the same with the next micro-batches.")
    if made.joined:
        said.append("The forward and the backward pass of a micro-batch are drawn as one.")
    if "gradient exchange" in made.what:
        said.append("Gradients are exchanged once per step; what is drawn is the share of each micro-batch.")
    if len(problem.graph.phases) > 1:
        repeated = " and ".join(phase.name for phase in problem.graph.phases if phase.repeats > 1)
        said.append(f"All repetitions of a phase ({repeated}) are drawn as one." if repeated else "")
    return " ".join(filter(None, said))
