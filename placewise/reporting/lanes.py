"""A run at a glance: for each device and link, how busy it is in every slot of time, and how much of that is marked.

For latency this is the judge's timeline, with the critical path marked. For throughput it is one period of the full
pipeline: the compute of each device, which is marked, beside its copies for one sample (their order within the period
means nothing), and the rest of the period idle. Stages whose ops are split have a lane each, called by their number,
replicas × devices of a split; collectives, transfers and the exchange of gradients are busy and not marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.columns import Bools, Floats, Longs, rows_of_labels
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement, Timeline
from placewise.reporting.critical_path import CriticalStep, critical_path

MARKED, BUSY, PARTLY, IDLE = "█", "▒", "░", "·"
HALF, NOTHING = 0.5, 1e-6
"""The busy share from which a slot counts as busy, and below which it counts as idle."""
Span: TypeAlias = tuple[float, float]
Spans: TypeAlias = tuple[Floats, Floats]
"""Start and end of one event, or of each of several, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One device or link: the `busy` share of every slot [slots] of the run, and the `marked` share within it.

    `seconds` is how long it is busy in all.
    """

    name: str
    busy: Floats
    marked: Floats
    seconds: float
    is_link: bool = False


def lanes_of(
    problem: Problem, placement: Placement, judgement: Judgement, slots: int, path: Sequence[CriticalStep] | None = None
) -> tuple[Lane, ...]:
    """Devices in the order of the cluster, then the links in use; empty where nothing takes any time.

    `path` is the critical path of the run if the caller already has it.
    """
    if not math.isfinite(judgement.value) or judgement.value <= 0:
        return ()
    if judgement.stages:
        return _stage_lanes(placement, judgement, slots, one_by_one=problem.objective.kind == "latency")
    if judgement.timeline is None:
        return _period_lanes(problem, judgement, slots)
    if path is None:
        path = critical_path(problem, placement, judgement.timeline)
    return _run_lanes(problem, placement, judgement.timeline, path, judgement.value, slots)


def draw_lane(lane: Lane) -> str:
    """A lane as text, one character per slot."""
    return "".join(map(_slot_mark, lane.busy.tolist(), lane.marked.tolist()))


def mark_runs(line: str) -> Iterator[tuple[str, int, int]]:
    """The runs of equal marks of a lane that is drawn: mark, first slot, number of slots."""
    at = 0
    for mark, run in groupby(line):
        length = len(list(run))
        yield mark, at, length
        at += length


def legend(judgement: Judgement) -> tuple[str, str, str, str]:
    """What the four marks mean."""
    words = ("on the critical path", "busy") if judgement.timeline is not None else ("computes", "copies")
    if judgement.stages:
        words = ("computes", "collectives, transfers, gradients")
    return *words, "busy for less than half", "idle"


def busiest_lanes(lanes: Sequence[Lane], most: int) -> tuple[list[Lane], int]:
    """The busiest lanes in their given order, and how many busy ones are left out; idle lanes never count."""
    working = [lane for lane in lanes if lane.seconds > 0]
    busiest = sorted(working, key=lambda lane: (lane.is_link, -lane.seconds))[:most]
    return [lane for lane in working if lane in busiest], len(working) - len(busiest)


def _slot_mark(busy: float, marked: float) -> str:
    if marked >= HALF or (marked > NOTHING and marked >= busy * HALF):
        return MARKED
    return BUSY if busy >= HALF else PARTLY if busy > NOTHING else IDLE


def slot_shares(spans: Spans, end: float, slots: int) -> Floats:
    """The share of each of `slots` equal parts of [0, end] that the spans cover; at most 1 where they overlap."""
    edges = np.linspace(0.0, end, slots + 1)
    covered = np.diff(_seconds_before(spans[0], edges) - _seconds_before(spans[1], edges)) / (end / slots)
    return np.clip(covered, 0.0, 1.0)


def _seconds_before(moments: Floats, edges: Floats) -> Floats:
    """For each edge, the sum of its distances to all earlier moments."""
    moments = np.sort(moments)
    count = np.searchsorted(moments, edges)
    total = np.concatenate(([0.0], np.cumsum(moments)))
    return count * edges - total[count]


def _run_lanes(
    problem: Problem, placement: Placement, timeline: Timeline, path: Sequence[CriticalStep], end: float, slots: int
) -> tuple[Lane, ...]:
    names = problem.cluster.names
    op, copy = np.zeros(problem.n_ops, np.bool_), np.zeros(len(timeline.tensor), np.bool_)
    op[[step.index for step in path if step.kind == "op"]] = True
    copy[[step.index for step in path if step.kind == "copy"]] = True
    lanes = []
    for name, here in zip(names, rows_of_labels(placement.device, len(names)), strict=True):
        lanes.append(_make_lane(name, (timeline.start, timeline.finish), here, op, end, slots))
    places = (*names, HOST)
    keys, number = np.unique(timeline.source.astype(np.int64) * len(places) + timeline.target, return_inverse=True)
    for key, here in zip(keys.tolist(), rows_of_labels(number, len(keys)), strict=True):
        source, target = divmod(key, len(places))
        route = f"{places[source]} → {places[target]}"
        lanes.append(_make_lane(route, (timeline.sent, timeline.arrived), here, copy, end, slots, is_link=True))
    return tuple(lane for lane in lanes if lane.seconds > 0 or not lane.is_link)


def _make_lane(
    name: str, spans: Spans, here: Longs, marked: Bools, end: float, slots: int, *, is_link: bool = False
) -> Lane:
    own, some = (spans[0][here], spans[1][here]), here[marked[here]]
    on_path = slot_shares((spans[0][some], spans[1][some]), end, slots)
    return Lane(name, slot_shares(own, end, slots), on_path, float((own[1] - own[0]).sum()), is_link)


def _period_lanes(problem: Problem, judgement: Judgement, slots: int) -> tuple[Lane, ...]:
    """One period: a lane per device, more for copies that overlap its compute, and one per shared link."""
    value, mode = judgement.value, problem.objective.communication
    pace = max((use.forward or 0.0 for use in judgement.devices), default=0.0)
    lanes = []
    for use in judgement.devices:
        for name, computing, copying in _period_tracks(use, mode, pace):
            marked = slot_shares(_span_columns(computing), value, slots)
            busy = slot_shares(_span_columns([*computing, *copying]), value, slots)
            seconds = sum(end - begin for begin, end in (*computing, *copying))
            lanes.append(Lane(name, busy, marked, seconds))
    for link, load in judgement.wires.items():
        busy = slot_shares(_span_columns([(0.0, load)]), value, slots)
        lanes.append(Lane(f"link {link}", busy, np.zeros(slots), load, is_link=True))
    return tuple(lanes)


def _stage_lanes(placement: Placement, judgement: Judgement, slots: int, *, one_by_one: bool) -> tuple[Lane, ...]:
    """A lane per stage: one micro-batch of a full pipeline, or the stages of a request one after the other."""
    lanes, begin = [], 0.0
    for s, (group, use) in enumerate(zip(placement.stages, judgement.stages, strict=True)):
        computed = begin + use.compute - use.collective
        marked = slot_shares(_span_columns([(begin, computed)]), judgement.value, slots)
        busy = slot_shares(_span_columns([(begin, begin + use.seconds)]), judgement.value, slots)
        sizes = f" {group.data_parallel} × {group.tensor_parallel}" if len(group.devices) > 1 else ""
        lanes.append(Lane(f"stage {s}{sizes}", busy, marked, use.seconds))
        begin += use.seconds if one_by_one else 0.0
    return tuple(lanes)


def _period_tracks(use: DeviceUse, mode: str, pace: float) -> list[tuple[str, list[Span], list[Span]]]:
    """The tracks of a device in one period: name, spans of compute, spans of copies.

    `pace` is the longest forward load of a pipeline that flushes, after which its backward phase begins.
    """
    if use.forward is not None and use.backward is not None:
        return [(use.device, [(0.0, use.forward), (pace, pace + use.backward)], [])]
    computing = [(0.0, use.compute)]
    if mode == "blocking":
        return [(use.device, computing, [(use.compute, use.load)])]
    sides = {"send": use.send + use.sync, "receive": use.receive + use.sync}
    if mode == "overlap":
        sides = {"copies": use.send + use.receive + use.sync}
    copies = [(f"{use.device} {what}", list[Span](), [(0.0, seconds)]) for what, seconds in sides.items() if seconds]
    return [(use.device, computing, []), *copies]


def _span_columns(spans: Sequence[Span]) -> Spans:
    begin, end = np.array([*spans], np.float64).reshape(-1, 2).T
    return begin, end
