"""Graphs, clusters, problems and results as tables of pandas, and graphs for networkx. Both libraries are optional."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from placewise.errors import MissingExtraError
from placewise.files.sweep_file import SweepFile
from placewise.model.cluster import Cluster
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.reporting.leaderboard import LeaderboardTable

Frame = Any
"""A pandas.DataFrame."""
_DEVICE_COLUMNS = (
    "name", "node", "kind", "memory", "reserved", "memory_bandwidth", "op_overhead", "call_overhead", "streams",
    "available",
)  # fmt: skip


def graph_frame(graph: Graph) -> Frame:
    """A row per op, in topological order. Raises MissingExtraError."""
    return _make_frame(_graph_columns(graph))


def problem_frame(problem: Problem) -> Frame:
    """A row per op, with its seconds on every device. Raises MissingExtraError."""
    seconds = problem.costs.op_seconds
    times = {f"seconds on {name}": seconds[:, device] for device, name in enumerate(problem.cluster.names)}
    return _make_frame(_graph_columns(problem.graph) | times)


def plan_frame(problem: Problem, placement: Placement | None, judgement: Judgement | None) -> Frame:
    """A row per op: where it is, how long it takes there, and, for latency, when it runs. Raises MissingExtraError."""
    columns = _graph_columns(problem.graph)
    if placement is not None:
        device, ops = placement.device, np.arange(problem.n_ops)
        seconds = np.where(device >= 0, problem.costs.op_seconds[ops, np.maximum(device, 0)], np.nan)
        columns |= {"device": [*_device_names(problem, placement)], "seconds": seconds}
    if judgement is not None and judgement.timeline is not None:
        columns |= {"start": judgement.timeline.start, "finish": judgement.timeline.finish}
    return _make_frame(columns)


def cluster_frame(cluster: Cluster) -> Frame:
    """A row per device: bytes, bytes/s, seconds, and FLOP/s by element type. Raises MissingExtraError."""
    dtypes = dict.fromkeys(dtype for device in cluster for dtype in device.peak_flops)
    columns: dict[str, Any] = {name: [getattr(device, name) for device in cluster] for name in _DEVICE_COLUMNS}
    columns |= {f"flops {dtype}": [device.peak_flops.get(dtype, np.nan) for device in cluster] for dtype in dtypes}
    return _make_frame(columns)


def sweep_frame(sweep: SweepFile) -> Frame:
    """A row per point of a sweep: its sizes, cluster and figures. Raises MissingExtraError."""
    rows = [
        {**point.sizes, **point.model_dump(exclude={"sizes", "memory", "needs"}), "fits": point.fits}
        | {"used_memory": point.used_memory, "free_memory": point.free_memory}
        for point in sweep.points
    ]
    return _make_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})


def leaderboard_frame(board: LeaderboardTable) -> Frame:
    """A row per placer, the best first. Raises MissingExtraError."""
    rows = [asdict(row) for row in board.rows]
    return _make_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})


def graph_network(graph: Graph, devices: Iterable[str | None] | None = None) -> Any:
    """A networkx.MultiDiGraph: a node per op, an edge per tensor and consumer. Raises MissingExtraError.

    Nodes have `kind`, `scope` and, if the `devices` of the ops are given, `device`; edges have the tensor's name as
    key, and `bytes` (−1 where unknown).
    """
    try:
        import networkx
    except ImportError:
        raise MissingExtraError("to_networkx()", "networkx") from None
    network = networkx.MultiDiGraph()
    for name, kind, scope in zip(graph.ops.name, graph.ops.kind, graph.ops.scope, strict=True):
        network.add_node(name, kind=kind, scope=scope)
    if devices is not None:
        for name, device in zip(graph.ops.name, devices, strict=True):
            network.nodes[name]["device"] = device
    for tensor in np.flatnonzero(graph.tensors.producer >= 0).tolist():
        source, size = graph.ops.name[graph.tensors.producer[tensor]], int(graph.tensors.bytes[tensor])
        for consumer in graph.consumers_of(tensor).tolist():
            network.add_edge(source, graph.ops.name[consumer], key=graph.tensors.name[tensor], bytes=size)
    return network


def plan_network(problem: Problem, placement: Placement | None) -> Any:
    """The problem's graph for networkx, with the device of each op. Raises MissingExtraError."""
    return graph_network(problem.graph, None if placement is None else _device_names(problem, placement))


def _device_names(problem: Problem, placement: Placement) -> Iterable[str | None]:
    return (problem.cluster.names[device] if device >= 0 else None for device in placement.device.tolist())


def _graph_columns(graph: Graph) -> dict[str, Any]:
    ops, made = graph.ops, np.flatnonzero(graph.tensors.producer >= 0)
    phase = {"phase": [graph.phases[number].name for number in ops.phase.tolist()]} if graph.phases else {}
    return {
        "op": [*ops.name], "kind": [*ops.kind], "scope": [*ops.scope],
        "dtype": [DTYPES[code] for code in ops.dtype.tolist()], **phase, "backward": ops.backward, "group": ops.group,
        "weight_bytes": _sum_by_op(graph, graph.weight_edges.consumer, graph.weights.bytes[graph.weight_edges.value]),
        "state_bytes": ops.state_bytes,
        "output_bytes": _sum_by_op(graph, graph.tensors.producer[made], graph.tensors.bytes[made]),
    }  # fmt: skip


def _sum_by_op(graph: Graph, op: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Known bytes by op [n_ops]; what several ops use counts for each of them."""
    return np.bincount(op, np.maximum(size, 0).astype(np.float64), graph.n_ops).astype(np.int64)


def _make_frame(columns: Mapping[str, Any]) -> Frame:
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("to_frame()", "pandas") from None
    return pandas.DataFrame(dict(columns))
