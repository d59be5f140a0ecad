"""The published split format, and reading placements from plans and splits.

A split is ``{"fpgas": [{"nodes": [ids]}, ...], "cpus": [{"nodes": [ids]}, ...], "maxLoad" or "totalLatency":
ms}`` (Tarnawski et al. 2020, msr-fiddle/dnn-partitioning). Ids are op names; list i belongs to accelerator
or CPU i of the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
from pydantic import StrictInt, StrictStr

from placewise.errors import PlanError, locate_errors
from placewise.files.cluster_record import MAX_DEVICES
from placewise.files.plan_file import PlanFile, is_split, placement_of
from placewise.files.records import Record, parse_json, parse_record, parse_versioned, read_bytes
from placewise.model.cluster import Cluster, Link
from placewise.model.columns import Floats, Ints
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem


class _SplitPart(Record):
    nodes: tuple[StrictInt | StrictStr, ...]


class _PublishedSplit(Record):
    fpgas: tuple[_SplitPart, ...] = ()
    cpus: tuple[_SplitPart, ...] = ()


def read_placement(path: str | os.PathLike[str], problem: Problem) -> tuple[Problem, Placement]:
    """The problem and the placement in a plan or a published split.

    If a split has more accelerator lists than the cluster has accelerators: in `subgraph` latency, q · k lists for k
    accelerators give each accelerator q consecutive lists, its calls; otherwise the returned problem has unavailable
    clones of the last accelerator, so the split can be priced and the violation is reported. CPU lists are treated in
    the same way, except that all CPUs are one host in `subgraph` latency. Ops that the split does not name follow the
    named ops of their colocation group: a split for an inference file also serves the training file.

    Raises PlanError for an op that does not exist, occurs twice, or has no device.
    """
    data = read_bytes(path, PlanError)
    with locate_errors(path):
        document = parse_json(data, PlanError)
        if is_split(document):
            return _convert_split(parse_record(_PublishedSplit, document, PlanError), problem)
        plan = parse_versioned(PlanFile, document, PlanError)
        return problem, placement_of(plan, problem.graph, problem.cluster, problem.ways)


def split_is_latency(path: str | os.PathLike[str]) -> bool:
    """Whether a published split has a `totalLatency`: it was made for latency, not for throughput."""
    with locate_errors(path):
        document = parse_json(read_bytes(path, PlanError), PlanError)
        return isinstance(document, dict) and "totalLatency" in document


def _convert_split(split: _PublishedSplit, problem: Problem) -> tuple[Problem, Placement]:
    host = problem.cluster.is_host
    accelerators, hosts = np.flatnonzero(~host).tolist(), np.flatnonzero(host).tolist()
    calls = 1
    if problem.objective.kind == "latency" and problem.objective.execution == "subgraph":
        hosts += hosts[-1:] * (len(split.cpus) - len(hosts))
        if accelerators and len(split.fpgas) % len(accelerators) == 0:
            calls = max(1, len(split.fpgas) // len(accelerators))
            accelerators = np.repeat(accelerators, calls).tolist()
    problem, accelerators = _allot_devices(problem, accelerators, split.fpgas, "acc")
    problem, hosts = _allot_devices(problem, hosts, split.cpus, "cpu")
    part = _assign_parts(problem.graph, (*split.fpgas, *split.cpus))
    device = np.array([*accelerators, *hosts], np.int32)[part]
    if calls == 1:
        return problem, Placement(device)
    call = np.zeros(len(split.fpgas) + len(split.cpus), np.int32)
    call[: len(split.fpgas)] = np.arange(len(split.fpgas)) % calls
    return problem, Placement(device, call[part])


def _assign_parts(graph: Graph, parts: Sequence[_SplitPart]) -> Ints:
    """The part [n_ops] of every op: the one that names it, else that of the first named op in its group."""
    op_of = {name: op for op, name in enumerate(graph.ops.name)}
    place = np.full(graph.n_ops, -1, np.int32)
    for number, part in enumerate(parts):
        for node in part.nodes:
            op = op_of.get(str(node))
            if op is None:
                raise PlanError(f"the model has no op {str(node)!r}", remedy="use the split of this model")
            if place[op] >= 0:
                raise PlanError(f"op {str(node)!r} is named twice", remedy="name every op once")
            place[op] = number
    named = np.flatnonzero((place >= 0) & (graph.ops.group >= 0))
    groups, first = np.unique(graph.ops.group[named], return_index=True)
    leader = dict(zip(groups.tolist(), place[named[first]].tolist(), strict=True))
    for op in np.flatnonzero(place < 0).tolist():
        place[op] = leader.get(int(graph.ops.group[op]), -1)
        if place[op] < 0:
            raise PlanError(
                f"op {graph.ops.name[op]!r} has no device", remedy="name it, or an op of its colocation group"
            )
    return place


def _allot_devices(
    problem: Problem, devices: list[int], parts: Sequence[_SplitPart], prefix: str
) -> tuple[Problem, list[int]]:
    """One device per part; clones of the last device for further parts with ops, −1 for further empty parts."""
    count = max((number for number, part in enumerate(parts, 1) if part.nodes), default=0)
    missing = count - len(devices)
    if missing > 0:
        if not devices:
            raise PlanError(f"the cluster has no device for the lists of {prefix}0", remedy="add one to the cluster")
        if count > MAX_DEVICES:
            raise PlanError(f"has {count} lists, more than {MAX_DEVICES}", remedy="is it the right file?")
        names = [f"{prefix}{number}" for number in range(len(devices), count)]
        clones = range(problem.n_devices, problem.n_devices + missing)
        problem = _add_clones(problem, devices[-1], names)
        devices = [*devices, *clones]
    unused = [-1] * (len(parts) - len(devices))
    return problem, [*devices, *unused][: len(parts)]


def _add_clones(problem: Problem, cloned: int, names: Sequence[str]) -> Problem:
    """The problem with additional devices that cost as much as device `cloned` but are unavailable."""
    cluster, costs = problem.cluster, problem.costs
    clones = tuple(replace(cluster.devices[cloned], name=name, available=False) for name in names)
    links = (*cluster.links, *_clone_links(cluster, cloned, names))
    larger = Cluster((*cluster.devices, *clones), links, cluster.transfers)
    columns = [*range(len(cluster)), *[cloned] * len(names)]
    table = CostTable(
        costs.op_seconds[:, columns],
        _extend_transfers(problem, larger),
        costs.op_source[:, columns],
        costs.sources,
        costs.transfer_source,
    )
    return problem.with_(cluster=larger, costs=table)


def _clone_links(cluster: Cluster, cloned: int, names: Sequence[str]) -> list[Link]:
    """The links of device `cloned` for every clone, and links among the clones like a peer link of `cloned`."""
    own = cluster.devices[cloned].name
    links = [replace(link, source=name) for name in names for link in cluster.links if link.source == own]
    links += [replace(link, target=name) for name in names for link in cluster.links if link.target == own]
    accelerators = {device.name for device in cluster if not device.is_host}
    peer = next((link for link in cluster.links if link.target == own and link.source in accelerators), None)
    if peer is not None:
        links += [replace(peer, source=a, target=b) for a, b in permutations((own, *names), 2)]
    return links


def _extend_transfers(problem: Problem, larger: Cluster) -> Floats:
    """The transfer times by link class of `larger`; those of new classes are computed from bytes."""
    old = problem.cluster
    column = {
        key: number
        for number, key in enumerate(zip(old.class_bandwidth.tolist(), old.class_latency.tolist(), strict=True))
    }
    keys = [*zip(larger.class_bandwidth.tolist(), larger.class_latency.tolist(), strict=True)]
    if all(key in column for key in keys[1:]):
        return problem.costs.transfer_seconds[:, [0, *(column[key] for key in keys[1:])]]
    from_bytes = transfer_seconds_of(problem.graph, larger).copy()
    for number, key in enumerate(keys[1:], 1):
        if key in column:
            from_bytes[:, number] = problem.costs.transfer_seconds[:, column[key]]
    return from_bytes
