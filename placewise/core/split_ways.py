"""Ways to run the units of a model: what a split over devices, and recomputation, cost by the roofline.

Sharding rules say which part of every op each of t devices computes, and what they exchange (`costing.sharding`). An op
then takes the roofline's time of its part; figures that were measured or given scale like it. Collectives run over the
slowest link between devices of one node, as a ring or a tree, whichever is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from placewise.coarsen.units import group_units
from placewise.core.options import ProblemOptions
from placewise.costing.roofline import cost_table
from placewise.costing.sharding import read_ops, shard_graph
from placewise.costing.work import OpWork
from placewise.errors import InputError
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Floats, Ints, firsts_of
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.model.sharding import Collective, Sharding
from placewise.model.ways import Ways, classify_devices, restrict_ways
from placewise.simulate.nodes import find_nodes, slowest_link

MICROBATCHES = 32
"""Of a training step, where nothing is said."""
OPTIMIZER = "optimizer::"
PARTS = ("weights", "gradients", "optimizer", "state")
NAMES = {False: "plain", True: "recompute"}


def add_ways(problem: Problem, work: OpWork | None, options: ProblemOptions) -> Problem:
    """The problem with ways to split, replicate and recompute its units, as far as the options allow it.

    Raises InputError where a degree is asked for that no group of devices can have.
    """
    graph, cluster = problem.graph, problem.cluster
    trains = bool(graph.ops.backward.any())
    if not trains and (options.recompute not in (None, "auto") or options.microbatches is not None):
        what = "--microbatches" if options.recompute is None else "--recompute"
        raise InputError(f"{what} applies to training", remedy="add --graph training")
    kinds, node = classify_devices(cluster, problem.capacity), find_nodes(cluster)
    degrees = _list_degrees(cluster, kinds, node, options.tensor_parallel)
    units = group_units(graph)
    unit, names = units.unit, units.names
    table = read_ops(graph)
    shardings = {t: shard_graph(graph, t, unit=unit, table=table) for t in degrees}
    model = _UnitModel(problem, work, unit, kinds, node)
    microbatches = options.microbatches or (MICROBATCHES if trains else 1)
    ways = model.build_ways(shardings, names, microbatches)
    constraints = replace(
        problem.constraints,
        tensor_parallel=1 if options.tensor_parallel is None else options.tensor_parallel,
        recompute=options.recompute or "auto",
        replicas=0 if options.replicas is None else options.replicas,
    )
    notes = tuple(dict.fromkeys(said for sharding in shardings.values() for said in sharding.refusals))
    return problem.with_(
        ways=restrict_ways(ways, 0, constraints.recompute),
        constraints=constraints,
        warnings=(*problem.warnings, *notes),
    )


def _list_degrees(cluster: Cluster, kinds: Ints, node: Ints, most: int | None) -> list[int]:
    """Powers of two up to what the options and the largest node allow, and the number asked for itself."""
    sizes = [
        int(np.unique(node[kinds == kind], return_counts=True)[1].max())
        for kind in range(int(kinds.max(initial=-1)) + 1)
        if not cluster.is_host[kinds == kind].any()
    ]
    widest = max(sizes, default=1)
    if most is not None and most > widest:
        said = f"no node has {most} equal accelerators to split an op over"
        raise InputError(said, remedy=f"give --tensor-parallel {widest} or less, or 'any'")
    limit = 1 if most is None else most or widest
    degrees = {2**k for k in range(limit.bit_length()) if 2**k <= limit}
    return sorted(degrees | {limit})


@dataclass(frozen=True, slots=True)
class _UnitCost:
    """What the units of a graph cost for one degree, columns [n_units] or [n_units, n_classes]."""

    seconds: Floats
    forward: Floats
    collective: Floats
    forward_collective: Floats
    weights: Floats
    gradients: Floats
    optimizer: Floats
    state: Floats
    kept: Floats  # activations that the backward pass reads, per micro-batch
    inputs: Floats  # those of them that other units made
    working: float  # the most bytes of activations that a unit needs while it works


class _UnitModel:
    """The costs of the units of a problem for any degree."""

    def __init__(self, problem: Problem, work: OpWork | None, unit: Ints, kinds: Ints, node: Ints) -> None:
        self.problem, self.work, self.unit, self.kinds, self.node = problem, work, unit, kinds, node
        self.n_units = int(unit.max(initial=-1)) + 1
        self.firsts = firsts_of(kinds[kinds >= 0])
        self.firsts = np.flatnonzero(kinds >= 0)[self.firsts]
        self.trains = bool(problem.graph.ops.backward.any())
        self.links = [slowest_link(problem.cluster, np.flatnonzero(kinds == k), node) for k in range(len(self.firsts))]
        self.direct = problem.cluster.transfers == "direct"
        self._whole = None if work is None else cost_table(problem.graph, problem.cluster, work=work).op_seconds

    def build_ways(self, shardings: Mapping[int, Sharding], names: tuple[str, ...], microbatches: int) -> Ways:
        """A way per unit and degree, and in training another one that recomputes."""
        graph, degrees = self.problem.graph, sorted(shardings)
        costs = {t: self.cost_units(shardings[t], microbatches) for t in degrees}
        rules = (False, True) if self.trains else (False,)
        rows = [(u, t, again) for u in range(self.n_units) for t in degrees for again in rows_of(costs[t], u, rules)]
        way_unit = np.array([u for u, _, _ in rows], np.int32)
        tensors = _boundary_tensors(graph, self.unit)
        held = np.array([self._held(costs[t], u) for u, t, _ in rows])
        return Ways(
            unit=self.unit,
            way_unit=way_unit,
            degree=np.array([t for _, t, _ in rows], np.int32),
            recompute=np.array([again for _, _, again in rows], np.bool_),
            name=tuple(NAMES[again] for _, _, again in rows),
            seconds=np.array([self._seconds(costs[t], u, t, again) for u, t, again in rows]),
            collective_seconds=np.array([self._collectives(costs[t], u, again) for u, t, again in rows]),
            gradient_bytes=np.array([costs[t].gradients[u] for u, t, _ in rows]),
            bytes_in_flight=np.array([costs[t].inputs[u] if again else costs[t].kept[u] for u, t, again in rows]),
            held_bytes=held,
            parts=PARTS,
            tensor_unit=tensors.unit,
            tensor_bytes=tensors.nbytes,
            reader_offsets=tensors.offsets,
            reader=tensors.readers,
            sync_bytes=np.zeros((len(rows), len(tensors.unit))),
            device_class=self.kinds,
            node=self.node,
            microbatches=microbatches,
            passes=2 if self.trains else 1,
            gradient_factor=2.0 if self.trains else 0.0,
            in_flight=self.problem.objective.schedule if self.trains else "one",
            unit_names=names,
            workspace=np.array([costs[t].working for t in degrees]),
        )

    def _held(self, cost: _UnitCost, u: int) -> list[float]:
        return [float(column[u]) for column in (cost.weights, cost.gradients, cost.optimizer, cost.state)]

    def _seconds(self, cost: _UnitCost, u: int, degree: int, again: bool) -> Floats:
        """Seconds [n_classes]; a host device takes no part in a split."""
        seconds = cost.seconds[u] + (cost.forward[u] if again else 0.0) + self._collectives(cost, u, again)
        hosts = self.problem.cluster.is_host[self.firsts]
        found: Floats = np.where(hosts & (degree > 1), np.inf, seconds)
        return found

    def _collectives(self, cost: _UnitCost, u: int, again: bool) -> Floats:
        found: Floats = cost.collective[u] + (cost.forward_collective[u] if again else 0.0)
        return found

    def cost_units(self, sharding: Sharding, microbatches: int) -> _UnitCost:
        """The sums over the ops of each unit."""
        graph, n = self.problem.graph, self.n_units
        seconds = self._op_seconds(sharding)
        updates = np.array([kind.startswith(OPTIMIZER) for kind in graph.ops.kind.values])[graph.ops.kind.codes]
        seconds = np.where(updates[:, None], seconds / microbatches, seconds)
        forward = ~graph.ops.backward
        exchanged, again = self._exchange(sharding.collectives, sharding.degree)
        kept, inputs = _saved_activations(graph, self.unit, n, sharding)
        weights, trained, moments, state = _held_by_units(graph, self.unit, n, sharding, updates)
        working = (kept - inputs).max(initial=0.0) if self.trains else _peak_of_ops(graph, sharding)
        return _UnitCost(
            _by_unit(seconds, self.unit, n), _by_unit(seconds * forward[:, None], self.unit, n), exchanged, again,
            weights, trained, moments, state, kept, inputs, float(working),
        )  # fmt: skip

    def _op_seconds(self, sharding: Sharding) -> Floats:
        """Seconds [n_ops, n_classes] of the part of each op that one of t devices computes."""
        given = self.problem.costs.op_seconds[:, self.firsts]
        if sharding.degree == 1 or self.work is None or self._whole is None:
            scaled = given if sharding.degree == 1 else given * sharding.share[:, None]
            return np.asarray(scaled, np.float64)
        part = replace(
            self.work,
            flops=self.work.flops * sharding.share,
            bytes=self.work.bytes * _byte_shares(self.problem.graph, sharding),
        )
        seconds = cost_table(self.problem.graph, self.problem.cluster, work=part).op_seconds[:, self.firsts]
        whole = self._whole[:, self.firsts]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where((whole > 0) & np.isfinite(whole), seconds / whole, 1.0)
        found: Floats = np.where(np.isfinite(given), given * ratio, np.inf)
        return found

    def _exchange(self, collectives: tuple[Collective, ...], degree: int) -> tuple[Floats, Floats]:
        """Seconds [n_units, n_classes] of all collectives, and of those of the forward pass."""
        total = np.zeros((self.n_units, len(self.links)))
        forward = np.zeros_like(total)
        for one in collectives:
            seconds = [
                one.times * collective_seconds(one.kind, one.nbytes, degree, *link, direct=self.direct)
                for link in self.links
            ]
            total[self.unit[one.op]] += seconds
            if not one.backward:
                forward[self.unit[one.op]] += seconds
        return total, forward


def rows_of(cost: _UnitCost, u: int, rules: tuple[bool, ...]) -> list[bool]:
    """With recomputation only where it frees anything."""
    return [again for again in rules if not again or cost.kept[u] > cost.inputs[u]]


def collective_seconds(
    kind: str, nbytes: float, degree: int, bandwidth: float, latency: float, *, direct: bool = True
) -> float:
    """Seconds of a collective among `degree` devices, by the fastest of three algorithms.

    `nbytes` is the whole tensor. All-reduce: ring 2 (t − 1) (L + n / (t B)), tree 2 ⌈log₂ t⌉ (L + n / B), and over
    `direct` links one shot, in which every device sends all to every other, L + (t − 1) n / B; all-gather,
    reduce-scatter and all-to-all: ring (t − 1) (L + n / (t B)), one shot L + (t − 1) n / (t B) (Thakur, Rabenseifner
    and Gropp 2005; Chan et al. 2007).

    >>> collective_seconds("all-reduce", 8.0, 4, 1.0, 0.0)
    12.0
    """
    if degree == 1:
        return 0.0
    reduces = kind == "all-reduce"
    ring = (2 if reduces else 1) * (degree - 1) * (latency + nbytes / degree / bandwidth)
    once = latency + (degree - 1) * nbytes / (1 if reduces else degree) / bandwidth
    tree = 2 * math.ceil(math.log2(degree)) * (latency + nbytes / bandwidth)
    return min(ring, *([once] if direct else []), *([tree] if reduces else []))


def _by_unit(values: Floats, unit: Ints, n: int) -> Floats:
    total = np.zeros((n, *values.shape[1:]))
    np.add.at(total, unit, values)
    return total


def _byte_shares(graph: Graph, sharding: Sharding) -> Floats:
    """The share [n_ops] of an op's memory traffic that remains: of split values 1/t, of others all."""
    t = sharding.degree
    size = np.maximum(graph.tensors.bytes, 0).astype(np.float64)
    part = np.where(sharding.split >= 0, size / t, size)
    of_weight = np.maximum(graph.weights.bytes, 0).astype(np.float64)
    weight_part = np.where(sharding.weight_split >= 0, of_weight / t, of_weight)
    full, left = np.zeros(graph.n_ops), np.zeros(graph.n_ops)
    for sums, tensor, weight in ((full, size, of_weight), (left, part, weight_part)):
        np.add.at(sums, graph.edges.consumer, tensor[graph.edges.value])
        np.add.at(sums, graph.weight_edges.consumer, weight[graph.weight_edges.value])
        made = graph.tensors.producer >= 0
        np.add.at(sums, graph.tensors.producer[made], tensor[made])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(full > 0, left / full, 1.0)
    found: Floats = np.where(sharding.share < 1, share, 1.0)
    return found


