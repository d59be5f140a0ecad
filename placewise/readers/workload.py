"""The published workloads of Tarnawski et al. 2020 (msr-fiddle/dnn-partitioning): graph, costs and devices.

``{"maxSizePerFPGA": bytes, "maxFPGAs": k, "maxCPUs": l, "nodes": [...], "edges": [...]}``. Times are
milliseconds; "FPGA" stands for any accelerator. Ops are named by id; accelerators are named ``acc0…`` and CPUs
``cpu0…``. Tensors go through host memory, and only accelerators pay for transfers.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from placewise.errors import CostError, GraphError, ModelFileError, locate_errors
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.graph import Source
from placewise.model.problem import Constraints, Objective, Problem
from placewise.readers.base import ImportedModel, read_text_file

_MS = 1e-3
MAX_DEVICES = 4096
"""Of each kind; the tables of a cluster grow quadratically."""
_MAX_FLOAT = sys.float_info.max
LARGEST_SIZE = 2.0**62
"""Bytes of one node or edge, and of all nodes together: sums are 64-bit integers."""
_KEYS = {"nodes", "edges"}


def is_workload(document: object) -> bool:
    """Whether a parsed JSON document looks like a published workload."""
    return isinstance(document, dict) and set(document) >= _KEYS


def read_workload(path: Path, *, objective: str = "throughput") -> ImportedModel:
    """A published workload as a problem: max-load over contiguous stages, or `subgraph` latency.

    Raises ModelFileError, GraphError or CostError with the file, the node or edge and the remedy.
    """
    data = read_text_file(path)
    document = parse_json(data, path)
    if isinstance(document, dict) and document.get("format") == "placewise-plan":
        remedy = "name the model that it was made from; placewise judge and check read plans"
        raise ModelFileError("is a plan, not a model", where=str(path), remedy=remedy)
    if not is_workload(document):
        raise ModelFileError("has no 'nodes' and 'edges'", where=str(path), remedy="see docs/formats.md")
    source = Source(str(path), hashlib.sha256(data).hexdigest(), "workload")
    with locate_errors(path):
        problem = _build_problem(document, source, objective)
    return ImportedModel(problem.graph, problem)


def parse_json(data: bytes, path: Path) -> Any:
    """The JSON document in a file. Raises ModelFileError with the path."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"is not JSON ({error})", where=str(path), remedy="is the file whole?") from None


def _build_problem(document: Mapping[str, Any], source: Source, objective: str) -> Problem:
    nodes = [*list_nodes(document)]
    builder = GraphBuilder()
    op_of: dict[str, int] = {}
    groups = _colour_groups(document["nodes"])
    host_ms, accelerator_ms, sizes = [], [], []
    for place, (node, where, name) in enumerate(nodes):
        colour = node.get("colorClass")
        sizes.append(read_number(node, "size", where, default=0.0))
        op_of[name] = builder.add_op(
            name,
            "Op",
            scope=str(node.get("name", "")),
            backward=bool(node.get("isBackwardNode", 0)),
            group=-1 if colour is None else groups[_require_colour(colour, where)],
            state_bytes=math.ceil(sizes[-1]),
            origin=(place,),
        )
        host_ms.append(read_number(node, "cpuLatency", where))
        supported = bool(node.get("supportedOnFpga", 1))
        accelerator_ms.append(read_number(node, "fpgaLatency", where) if supported else math.inf)
    if math.fsum(sizes) > LARGEST_SIZE:
        raise CostError("the sizes of all nodes together exceed 2^62 bytes", remedy="give sizes in bytes")
    cost_of = _add_edges(builder, document, op_of)
    graph = builder.build(source)
    cluster = _build_cluster(document)
    order = [op_of[name] for name in graph.ops.name]
    seconds = np.where(cluster.is_host, np.array(host_ms)[order, None], np.array(accelerator_ms)[order, None]) * _MS
    transfers = np.zeros((graph.n_tensors, len(cluster.class_bandwidth)))
    transfers[:, 1:] = np.array([cost_of[name] for name in graph.tensors.name]).reshape(-1, 1) * _MS
    return Problem(
        graph,
        cluster,
        CostTable.given(seconds, transfers),
        Objective("latency", execution="subgraph", memory="sum")
        if objective == "latency"
        else Objective("throughput", memory="sum"),
        Constraints(contiguous=objective != "latency"),
    )


def _colour_groups(nodes: list[Any]) -> dict[Any, int]:
    """Colocation groups by colour, in the order of colours, by which the published linearization breaks ties."""
    colours = {
        node.get("colorClass") for node in nodes if isinstance(node, dict) and _is_colour(node.get("colorClass"))
    }
    return {colour: group for group, colour in enumerate(sorted(colours, key=lambda c: (isinstance(c, str), c)))}


