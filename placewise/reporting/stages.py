"""A pipeline of split stages as a table: what each stage holds, on which devices, and how it uses them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise._util.units import format_bytes, format_seconds
from placewise.model.cluster import Cluster
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, StageUse
from placewise.model.ways import StageGroup, Ways
from placewise.reporting.ranges import name_range

_SHOWN = 40
"""Rows; a pipeline of more stages is cut in the middle."""
COLUMNS = ("stage", "holds", "devices", "split", "replicas", "recomputed", "time ", "of it collectives ", "memory ")


def stage_rows(problem: Problem, placement: Placement, judgement: Judgement) -> list[tuple[str, ...]]:
    """The cells of a row per stage, with seconds per micro-batch and bytes of each of its devices."""
    ways, tokens = problem.require_ways(), ", tokens" if problem.constraints.sequence_parallel else ""
    rows: list[tuple[str, ...]] = []
    for s, (group, use) in enumerate(zip(placement.stages, judgement.stages, strict=True)):
        units = np.unique(ways.unit[np.flatnonzero(np.asarray(placement.stage) == s)]).tolist()
        rows.append(
            (
                str(s),
                _name_units(ways, units),
                _name_devices(problem.cluster, group),
                f"over {group.tensor_parallel}{tokens}" if group.tensor_parallel > 1 else "–",
                f"{group.data_parallel} ×" if group.data_parallel > 1 else "–",
                _count_recomputed(ways, np.asarray(placement.way)[units]),
                format_seconds(use.seconds),
                format_seconds(use.collective) if use.collective else "–",
                _describe_memory(problem, group, use),
            )
        )
    return rows


def describe_op_places(problem: Problem, placement: Placement) -> list[str]:
    """Where each op [n_ops] of a pipeline of split stages runs, and how: "cuda:0–cuda:3 (2 replicas over 2)"."""
    ways, names = problem.require_ways(), problem.cluster.names
    unit_way = np.asarray(placement.way)[ways.unit]
    degree, recomputed = ways.degree[unit_way].tolist(), ways.recompute[unit_way].tolist()
    devices = [name_range([names[d] for d in group.devices]) for group in placement.stages]
    replicas = [group.data_parallel for group in placement.stages]
    tokens = problem.constraints.sequence_parallel
    return [
        describe_place(devices[s], replicas[s], degree[op], _describe_way(recomputed[op], tokens and degree[op] > 1))
        for op, s in enumerate(np.asarray(placement.stage).tolist())
    ]


def _describe_way(recomputed: bool, tokens: bool) -> str:
    return ", ".join(filter(None, ["sequence parallel" if tokens else "", "recomputed" if recomputed else ""]))


def describe_place(devices: str, replicas: int, degree: int, way: str) -> str:
    """Where an op runs, and in brackets how, if otherwise than whole and once."""
    split = [f"{replicas} replicas" if replicas > 1 else "", f"over {degree}" if degree > 1 else ""]
    words = ", ".join(filter(None, [" ".join(filter(None, split)), way]))
    return f"{devices} ({words})" if words else devices


def _name_devices(cluster: Cluster, group: StageGroup) -> str:
    nodes = dict.fromkeys(cluster.nodes[d] for d in group.devices)
    where = name_range([node for node in nodes if node])
    return f"{name_range([cluster.names[d] for d in group.devices])}{f' ({where})' if where else ''}"


def _name_units(ways: Ways, units: Sequence[int]) -> str:
    names = [ways.unit_names[unit] if ways.unit_names else str(unit) for unit in units]
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"


def _count_recomputed(ways: Ways, chosen: np.ndarray) -> str:
    count = int(ways.recompute[chosen].sum())
    return "–" if not count else "all" if count == len(chosen) else f"{count} of {len(chosen)}"


def _describe_memory(problem: Problem, group: StageGroup, use: StageUse) -> str:
    capacity = min(float(problem.capacity[d]) for d in group.devices)
    return f"{format_bytes(use.peak)} of {format_bytes(capacity)}"


def cut_rows(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """At most `_SHOWN` rows, and a line in the middle that counts the others."""
    if len(rows) <= _SHOWN:
        return rows
    half = _SHOWN // 2
    left_out = (f"… {len(rows) - 2 * half} more", *("" for _ in rows[0][1:]))
    return [*rows[:half], left_out, *rows[-half:]]