def _saved_activations(graph: Graph, unit: Ints, n: int, sharding: Sharding) -> tuple[Floats, Floats]:
    """Bytes [n_units] of forward tensors that backward ops of a unit read, and of those that other units made."""
    maker = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    reader = graph.consumers
    saved = (maker >= 0) & ~graph.ops.backward[np.maximum(maker, 0)] & graph.ops.backward[reader]
    pairs = np.unique(np.stack((unit[reader[saved]], tensor[saved]), axis=1), axis=0)
    size = _tensor_parts(graph, sharding)[pairs[:, 1]]
    outside = unit[graph.tensors.producer[pairs[:, 1]]] != pairs[:, 0]
    kept, inputs = np.zeros(n), np.zeros(n)
    np.add.at(kept, pairs[:, 0], size)
    np.add.at(inputs, pairs[outside, 0], size[outside])
    return kept, inputs


def _tensor_parts(graph: Graph, sharding: Sharding) -> Floats:
    """Bytes [n_tensors] that each device has of a tensor."""
    size = np.maximum(graph.tensors.bytes, 0).astype(np.float64)
    found: Floats = np.where(sharding.split >= 0, size / sharding.degree, size)
    return found


def _peak_of_ops(graph: Graph, sharding: Sharding) -> float:
    """The most bytes of tensors that an op reads and makes."""
    size = _tensor_parts(graph, sharding)
    total = np.zeros(graph.n_ops)
    np.add.at(total, graph.edges.consumer, size[graph.edges.value])
    made = graph.tensors.producer >= 0
    np.add.at(total, graph.tensors.producer[made], size[made])
    return float(total.max(initial=0.0))