def list_nodes(document: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    """The nodes of a document: each, where it is, and its id. Raises ModelFileError, GraphError."""
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not isinstance(document.get("edges"), list) or not nodes:
        raise ModelFileError("'nodes' and 'edges' must be lists, and there must be a node")
    seen: set[str] = set()
    for place, node in enumerate(nodes):
        where = f"node {node.get('id', place) if isinstance(node, dict) else place}"
        name = read_id(node, "id", where)
        if name in seen:
            raise GraphError("two nodes have this id", where=where, remedy="give every node its own id")
        seen.add(name)
        yield node, where, name


def list_edges(document: Mapping[str, Any], op_of: Mapping[str, int]) -> Iterator[tuple[Any, str, str, str]]:
    """The edges of a document: each, where it is, and the ids of its ends. Raises ModelFileError, GraphError."""
    for place, edge in enumerate(document["edges"]):
        where = f"edge {place}"
        tail, head = read_id(edge, "sourceId", where), read_id(edge, "destId", where)
        for end in (tail, head):
            if end not in op_of:
                raise GraphError(f"joins node {end}, which does not exist", where=where, remedy="check the ids")
        yield edge, where, tail, head


def _add_edges(builder: GraphBuilder, document: Mapping[str, Any], op_of: Mapping[str, int]) -> dict[str, float]:
    """One tensor per source; returns its cost in ms by tensor name."""
    tensor_of: dict[str, int] = {}
    cost_of: dict[str, float] = {}
    seen: set[tuple[str, str]] = set()
    for edge, where, tail, head in list_edges(document, op_of):
        if (tail, head) in seen:
            continue
        seen.add((tail, head))
        cost, name = read_number(edge, "cost", where), f"{tail}:0"
        if cost_of.setdefault(name, cost) != cost:
            raise CostError(
                f"costs {cost} ms, another edge of node {tail} {cost_of[name]} ms",
                where=where,
                remedy="a node has one output, whose cost is the same on all its edges",
            )
        if tail not in tensor_of:
            size = read_number(edge, "size", where, default=-1.0)
            tensor_of[tail] = builder.add_tensor(op_of[tail], name=name, nbytes=math.ceil(size))
        builder.add_edge(tensor_of[tail], op_of[head])
    return cost_of


def _build_cluster(document: Mapping[str, Any]) -> Cluster:
    counts = [read_number(document, key, "the top level", default=0.0) for key in ("maxFPGAs", "maxCPUs")]
    memory = read_number(document, "maxSizePerFPGA", "the top level", default=math.inf)
    if any(count != int(count) or count > MAX_DEVICES for count in counts):
        raise ModelFileError(f"maxFPGAs and maxCPUs must be whole numbers of devices, up to {MAX_DEVICES}")
    accelerators = [Device(f"acc{i}", memory=memory) for i in range(int(counts[0]))]
    hosts = [Device(f"cpu{i}", kind="cpu") for i in range(int(counts[1]))]
    links = [Link(a.name, HOST, math.inf) for a in accelerators] + [Link(HOST, a.name, math.inf) for a in accelerators]
    return Cluster((*accelerators, *hosts), tuple(links), "staged")


def read_id(item: Any, key: str, where: str) -> str:
    value = item.get(key) if isinstance(item, dict) else None
    if value is None:
        raise ModelFileError(f"has no {key!r}", where=where, remedy="see docs/formats.md")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ModelFileError(f"{key!r} is {reprlib.repr(value)}", where=where, remedy="give a whole number or a string")
    return str(value)


def _require_colour(colour: Any, where: str) -> Any:
    if not _is_colour(colour):
        raise ModelFileError("colorClass must be a number or a string", where=where)
    return colour


def _is_colour(colour: Any) -> bool:
    return isinstance(colour, (int, float, str))


def read_number(item: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = item.get(key, default)
    if value is None:
        raise CostError(f"has no {key!r}", where=where, remedy="every node needs its times and every edge its cost")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CostError(f"{key} is {reprlib.repr(value)}", where=where, remedy="give a number")
    value = float(value if isinstance(value, float) else max(-_MAX_FLOAT, min(value, _MAX_FLOAT)))
    if key == "size" and value == default:
        return value
    if key == "size" and LARGEST_SIZE < value < math.inf:
        raise CostError(f"size is {value:g}", where=where, remedy="give bytes, up to 2^62")
    if not value >= 0 or (math.isinf(value) and default != math.inf):
        raise CostError(f"{key} is {value}", where=where, remedy="give a finite number, zero or more")
    return value
