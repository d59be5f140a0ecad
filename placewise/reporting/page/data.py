"""The data of a page as plain JSON: numbers in seconds and bytes, packed columns, sentences ready to show."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewise.files.plan_file import RankRecord
from placewise.model.cluster import HOST
from placewise.model.columns import Longs
from placewise.model.dtypes import DTYPES
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Timeline
from placewise.reporting.copies import CopyColumns, group_by_route, list_copies
from placewise.reporting.devices import peak_line
from placewise.reporting.leaderboard import finite
from placewise.reporting.page.columns import LONGEST_SENTENCE, clean_text, pack_column, pack_integers, pack_words
from placewise.reporting.page.modules import module_tree
from placewise.reporting.page.overview import overview_part
from placewise.reporting.page.plan_view import PlanView
from placewise.reporting.page.provenance import provenance
from placewise.reporting.page.summary import summarize_plan
from placewise.reporting.page.timeline import copied_tensors, timeline_part, why_no_timeline
from placewise.reporting.stages import stage_rows
from placewise.simulate import memory_peaks, memory_while

VERSION = 1
"""The version of the data inside a page."""
MAX_CUTS, MAX_TENSORS, MAX_READERS = 24, 12, 3
"""How many cuts a page lists, tensors per cut, and readers per tensor."""


def page_data(view: PlanView) -> dict[str, Any]:
    """The data of a page. Parts that need the model are None without it, and `missing` says why there is none;
    `no_timeline` says why there is no timeline.
    """
    plan, placed = view.plan, view.placed
    tensors = copied_tensors(view)
    timeline = timeline_part(view, tensors)
    loads = placed.judgement if placed else plan
    run = (placed.problem, placed.placement, placed.judgement.timeline) if placed else None
    return {
        "version": VERSION,
        "title": clean_text(view.name),
        "missing": clean_text(view.missing),
        "story": summarize_plan(view),
        "overview": overview_part(view),
        "devices": _devices(view),
        "wires": [[clean_text(name), finite(load)] for name, load in loads.wires.items()],
        "bottleneck": clean_text(loads.bottleneck),
        "mode": _mode(view),
        "ops": _ops(view),
        "tensors": _tensors(placed.problem, tensors) if placed else None,
        "timeline": timeline,
        "no_timeline": "" if timeline else clean_text(why_no_timeline(view)),
        "held": pack_column(memory_while(*run), "f4") if run and timeline and run[0].ways is None else None,
        "peaks": [clean_text(peak_line(peak), LONGEST_SENTENCE) for peak in memory_peaks(*run)] if run else [],
        "graph": module_tree(placed.problem, placed.placement) if placed else None,
        "cuts": cuts_part(*run) if run else None,
        "stages": stages_part(placed.problem, placed.placement, placed.judgement) if placed else [],
        "history": [[step.seconds, finite(step.value), step.placer] for step in plan.history],
        "leaderboard": [_rank(rank) for rank in plan.leaderboard],
        "provenance": provenance(view),
    }


def _devices(view: PlanView) -> list[dict[str, Any]]:
    uses = {use.device: use for use in view.uses}
    figures = ("compute", "send", "receive", "load", "idle", "resident", "peak", "capacity", "sync")
    devices: list[dict[str, Any]] = []
    for name in view.devices:
        entry: dict[str, Any] = {"name": clean_text(name)}
        if use := uses.get(name):
            entry |= {figure: finite(getattr(use, figure)) for figure in figures}
            entry |= {figure: getattr(use, figure) for figure in ("ops", "forward", "backward", "replicas")}
            entry |= {"waits_for": clean_text(use.waits_for), "repeats": clean_text(use.repeats)}
        devices.append(entry)
    return devices


def stages_part(problem: Problem, placement: Placement, judgement: Judgement) -> list[dict[str, Any]]:
    """The stages of a pipeline whose ops are split: words, seconds by part, bytes by what holds them; empty without."""
    if not judgement.stages:
        return []
    capacity = problem.capacity
    return [
        {
            "words": [clean_text(word) for word in row[1:6]],
            "seconds": [
                ["compute", use.compute - use.collective],
                ["collectives", use.collective],
                ["send", use.send],
                ["receive", use.receive],
                ["gradients", use.gradients],
            ],
            "bytes": [[clean_text(part), amount] for part, amount in use.memory.items()],
            "capacity": finite(min(float(capacity[d]) for d in group.devices)),
            "in_flight": use.in_flight,
        }
        for row, use, group in zip(
            stage_rows(problem, placement, judgement), judgement.stages, placement.stages, strict=True
        )
    ]


def _mode(view: PlanView) -> dict[str, str]:
    """How the loads of a device add up: the kind of the objective, its communication or execution, its memory."""
    objective = view.placed.problem.objective if view.placed else view.plan.objective
    if objective is None:
        return {"kind": "", "how": "", "memory": ""}
    hows = {"throughput": objective.communication, "step": objective.schedule}
    how = hows.get(objective.kind, objective.execution)
    return {"kind": objective.kind, "how": how, "memory": objective.memory}


def _ops(view: PlanView) -> dict[str, Any]:
    device, problem = view.device_of, view.problem
    data: dict[str, Any] = {"count": len(device), "device": pack_integers(device)}
    if problem is None:
        return data | {"name": [clean_text(name) for name in view.plan.assignment], "seconds": []}
    ops, seconds = problem.graph.ops, problem.costs.op_seconds[np.arange(problem.n_ops), device]
    return data | {
        "name": [clean_text(name) for name in ops.name],
        "kind": pack_words(ops.kind),
        "scope": pack_words(ops.scope),
        "seconds": pack_column(seconds, "f4"),
    }


def _tensors(problem: Problem, tensors: Longs) -> dict[str, Any]:
    """For each copied tensor its bytes, the op that produces it (−1: a model input), and its name (None: the op's)."""
    table, ops = problem.graph.tensors, problem.graph.ops.name
    pairs = ((table.name[tensor], int(table.producer[tensor])) for tensor in tensors.tolist())
    return {
        "name": [None if maker >= 0 and name == ops[maker] else clean_text(name) for name, maker in pairs],
        "bytes": pack_column(np.maximum(table.bytes[tensors], 0), "f8"),
        "maker": pack_column(table.producer[tensors], "i4"),
    }


def cuts_part(problem: Problem, placement: Placement, timeline: Timeline | None) -> dict[str, Any]:
    """Where the plan cuts the graph: `cuts` by transfer route with their tensors, most expensive first.

    `left` counts the routes that are not listed; `seconds` is the total of all.
    """
    copies = list_copies(problem, placement, timeline)
    routes, names = group_by_route(problem, copies), (*problem.cluster.names, HOST)
    cuts = [
        {
            "source": clean_text(names[route.source]),
            "target": clean_text(names[route.target]),
            "count": len(route.rows),
            "bytes": route.bytes,
            "seconds": route.seconds,
            "tensors": [_cut_tensor(problem, placement, copies, row) for row in route.rows[:MAX_TENSORS].tolist()],
        }
        for route in routes[:MAX_CUTS]
    ]
    return {"cuts": cuts, "left": max(len(routes) - MAX_CUTS, 0), "seconds": float(copies.seconds.sum())}


def _cut_tensor(problem: Problem, placement: Placement, copies: CopyColumns, row: int) -> dict[str, Any]:
    graph, tensor, target = problem.graph, int(copies.tensor[row]), int(copies.target[row])
    readers = graph.consumers_of(tensor)
    there = readers[problem.cluster.location[placement.device[readers]] == target]
    readers = there if len(there) else readers
    shape = ["?" if size < 0 else str(size) for size in graph.tensors.shape[tensor]]
    return {
        "name": clean_text(graph.tensors.name[tensor]),
        "shape": " × ".join(shape),
        "dtype": DTYPES[int(graph.tensors.dtype[tensor])],
        "bytes": max(int(graph.tensors.bytes[tensor]), 0),
        "seconds": float(copies.seconds[row]),
        "maker": int(graph.tensors.producer[tensor]),
        "readers": readers[:MAX_READERS].tolist(),
        "more": max(len(readers) - MAX_READERS, 0),
    }


def _rank(rank: RankRecord) -> dict[str, Any]:
    return {
        "placer": clean_text(rank.placer),
        "value": finite(rank.value),
        "bound": finite(rank.lower_bound),
        "status": clean_text(rank.status),
        "seconds": finite(rank.seconds),
        "devices": rank.devices,
        "remark": clean_text(rank.remark),
    }
