"""A run at a glance: for each device and link, how busy it is in every slot of time, and how much of that is marked.

For latency the run is the judge's timeline, and what is on the critical path is marked. For throughput it is one period
of the full pipeline: what a device computes, which is marked, and copies for one sample, side by side (their order
inside a period means nothing), and the rest of the period idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.columns import Bools, Floats
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement, Timeline
from placewise.report.critical import Step, critical_path

MARKED, BUSY, PARTLY, IDLE = "█", "▒", "░", "·"
HALF, NOTHING = 0.5, 1e-6
"""A slot that is busy for so much of its time counts as busy; for so little, as idle."""
Span: TypeAlias = tuple[float, float]
Spans: TypeAlias = tuple[Floats, Floats]
"""When one thing, or each of several, begins and ends, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One device, or one link: shares of every slot [slots] of the run, `busy` in all and `marked` among it.

    `seconds` is how long it is busy.
    """

    name: str
    busy: Floats
    marked: Floats
    seconds: float
    is_link: bool = False


def lanes_of(
    problem: Problem, placement: Placement, judgement: Judgement, slots: int, path: Sequence[Step] | None = None
) -> tuple[Lane, ...]:
    """Devices as the cluster has them, then links that carry anything; none where nothing takes any time.

    `path` is the critical path of a run, where that is known already.
    """
    if not math.isfinite(judgement.value) or judgement.value <= 0:
        return ()
    if judgement.timeline is None:
        return _period(problem, judgement, slots)
    if path is None:
        path = critical_path(problem, placement, judgement.timeline)
    return _timed(problem, placement, judgement.timeline, path, judgement.value, slots)


def marks(lane: Lane) -> str:
    """A lane as text, a character for each of its slots."""
    return "".join(map(_mark, lane.busy.tolist(), lane.marked.tolist()))


def legend(judgement: Judgement) -> tuple[str, str, str, str]:
    """What the four marks mean."""
    words = ("on the critical path", "busy") if judgement.timeline is not None else ("computes", "copies")
    return *words, "busy for less than half", "idle"


def chosen(lanes: Sequence[Lane], most: int) -> tuple[list[Lane], int]:
    """The busiest lanes, in the order that they have, and how many are left out; what never works is left out too."""
    working = [lane for lane in lanes if lane.seconds > 0]
    busiest = sorted(working, key=lambda lane: (lane.is_link, -lane.seconds))[:most]
    return [lane for lane in working if lane in busiest], len(working) - len(busiest)


def _mark(busy: float, marked: float) -> str:
    if marked >= HALF or (marked > NOTHING and marked >= busy * HALF):
        return MARKED
    return BUSY if busy >= HALF else PARTLY if busy > NOTHING else IDLE


def shares(spans: Spans, end: float, slots: int) -> Floats:
    """The share of each of so many equal slots of [0, end] that spans cover; where they overlap, 1 at most."""
    edges = np.linspace(0.0, end, slots + 1)
    covered = np.diff(_seconds_before(spans[0], edges) - _seconds_before(spans[1], edges)) / (end / slots)
    return np.clip(covered, 0.0, 1.0)


def _seconds_before(moments: Floats, edges: Floats) -> Floats:
    """For each edge, the sum over all moments before it of how long before."""
    moments = np.sort(moments)
    count = np.searchsorted(moments, edges)
    total = np.concatenate(([0.0], np.cumsum(moments)))
    passed: Floats = count * edges - total[count]
    return passed


def _timed(
    problem: Problem, placement: Placement, timeline: Timeline, path: Sequence[Step], end: float, slots: int
) -> tuple[Lane, ...]:
    names = problem.cluster.names
    op, copy = np.zeros(problem.n_ops, np.bool_), np.zeros(len(timeline.tensor), np.bool_)
    op[[step.index for step in path if step.kind == "op"]] = True
    copy[[step.index for step in path if step.kind == "copy"]] = True
    found = []
    for d, name in enumerate(names):
        here = placement.device == d
        found.append(_lane(name, (timeline.start, timeline.finish), here, op, end, slots))
    places = (*names, HOST)
    ways = sorted(set(zip(timeline.source.tolist(), timeline.target.tolist(), strict=True)))
    for source, target in ways:
        here = (timeline.source == source) & (timeline.target == target)
        way = f"{places[source]} → {places[target]}"
        found.append(_lane(way, (timeline.sent, timeline.arrived), here, copy, end, slots, is_link=True))
    return tuple(lane for lane in found if lane.seconds > 0 or not lane.is_link)


def _lane(
    name: str, spans: Spans, here: Bools, marked: Bools, end: float, slots: int, *, is_link: bool = False
) -> Lane:
    all_of, some = (spans[0][here], spans[1][here]), here & marked
    seconds = float((all_of[1] - all_of[0]).sum())
    on_path = shares((spans[0][some], spans[1][some]), end, slots)
    return Lane(name, shares(all_of, end, slots), on_path, seconds, is_link)


def _period(problem: Problem, judgement: Judgement, slots: int) -> tuple[Lane, ...]:
    """One period: a lane per device, others for its copies where they overlap compute, and one per shared link."""
    value, mode = judgement.value, problem.objective.communication
    pace = max((use.forward or 0.0 for use in judgement.devices), default=0.0)
    found = []
    for use in judgement.devices:
        for name, computing, copying in _tracks(use, mode, pace):
            marked = shares(_columns(computing), value, slots)
            busy = shares(_columns([*computing, *copying]), value, slots)
            seconds = sum(end - begin for begin, end in (*computing, *copying))
            found.append(Lane(name, busy, marked, seconds))
    for wire, load in judgement.wires.items():
        busy = shares(_columns([(0.0, load)]), value, slots)
        found.append(Lane(f"link {wire}", busy, np.zeros(slots), load, is_link=True))
    return tuple(found)


def _tracks(use: DeviceUse, mode: str, pace: float) -> list[tuple[str, list[Span], list[Span]]]:
    """The tracks of a device in one period: its name, when it computes, and when it copies.

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


def _columns(spans: Sequence[Span]) -> Spans:
    begin, end = np.array([*spans], np.float64).reshape(-1, 2).T
    return begin, end
