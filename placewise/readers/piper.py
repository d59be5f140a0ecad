"""Instances of Piper (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021; msr-fiddle/piper): layers that may be split.

``{"maxMemoryPerDevice": bytes, "maxDevices": k, "bandwidth": bytes/s, "mbsInBatch": N, "nodes": [], "edges": []}``.
Every node lists, by degree of tensor parallelism, the ways to run it (``TMPCs``); times are seconds of forward and
backward pass. Ops are named by id, devices ``acc0…``. The file is its own cluster.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewise.errors import CostError, GraphError, InputError, ModelFileError, locate_errors
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import LARGEST_TIME, CostTable
from placewise.model.graph import Graph, Source
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.ways import LARGEST_DEGREE, LARGEST_MICROBATCHES, LARGEST_SYNC, Ways
from placewise.readers.base import ImportedModel, read_text_file
from placewise.readers.workload import (
    LARGEST_SIZE,
    MAX_DEVICES,
    list_edges,
    list_nodes,
    parse_json,
    read_id,
    read_number,
)

MARK = b'"TMPCs"'
"""What no other format has in its nodes."""
GRADIENT_FACTOR, PASSES = 4.0, 2
"""Gradients cross twice in 16 and 32 bits or so (Piper, section 3), boundaries in both directions."""
RECOMPUTES = "recomp"
"""What the name of a way holds that recomputes its activations."""
MAX_WAYS = 100_000
_DEGREE = re.compile("[1-9][0-9]{0,8}")


@dataclass(slots=True)
class _WayColumns:
    """The columns of `Ways`, way by way."""

    unit: list[int] = field(default_factory=list)
    degree: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    in_flight: list[float] = field(default_factory=list)
    fixed: list[float] = field(default_factory=list)
    sync: list[dict[int, float]] = field(default_factory=list)


def read_piper(path: Path, *, objective: str = "throughput") -> ImportedModel:
    """An instance of Piper as a problem whose ops may be split, repeated and recomputed.

    Raises ModelFileError, GraphError or CostError with the file, the node or edge and the remedy.
    """
    data = read_text_file(path)
    document = parse_json(data, path)
    with locate_errors(path):
        if not isinstance(document, dict):
            raise ModelFileError("is no object with 'nodes' and 'edges'", remedy="see docs/formats.md")
        if objective != "throughput":
            remedy = "add --objective throughput"
            raise InputError(
                "an instance of Piper holds times of training steps, which have a throughput", remedy=remedy
            )
        source = Source(str(path), hashlib.sha256(data).hexdigest(), "piper")
        problem = _build_problem(document, source)
    return ImportedModel(problem.graph, problem)


def _build_problem(document: Mapping[str, Any], source: Source) -> Problem:
    builder = GraphBuilder()
    op_of: dict[str, int] = {}
    by_id: dict[str, Any] = {}
    for place, (node, _, name) in enumerate(list_nodes(document)):
        op_of[name] = builder.add_op(name, "Op", scope=str(node.get("name", "")), origin=(place,))
        by_id[name] = node
    bytes_of = _add_edges(builder, document, op_of)
    graph = builder.build(source)
    cluster = _build_cluster(document)
    ways = _build_ways(document, graph, cluster, [by_id[name] for name in graph.ops.name], bytes_of)
    whole = _seconds_unsplit(ways)
    with np.errstate(over="ignore"):  # the cost table refuses what is infinite
        crossing = np.array([bytes_of[name] for name in graph.tensors.name]) / cluster.class_bandwidth[-1]
    transfers = np.zeros((graph.n_tensors, len(cluster.class_bandwidth)))
    transfers[:, 1:] = crossing.reshape(-1, 1)
    seconds = np.broadcast_to(whole[:, None], (graph.n_ops, len(cluster)))
    return Problem(
        graph, cluster, CostTable.given(seconds, transfers), Objective("throughput", memory="sum"),
        Constraints(contiguous=True, replicas=0, tensor_parallel=0), ways=ways,
    )  # fmt: skip


def _add_edges(builder: GraphBuilder, document: Mapping[str, Any], op_of: Mapping[str, int]) -> dict[str, float]:
    """One tensor per edge; returns its bytes by tensor name."""
    bytes_of: dict[str, float] = {}
    for edge, where, tail, head in list_edges(document, op_of):
        name = f"{tail}->{head}"
        if name in bytes_of:
            raise GraphError(f"joins {tail} to {head} a second time", where=where, remedy="give one edge per pair")
        bytes_of[name] = _read_bytes(edge, "communicationCost", where)
        tensor = builder.add_tensor(op_of[tail], name=name, nbytes=math.ceil(bytes_of[name]))
        builder.add_edge(tensor, op_of[head])
    return bytes_of


def _read_bytes(item: Any, key: str, where: str) -> float:
    size = read_number(item, key, where)
    if size > LARGEST_SIZE:
        raise CostError(f"{key} is {size:g}", where=where, remedy="give bytes, up to 2^62")
    return size


def _build_cluster(document: Mapping[str, Any]) -> Cluster:
    count = read_number(document, "maxDevices", "the top level")
    memory = read_number(document, "maxMemoryPerDevice", "the top level")
    bandwidth = read_number(document, "bandwidth", "the top level")
    if count != int(count) or not 1 <= count <= MAX_DEVICES:
        raise ModelFileError(f"maxDevices must be a whole number of devices, from 1 to {MAX_DEVICES}")
    if not bandwidth > 0:
        raise CostError("bandwidth is 0", remedy="give bytes per second")
    devices = tuple(Device(f"acc{i}", memory=memory) for i in range(int(count)))
    ends = ((device.name, HOST) for device in devices)
    links = tuple(Link(*pair, bandwidth) for a, b in ends for pair in ((a, b), (b, a)))
    return Cluster(devices, links, "staged")


def _build_ways(
    document: Mapping[str, Any], graph: Graph, cluster: Cluster, nodes: list[Any], bytes_of: Mapping[str, float]
) -> Ways:
    microbatches = read_number(document, "mbsInBatch", "the top level")
    if microbatches != int(microbatches) or not 1 <= microbatches <= LARGEST_MICROBATCHES:
        raise ModelFileError(f"mbsInBatch must be a whole number of micro-batches, from 1 to {LARGEST_MICROBATCHES}")
    columns = _WayColumns()
    for unit, node in enumerate(nodes):
        _add_ways(columns, graph, unit, node)
    if len(columns.unit) * graph.n_tensors > LARGEST_SYNC:
        raise ModelFileError(f"has {len(columns.unit)} ways and {graph.n_tensors} edges, too many to read")
    sync = np.zeros((len(columns.unit), graph.n_tensors))
    for row, amounts in enumerate(columns.sync):
        sync[row, list(amounts)] = list(amounts.values())
    return Ways(
        unit=np.arange(graph.n_ops, dtype=np.int32),
        way_unit=np.array(columns.unit),
        degree=np.array(columns.degree),
        recompute=np.array([RECOMPUTES in name for name in columns.name]),
        name=tuple(columns.name),
        seconds=np.array(columns.seconds).reshape(-1, 1),
        gradient_bytes=np.array(columns.weights),
        bytes_in_flight=np.array(columns.in_flight),
        held_bytes=np.array(columns.fixed).reshape(-1, 1),
        parts=("fixed",),
        tensor_unit=graph.tensors.producer,
        tensor_bytes=np.array([bytes_of[name] for name in graph.tensors.name]),
        reader_offsets=graph.consumer_offsets,
        reader=graph.consumers,
        sync_bytes=sync,
        device_class=np.zeros(len(cluster), np.int32),
        node=np.zeros(len(cluster), np.int32),
        microbatches=int(microbatches),
        passes=PASSES,
        gradient_factor=GRADIENT_FACTOR,
        in_flight="1f1b",
        unit_names=graph.ops.name,
    )


def _add_ways(columns: _WayColumns, graph: Graph, unit: int, node: Any) -> None:
    name = graph.ops.name[unit]
    where = f"node {name}"
    by_degree = node.get("TMPCs")
    if not isinstance(by_degree, dict) or not by_degree:
        raise CostError("has no ways to run it ('TMPCs')", where=where, remedy="list them by degree")
    into = {graph.ops.name[int(graph.tensors.producer[t])]: int(t) for t in graph.inputs_of(unit)}
    out = {head: t for t in graph.outputs_of(unit) for head in (graph.tensors.name[t].removeprefix(f"{name}->"),)}
    for text, ways in by_degree.items():
        if not _DEGREE.fullmatch(text) or int(text) > LARGEST_DEGREE:
            raise CostError(f"{text!r} is no degree of tensor parallelism", where=where, remedy="give devices, as 4")
        if not isinstance(ways, list) or not ways:
            raise CostError(f"has no way for degree {text}", where=where, remedy="list one, or leave the degree out")
        known: set[str] = set()
        for way in ways:
            _add_way(columns, unit, int(text), way, f"{where}, degree {text}", known, into, out)
    if len(columns.unit) > MAX_WAYS:
        raise ModelFileError(f"lists more than {MAX_WAYS} ways")


def _add_way(
    columns: _WayColumns, unit: int, degree: int, way: Any, where: str, known: set[str],
    into: Mapping[str, int], out: Mapping[str, int],
) -> None:  # fmt: skip
    name = read_id(way, "id", where)
    if name in known:
        raise CostError(f"two ways are both called {name!r}", where=where, remedy="give each its own id")
    known.add(name)
    where = f"{where}, way {name!r}"
    sync = _read_sync(way, "syncTimeFw", into, where) | _read_sync(way, "syncTimeBw", out, where)
    columns.unit.append(unit)
    columns.degree.append(degree)
    columns.name.append(name)
    columns.seconds.append(_read_seconds(way, where))
    columns.weights.append(_read_bytes(way, "parameterSize", where))
    columns.in_flight.append(_read_bytes(way, "memoryUsageA", where))
    columns.fixed.append(_read_bytes(way, "memoryUsageB", where))
    columns.sync.append(sync)


def _read_seconds(way: Any, where: str) -> float:
    seconds = read_number(way, "timePerSample", where)
    if seconds > LARGEST_TIME:
        raise CostError(f"timePerSample is {seconds:g}", where=where, remedy=f"give seconds, up to {LARGEST_TIME:g}")
    return seconds


def _read_sync(way: Any, key: str, tensors: Mapping[str, int], where: str) -> dict[int, float]:
    """Bytes to gather or reduce, by tensor, for each edge on one side of a node."""
    given = way.get(key, {})
    if not isinstance(given, dict):
        raise CostError(f"{key} is no mapping of nodes to bytes", where=where, remedy="see docs/formats.md")
    stranger = next((name for name in given if name not in tensors), None)
    if stranger is not None:
        raise CostError(f"{key} names node {stranger!r}, to which no edge leads", where=where, remedy="check the ids")
    missing = next((name for name in tensors if name not in given), None)
    if missing is not None:
        raise CostError(f"{key} says nothing of the edge with node {missing}", where=where, remedy="give 0 for nothing")
    return {tensors[name]: _read_bytes(given, name, f"{where}, {key}") for name in given}


def _seconds_unsplit(ways: Ways) -> Any:
    """Seconds [n_units] of the fastest way of degree 1; where there is none, of all devices of a way together."""
    seconds, together = np.full(ways.n_units, np.inf), np.full(ways.n_units, np.inf)
    whole = ways.degree == 1
    np.minimum.at(seconds, ways.way_unit[whole], ways.seconds[whole, 0])
    np.minimum.at(together, ways.way_unit, ways.seconds[:, 0] * ways.degree)
    return np.where(np.isfinite(seconds), seconds, together)
