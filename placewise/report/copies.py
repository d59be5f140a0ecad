"""The copies of tensors that a placement makes: those of a run, or in a pipeline those that every sample needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise._util.units import format_bytes, format_seconds
from placewise.model.cluster import HOST
from placewise.model.columns import Floats, Longs, distinct
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline

MOST_WAYS = 4
"""So many ways between memories are listed beside a plan."""


class Copies(NamedTuple):
    """Copies as columns: the tensor, from and to which location (the host is ``n_devices``), in how many seconds."""

    tensor: Longs
    source: Longs
    target: Longs
    seconds: Floats


class Way(NamedTuple):
    """All copies from one location to another: their rows, the dearest first, and their seconds and bytes."""

    source: int
    target: int
    rows: Longs
    seconds: float
    bytes: int


def copies_of(problem: Problem, placement: Placement, timeline: Timeline | None) -> Copies:
    """Every copy of a run; or, in a pipeline, every copy that a sample needs."""
    if timeline is not None:
        tensor, source = timeline.tensor.astype(np.int64), timeline.source.astype(np.int64)
        return Copies(tensor, source, timeline.target.astype(np.int64), timeline.arrived - timeline.sent)
    graph, cluster, host = problem.graph, problem.cluster, problem.n_devices
    home = cluster.location[placement.device].astype(np.int64)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    outputs = np.flatnonzero(graph.tensors.output)
    wanted = np.concatenate((tensor, outputs)) * (host + 1)
    pairs = distinct(wanted + np.concatenate((home[graph.consumers], np.full(len(outputs), host))))
    tensor, target = pairs // (host + 1), pairs % (host + 1)
    maker = graph.tensors.producer[tensor]
    source = np.where(maker >= 0, home[maker], host)
    tensor, source, target = (column[source != target] for column in (tensor, source, target))
    if cluster.transfers == "staged":
        sent = distinct(tensor[source != host] * (host + 1) + source[source != host])
        got = target != host
        source = np.concatenate((sent % (host + 1), np.full(int(got.sum()), host)))
        target = np.concatenate((np.full(len(sent), host), target[got]))
        tensor = np.concatenate((sent // (host + 1), tensor[got]))
    return Copies(tensor, source, target, problem.costs.transfer_seconds[tensor, cluster.link_class[source, target]])


def ways_of(problem: Problem, copies: Copies) -> list[Way]:
    """The copies by where they come from and go to, the dearest way first."""
    places, size = problem.n_devices + 1, np.maximum(problem.graph.tensors.bytes, 0)
    ways, way = np.unique(copies.source * places + copies.target, return_inverse=True)
    seconds = np.bincount(way, weights=copies.seconds, minlength=len(ways))
    found = []
    for k in np.argsort(-seconds, kind="stable").tolist():
        rows = np.flatnonzero(way == k)
        rows = rows[np.argsort(-copies.seconds[rows], kind="stable")]
        found.append(Way(*divmod(int(ways[k]), places), rows, float(seconds[k]), int(size[copies.tensor[rows]].sum())))
    return found


def copy_rows(problem: Problem, placement: Placement, timeline: Timeline | None) -> list[tuple[str, ...]]:
    """(way, copies, bytes, seconds, the dearest tensor) of the dearest ways; [] where ops run in one memory only."""
    if len(np.unique(problem.cluster.location[placement.device])) < 2:
        return []
    copies, names = copies_of(problem, placement, timeline), (*problem.cluster.names, HOST)
    ways, tensors = ways_of(problem, copies), problem.graph.tensors
    rows: list[tuple[str, ...]] = []
    for way in ways[:MOST_WAYS]:
        tensor = int(copies.tensor[way.rows[0]])
        dearest = f"{tensors.name[tensor]} ({format_bytes(max(int(tensors.bytes[tensor]), 0))})"
        count, seconds = str(len(way.rows)), format_seconds(way.seconds)
        rows.append((f"{names[way.source]} → {names[way.target]}", count, format_bytes(way.bytes), seconds, dearest))
    if len(ways) > MOST_WAYS:
        rest = ways[MOST_WAYS:]
        count, seconds = str(sum(len(way.rows) for way in rest)), format_seconds(sum(way.seconds for way in rest))
        rows.append((f"{len(rest)} more", count, format_bytes(sum(way.bytes for way in rest)), seconds, ""))
    return rows
