"""Coarse problems: the ops are groups of ops of another problem.

A *label* [n_ops] numbers the groups; ops of one colocation group share a label. A coarse op consists of the forward or
the backward ops of one phase and label. Coarse ops of one label are a colocation group, so the coarse problem has one
block per label. Tensors inside a coarse op vanish, tensors that one coarse op sends to the same others are merged, and
so are weights that the same labels use. For throughput, the value of a placement of groups equals that of their ops,
and so do resident bytes. For latency, and for live activations, the coarse problem is an approximation: a group starts
when all its inputs are there and ends as a whole. Contiguity means the same in both problems if no label mixes blocks
that have forward ops with blocks that have none.

Any label works. Groups with cyclic dependencies run in *rounds*: ops whose inputs have passed the cycle once more than
others form a separate op in the same colocation group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewise import _native
from placewise.coarsen.merging import MergedTensors, merge_edges, merge_tensors, merge_weights, sums
from placewise.errors import InputError
from placewise.model.columns import Floats, Ints, Longs, Ragged, frozen
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.model.tables import Interned, Ops
from placewise.simulate.contiguity import strong_components

KIND = "placewise::Group"
"""The kind of coarse ops."""


@dataclass(frozen=True, slots=True, eq=False)
class CoarseProblem:
    """A problem of groups, the coarse op of every fine op [n_ops], and the first fine op of every coarse op."""

    problem: Problem
    op: Ints
    first: Longs

    def up(self, device: Ints) -> Ints:
        """The fine placement [n_ops] for a coarse placement [n_coarse_ops]."""
        return device[self.op]

    def down(self, device: Ints) -> Ints:
        """The coarse placement [n_coarse_ops] of a fine one [n_ops] that keeps groups together."""
        return device[self.first]


def coarse_problem(problem: Problem, label: Ints) -> CoarseProblem:
    """Build the problem of the groups `label` [n_ops], numbered from 0.

    Pins and forbidden pairs become infinite times, sets to keep together become labels. Linear in ops, edges and
    devices except for sorting. Raises InputError if a label splits a colocation group.
    """
    _require_blocks(problem, label)
    op = _coarse_ops(problem, np.asarray(label))
    n = int(op.max(initial=-1)) + 1
    first = np.full(n, problem.n_ops, np.int64)
    np.minimum.at(first, op, np.arange(problem.n_ops))
    fine = problem.graph
    crossing = merge_tensors(fine, op, n)
    graph = Graph(
        ops=_ops(fine, np.asarray(label), op, first),
        tensors=crossing.tensors,
        weights=(merged_weights := merge_weights(fine, np.asarray(label), op)).weights,
        edges=merge_edges(crossing),
        weight_edges=merge_edges(merged_weights),
        phases=fine.phases,
    )
    costs = CostTable.given(_op_seconds(problem, np.asarray(label), op, n), _transfer_seconds(problem, crossing))
    rules = replace(problem.constraints, pins=(), forbidden=(), together=())
    return CoarseProblem(problem.with_(graph=graph, costs=costs, constraints=rules), frozen(op, np.int32), first)


def colocate(problem: Problem, label: Ints) -> Problem:
    """Make the groups `label` [n_ops] colocation groups: values stay exact, and evaluation costs as much as before.

    Raises InputError if a label splits a colocation group.
    """
    _require_blocks(problem, label)
    graph = problem.graph
    return problem.with_(graph=replace(graph, ops=replace(graph.ops, group=label)))


def _require_blocks(problem: Problem, label: Ints) -> None:
    home = np.full(problem.n_blocks, -1, np.int64)
    if len(label) == problem.n_ops:
        home[problem.block] = label
    if len(label) != problem.n_ops or (home[problem.block] != label).any() or (home < 0).any():
        raise InputError("a label splits a colocation group, or misses an op", remedy="label blocks, not ops")


def _coarse_ops(problem: Problem, label: Ints) -> Ints:
    """The coarse op of each op [n_ops], in topological order."""
    graph, n_ops = problem.graph, problem.n_ops
    part = (label.astype(np.int64) * max(len(graph.phases), 1) + graph.ops.phase) * 2 + graph.ops.backward
    parts, part = np.unique(part, return_inverse=True)
    tail = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    has_producer = tail >= 0
    component, _ = strong_components(part[tail[has_producer]], part[graph.consumers[has_producer]], len(parts))
    middle = sums(np.arange(n_ops, dtype=np.float64), part, len(parts)) / np.bincount(part, minlength=len(parts))
    rank = np.empty(len(parts), np.int64)
    rank[np.lexsort((middle, component))] = np.arange(len(parts))
    reads = graph.consumer_offsets[graph.out_offsets]
    round_ = _native.count_rounds(reads - reads[0], graph.consumers[reads[0] :], rank[part])
    op: Ints = np.unique(round_ * len(parts) + rank[part], return_inverse=True)[1].astype(np.int32)
    return op


def _ops(fine: Graph, label: Ints, op: Ints, first: Longs) -> Ops:
    ops, n = fine.ops, len(first)
    state = np.zeros(n, np.int64)
    np.add.at(state, op, ops.state_bytes)
    name = ops.name
    return Ops(
        name=tuple([name[i] for i in first.tolist()]),
        kind=Interned((KIND,), np.zeros(n, np.int32)),
        scope=Interned(ops.scope.values, ops.scope.codes[first]),
        attributes=Interned(({},), np.zeros(n, np.int32)),
        dtype=ops.dtype[first],
        backward=ops.backward[first],
        group=label[first],
        state_bytes=state,
        origin=Ragged.empty(n),
        phase=ops.phase[first],
    )


def _op_seconds(problem: Problem, label: Ints, op: Ints, n: int) -> Floats:
    """Sums over each coarse op's members [n, n_devices]; inf where one of its group may not run."""
    seconds = np.empty((n, problem.n_devices))
    n_labels = int(label.max(initial=-1)) + 1
    group = np.zeros(n, np.int64)
    group[op] = label
    for d in range(problem.n_devices):
        allowed = problem.allowed[:, d]
        barred = np.zeros(n_labels, np.bool_)
        barred[label[~allowed]] = True
        times = np.where(allowed, problem.costs.op_seconds[:, d], 0.0)
        seconds[:, d] = np.where(barred[group], np.inf, sums(times, op, n))
    return seconds


def _transfer_seconds(problem: Problem, crossing: MergedTensors) -> Floats:
    """Sums over the fine tensors of each coarse one [n_coarse_tensors, n_link_classes]."""
    fine, kept = problem.costs.transfer_seconds, crossing.of >= 0
    columns = [sums(column[kept], crossing.of[kept], len(crossing.tensors)) for column in fine.T]
    return np.stack(columns, axis=1) if columns else np.zeros((len(crossing.tensors), 0))
