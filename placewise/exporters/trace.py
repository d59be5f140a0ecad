"""The judge's timeline as a trace for Perfetto and chrome://tracing, in the Trace Event Format (JSON).

Every device is a process with a track of ops (several if it runs ops at once) and a counter of its memory. Copies are
on the tracks of their links for latency, and on those of their device for throughput. Arrows follow the tensors.
Where ops are split, every device also has tracks for collectives, transfers, recomputation and gradients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, ExportOption, OptionValues
from placewise.exporters.timeline_tasks import TimelineTask, schedule_tasks
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement, memory_while
from placewise.transform.precision import PRECISIONS

FILE = "trace.json"
MAX_SAMPLES = 1000
MICROSECONDS = 1e6
ROUNDING, INSIDE = 1e-12, 0.01
"""Shares of time: the overlap of slices that counts as rounding; how far before its end an arrow leaves a slice."""
_CATEGORIES = {
    "collectives": "collective", "transfers": "copy", "gradients": "gradients", "recomputation": "recomputation",
}  # fmt: skip
"""Of tracks that only stages have whose ops are split; other slices are ops, or copies."""
Event = dict[str, Any]


class TraceExporter:
    """A timeline of one sample for latency, or of some samples through a full pipeline for throughput."""

    info = ExportInfo(
        "trace",
        writes="a Chrome trace (JSON)",
        loaded_by="Perfetto (ui.perfetto.dev), chrome://tracing",
        verified="text only",
        cannot_say="replicas of stages, unless ops may be split",
        splits=True,
        sequence_parallel=True,
        suffix=".json",
        precisions=tuple(PRECISIONS),
        disk=True,
        options={"samples": ExportOption(4, f"how many samples of a pipeline to show, 1 to {MAX_SAMPLES}")},
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        samples = int(options["samples"])
        if not 1 <= samples <= MAX_SAMPLES:
            raise ExportError(f"samples is {samples}", remedy=f"show 1 to {MAX_SAMPLES}")
        placement = replace(placement, replicas=None)
        judged = judge_placement(problem, placement)
        if not math.isfinite(judged.value):
            raise ExportError("this placement cannot run, so nothing can be shown", remedy="see placewise check")
        tasks = schedule_tasks(problem, placement, judged, samples)
        tracks = _Tracks(problem, tasks)
        events = [*_name_events(tracks), *_slice_events(problem, tasks, tracks), *_arrow_events(tasks, tracks)]
        if problem.ways is None:
            held = memory_while(problem, placement, judged.timeline)
            events += _memory_events(held.tolist(), tasks, tracks)
        document = {"traceEvents": events, "displayTimeUnit": "ms"}
        return Exported({FILE: json.dumps(document, ensure_ascii=True, separators=(",", ":"))}, placement)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`: the slices of the first sample."""
        events = json.loads(exported.files[FILE])["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        index = {name: op for op, name in enumerate(problem.graph.ops.name)}
        read = np.full(problem.n_ops, -1, np.int32)
        for event in events:
            if event["ph"] == "X" and event["cat"] == "op" and not event["args"]["sample"]:
                op = index.get(event["name"], -1)
                if op >= 0 and problem.ways is not None and read[op] >= 0:
                    continue  # all devices of a split show it
                if op < 0 or read[op] >= 0:
                    raise ExportError(f"op {event['name']!r} is twice in the trace, or is not in the model")
                read[op] = problem.cluster.index(names[event["pid"]])
        return read


class _Tracks:
    """The track of every task as (process, thread) in `where` [tasks], and the names of these."""

    def __init__(self, problem: Problem, tasks: Sequence[TimelineTask]) -> None:
        lanes = [(task.place, task.track, lane) for task, lane in zip(tasks, _assign_lanes(tasks), strict=True)]
        places = tuple(dict.fromkeys((*problem.cluster.names, *(task.place for task in tasks))))
        self.processes = {place: number for number, place in enumerate(places, 1)}
        self.threads: dict[tuple[int, int], str] = {}
        where: dict[tuple[str, str, int], tuple[int, int]] = {}
        for place, track, lane in sorted(set(lanes), key=lambda key: (key[0], key[1] != "compute", key)):
            process = self.processes[place]
            thread = 1 + sum(known == process for known, _ in self.threads)
            where[place, track, lane] = (process, thread)
            self.threads[process, thread] = f"{track} {lane + 1}" if lane else track
        self.where = [where[lane] for lane in lanes]


def _assign_lanes(tasks: Sequence[TimelineTask]) -> list[int]:
    """The lowest lane of its track in which each task overlaps no other."""
    lane = [0] * len(tasks)
    ends: dict[tuple[str, str], list[float]] = {}
    for number in sorted(range(len(tasks)), key=lambda number: (tasks[number].start, tasks[number].finish)):
        task = tasks[number]
        busy = ends.setdefault((task.place, task.track), [])
        lane[number] = next((n for n, end in enumerate(busy) if end <= task.start * (1 + ROUNDING)), len(busy))
        busy[lane[number] : lane[number] + 1] = [task.finish]
    return lane


def _name_events(tracks: _Tracks) -> Iterator[Event]:
    for place, process in tracks.processes.items():
        for what, value in (("process_name", {"name": place}), ("process_sort_index", {"sort_index": process})):
            yield {"ph": "M", "name": what, "pid": process, "tid": 0, "ts": 0, "args": value}
    for (process, thread), name in tracks.threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _slice_events(problem: Problem, tasks: Sequence[TimelineTask], tracks: _Tracks) -> Iterator[Event]:
    graph = problem.graph
    for task, (process, thread) in zip(tasks, tracks.where, strict=True):
        args: Event = {"sample": task.sample}
        if task.op >= 0:
            args |= {"kind": graph.ops.kind[task.op], "scope": graph.ops.scope[task.op]}
        if task.tensor >= 0:
            args |= {"bytes": int(graph.tensors.bytes[task.tensor])}
        about = (
            [graph.ops.name[task.op]] if task.op >= 0 else [graph.tensors.name[task.tensor]] if task.tensor >= 0 else []
        )
        yield {
            "ph": "X",
            "name": " ".join([*([task.what] if task.what else []), *about]),
            "cat": _CATEGORIES.get(task.track, "op" if task.op >= 0 else "copy"),
            "pid": process,
            "tid": thread,
            "ts": task.start * MICROSECONDS,
            "dur": task.seconds * MICROSECONDS,
            "args": args,
        }


def _arrow_events(tasks: Sequence[TimelineTask], tracks: _Tracks) -> Iterator[Event]:
    """Arrows from every task to the copies of its results, and from every copy to the first op that reads it."""
    seen: set[tuple[int, str]] = set()
    number = 0
    for reader in sorted(range(len(tasks)), key=lambda task: tasks[task].start):
        for maker in tasks[reader].after:
            if tasks[reader].op >= 0 and (maker, tasks[reader].place) in seen:
                continue
            seen.add((maker, tasks[reader].place))
            number += 1
            leaves = tasks[maker].start + tasks[maker].seconds * (1 - INSIDE)
            yield _arrow("s", number, tracks.where[maker], leaves)
            yield {**_arrow("f", number, tracks.where[reader], tasks[reader].start), "bp": "e"}


def _arrow(letter: str, number: int, where: tuple[int, int], moment: float) -> Event:
    process, thread = where
    ends: Event = {"ph": letter, "name": "tensor", "cat": "tensor", "id": number}
    return ends | {"pid": process, "tid": thread, "ts": moment * MICROSECONDS}


def _memory_events(held: Sequence[float], tasks: Sequence[TimelineTask], tracks: _Tracks) -> Iterator[Event]:
    """The memory of each device while each of its ops runs; `held` [n_ops] in bytes."""
    for task in sorted((task for task in tasks if task.op >= 0), key=lambda task: task.start):
        counter: Event = {"ph": "C", "name": "memory", "pid": tracks.processes[task.place], "tid": 0}
        yield counter | {"ts": task.start * MICROSECONDS, "args": {"bytes": held[task.op]}}
