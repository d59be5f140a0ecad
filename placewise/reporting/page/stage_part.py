"""The timeline of stages whose ops are split, as columns: a row per replica, with a lane per activity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placewise.model.columns import Longs
from placewise.model.problem import Problem
from placewise.model.sharding import KINDS
from placewise.model.tables import Interned
from placewise.model.ways import StageGroup
from placewise.reporting.page.columns import clean_text, pack_column, pack_integers, pack_words
from placewise.reporting.page.plan_view import PlacedModel, StagePeriod
from placewise.reporting.ranges import name_range

MOST_ROWS = 32
"""Rows of replicas; of pipelines with more, every stage shows the same number of its first ones, at least one."""
ACTIVITIES = ("compute", "recomputation", "collectives", "transfers", "gradient exchange")
"""In the order of their lanes."""


def stage_part(placed: PlacedModel, made: StagePeriod, tensor_rows: Longs) -> dict[str, Any]:
    """The timeline of a page; see `timeline_part`."""
    groups = placed.placement.stages
    shown = _count_rows(groups)
    first = np.concatenate(([0], np.cumsum(shown)[:-1]))
    activity = np.concatenate((np.zeros(placed.problem.n_ops, np.int64), [_activity_of(what) for what in made.what]))
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
