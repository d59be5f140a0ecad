"""The tensor copies that a placement makes: those of one run, or those that each sample of a pipeline needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise._util.units import format_bytes, format_seconds
from placewise.model.cluster import HOST
from placewise.model.columns import Floats, Longs, distinct, rows_of_labels
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline

MAX_ROUTES = 4
"""How many transfer routes a table lists on their own."""


class CopyColumns(NamedTuple):
    """Copies as columns: tensor, source and target memory (the host is ``n_devices``), seconds."""

    tensor: Longs
    source: Longs
    target: Longs
    seconds: Floats


class TransferRoute(NamedTuple):
    """All copies from one memory to another: their rows, most expensive first, their total seconds and bytes."""

    source: int
    target: int
    rows: Longs
    seconds: float
    bytes: int


def list_copies(problem: Problem, placement: Placement, timeline: Timeline | None) -> CopyColumns:
    """Every copy of the run that `timeline` records; without one, every copy that a pipeline makes per sample."""
    if timeline is not None:
        tensor, source = timeline.tensor.astype(np.int64), timeline.source.astype(np.int64)
        return CopyColumns(tensor, source, timeline.target.astype(np.int64), timeline.arrived - timeline.sent)
    graph, cluster, host = problem.graph, problem.cluster, problem.n_devices
    location = cluster.location[placement.device].astype(np.int64)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    outputs = np.flatnonzero(graph.tensors.output)
    needs = np.concatenate((tensor, outputs)) * (host + 1)
    pairs = distinct(needs + np.concatenate((location[graph.consumers], np.full(len(outputs), host))))
    tensor, target = pairs // (host + 1), pairs % (host + 1)
    maker = graph.tensors.producer[tensor]
    source = np.where(maker >= 0, location[maker], host)
    tensor, source, target = (column[source != target] for column in (tensor, source, target))
    if cluster.transfers == "staged":
        to_host = distinct(tensor[source != host] * (host + 1) + source[source != host])
        from_host = target != host
        source = np.concatenate((to_host % (host + 1), np.full(int(from_host.sum()), host)))
        target = np.concatenate((np.full(len(to_host), host), target[from_host]))
        tensor = np.concatenate((to_host // (host + 1), tensor[from_host]))
    return CopyColumns(
        tensor, source, target, problem.costs.transfer_seconds[tensor, cluster.link_class[source, target]]
    )


def group_by_route(problem: Problem, copies: CopyColumns) -> list[TransferRoute]:
    """The copies grouped by source and target, most expensive route first."""
    places, size = problem.n_devices + 1, np.maximum(problem.graph.tensors.bytes, 0)
    keys, route = np.unique(copies.source * places + copies.target, return_inverse=True)
    seconds = np.bincount(route, weights=copies.seconds, minlength=len(keys))
    rows_of, routes = rows_of_labels(route, len(keys)), []
    for k in np.argsort(-seconds, kind="stable").tolist():
        rows = rows_of[k]
        rows = rows[np.argsort(-copies.seconds[rows], kind="stable")]
        nbytes = int(size[copies.tensor[rows]].sum())
        routes.append(TransferRoute(*divmod(int(keys[k]), places), rows, float(seconds[k]), nbytes))
    return routes


def copy_rows(problem: Problem, placement: Placement, timeline: Timeline | None) -> list[tuple[str, ...]]:
    """Table rows (route, count, bytes, seconds, most expensive tensor); the last one sums up the remaining routes.

    Empty where all ops run in one memory.
    """
    if len(np.unique(problem.cluster.location[placement.device])) < 2:
        return []
    copies, names = list_copies(problem, placement, timeline), (*problem.cluster.names, HOST)
    routes, tensors = group_by_route(problem, copies), problem.graph.tensors
    rows: list[tuple[str, ...]] = []
    for route in routes[:MAX_ROUTES]:
        tensor = int(copies.tensor[route.rows[0]])
        largest = f"{tensors.name[tensor]} ({format_bytes(max(int(tensors.bytes[tensor]), 0))})"
        name = f"{names[route.source]} → {names[route.target]}"
        rows.append((name, str(len(route.rows)), format_bytes(route.bytes), format_seconds(route.seconds), largest))
    if len(routes) > MAX_ROUTES:
        rest = routes[MAX_ROUTES:]
        count, seconds = str(sum(len(route.rows) for route in rest)), format_seconds(sum(r.seconds for r in rest))
        rows.append((f"{len(rest)} more", count, format_bytes(sum(route.bytes for route in rest)), seconds, ""))
    return rows
