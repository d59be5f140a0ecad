"""Everything that a page shows, as plain JSON: numbers in seconds and bytes, columns packed, words ready to read."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewise.model.columns import Longs
from placewise.model.problem import Problem
from placewise.report.leaderboard import finite
from placewise.report.page.cuts import cuts_part
from placewise.report.page.modules import module_tree
from placewise.report.page.opened import Opened
from placewise.report.page.packed import interned, narrow, packed, shown
from placewise.report.page.provenance import provenance
from placewise.report.page.story import story
from placewise.report.page.timeline import crossing, timeline_part, why_no_timeline
from placewise.report.peaks import peak_line
from placewise.simulate import memory_peaks, memory_while

VERSION = 1
"""Of the data inside a page."""


def page_data(opened: Opened) -> dict[str, Any]:
    """The data of a page. A part that cannot be made is None; `missing` says why there is no model, if there is none,
    and `no_timeline` why there is no timeline.
    """
    problem, placement, judged = opened.problem, opened.placement, opened.judgement
    tensors = crossing(opened)
    placed = problem is not None and placement is not None
    return {
        "version": VERSION,
        "title": shown(opened.name),
        "missing": shown(opened.missing),
        "story": story(opened),
        "devices": _devices(opened),
        "wires": [[shown(name), finite(load)] for name, load in _wires(opened).items()],
        "bottleneck": shown(opened.plan.bottleneck if judged is None else judged.bottleneck),
        "mode": _mode(opened),
        "ops": _ops(opened),
        "tensors": _tensors(problem, tensors),
        "timeline": (made := timeline_part(opened, _rows(problem, tensors))),
        "no_timeline": "" if made else shown(why_no_timeline(opened)),
        "held": _held(opened) if made else None,
        "peaks": _peaks(opened),
        "graph": module_tree(problem, placement) if problem is not None and placement is not None else None,
        "cuts": _cuts(opened) if placed else None,
        "history": [[step.seconds, finite(step.value), step.placer] for step in opened.plan.history],
        "leaderboard": [_rank(rank) for rank in opened.plan.leaderboard],
        "provenance": provenance(opened),
    }


def _devices(opened: Opened) -> list[dict[str, Any]]:
    uses = {use.device: use for use in opened.uses}
    found: list[dict[str, Any]] = []
    for name in opened.devices:
        use = uses.get(name)
        figures = () if use is None else ("compute", "send", "receive", "load", "idle", "resident", "peak", "capacity")
        found.append({"name": shown(name)} | {figure: finite(getattr(use, figure)) for figure in figures})
        if use is not None:
            found[-1] |= {"ops": use.ops, "waits_for": shown(use.waits_for), "sync": finite(use.sync)}
            found[-1] |= {"forward": use.forward, "backward": use.backward}
            found[-1] |= {"replicas": use.replicas, "repeats": shown(use.repeats)}
    return found


def _wires(opened: Opened) -> dict[str, float]:
    return dict(opened.plan.wires if opened.judgement is None else opened.judgement.wires)


def _mode(opened: Opened) -> dict[str, str]:
    """How the loads of a device add up: the kind of the objective, and its communication or execution."""
    if opened.problem is not None:
        asked = opened.problem.objective
        how = asked.communication if asked.kind == "throughput" else asked.execution
        return {"kind": asked.kind, "how": how, "memory": asked.memory}
    record = opened.plan.objective
    if record is None:
        return {"kind": "", "how": "", "memory": ""}
    how = record.communication if record.kind == "throughput" else record.execution
    return {"kind": record.kind, "how": how, "memory": record.memory}


def _ops(opened: Opened) -> dict[str, Any]:
    device, problem = opened.device_of, opened.problem
    found: dict[str, Any] = {"count": len(device), "device": narrow(device)}
    if problem is None:
        return found | {"name": [shown(name) for name in opened.plan.assignment], "seconds": []}
    ops, seconds = problem.graph.ops, problem.costs.op_seconds[np.arange(problem.n_ops), device]
    return found | {
        "name": [shown(name) for name in ops.name],
        "kind": interned(ops.kind),
        "scope": interned(ops.scope),
        "seconds": packed(seconds, "f4"),
    }


def _tensors(problem: Problem | None, tensors: Longs) -> dict[str, Any] | None:
    """Of the tensors that are copied: bytes, the op that makes each (−1: the model's input), and the name, None where
    it is that of the op.
    """
    if problem is None:
        return None
    table, ops = problem.graph.tensors, problem.graph.ops.name
    named = ((table.name[tensor], int(table.producer[tensor])) for tensor in tensors.tolist())
    return {
        "name": [None if maker >= 0 and name == ops[maker] else shown(name) for name, maker in named],
        "bytes": packed(np.maximum(table.bytes[tensors], 0), "f8"),
        "maker": packed(table.producer[tensors], "i4"),
    }


def _rows(problem: Problem | None, tensors: Longs) -> Longs:
    rows = np.full(0 if problem is None else problem.graph.n_tensors, -1, np.int64)
    rows[tensors] = np.arange(len(tensors))
    return rows


def _held(opened: Opened) -> dict[str, str] | None:
    """Bytes that the device of each op holds while it runs."""
    if opened.problem is None or opened.placement is None or opened.judgement is None:
        return None
    return packed(memory_while(opened.problem, opened.placement, opened.judgement.timeline), "f4")


def _peaks(opened: Opened) -> list[str]:
    """What each device holds when it holds most, in words."""
    if opened.problem is None or opened.placement is None or opened.judgement is None:
        return []
    peaks = memory_peaks(opened.problem, opened.placement, opened.judgement.timeline)
    return [shown(peak_line(peak)) for peak in peaks]


def _cuts(opened: Opened) -> dict[str, Any] | None:
    if opened.problem is None or opened.placement is None:
        return None
    timeline = None if opened.judgement is None else opened.judgement.timeline
    return cuts_part(opened.problem, opened.placement, timeline)


def _rank(rank: Any) -> dict[str, Any]:
    return {
        "placer": shown(rank.placer),
        "value": finite(rank.value),
        "bound": finite(rank.lower_bound),
        "status": shown(rank.status),
        "seconds": finite(rank.seconds),
        "devices": rank.devices,
        "remark": shown(rank.remark),
    }