def _held_by_units(
    graph: Graph, unit: Ints, n: int, sharding: Sharding, updates: Bools
) -> tuple[Floats, Floats, Floats, Floats]:
    """Bytes [n_units] of distinct weights, of gradients, of optimizer state, and of other state."""
    weights, gradients, moments, state = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    rows, users = graph.weight_edges.value, graph.weight_edges.consumer
    size = np.maximum(graph.weights.bytes, 0).astype(np.float64)
    size = np.where(sharding.weight_split >= 0, size / sharding.degree, size)
    known: set[tuple[int, int]] = set()
    for weight, op in zip(rows.tolist(), users.tolist(), strict=True):
        key = (int(unit[op]), int(graph.weights.storage[weight]))
        if key not in known:
            known.add(key)
            weights[key[0]] += size[weight]
        if updates[op]:
            gradients[key[0]] += size[weight]
            split = sharding.weight_split[weight] >= 0
            moments[key[0]] += float(graph.ops.state_bytes[op]) / (sharding.degree if split else 1)
    np.add.at(state, unit[~updates], (graph.ops.state_bytes * sharding.share)[~updates])
    return weights, gradients, moments, state


@dataclass(frozen=True, slots=True, eq=False)
class _Boundary:
    """Forward tensors that other units of the same phase read: their unit, bytes, and readers as rows."""

    unit: Ints
    nbytes: Floats
    offsets: np.ndarray
    readers: Ints


def _boundary_tensors(graph: Graph, unit: Ints) -> _Boundary:
    makers, sizes, offsets, readers = [], [], [0], list[int]()
    backward, phase, repeats = graph.ops.backward, graph.ops.phase, graph.op_repeats
    for tensor, maker in enumerate(graph.tensors.producer.tolist()):
        if maker < 0 or backward[maker]:
            continue
        users = [op for op in graph.consumers_of(tensor).tolist() if not backward[op] and phase[op] == phase[maker]]
        outside = sorted({int(unit[op]) for op in users} - {int(unit[maker])})
        if outside:
            makers.append(int(unit[maker]))
            sizes.append(max(float(graph.tensors.bytes[tensor]), 0.0) * float(repeats[maker]))
            readers += outside
            offsets.append(len(readers))
    return _Boundary(
        np.array(makers, np.int32), np.array(sizes), np.array(offsets, np.int64), np.array(readers, np.int32)
    )
