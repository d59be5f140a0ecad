"""A problem as a weighted hypergraph or graph for partitioners, with blocks as nodes and whole numbers as weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.model.columns import Floats, Ints, Longs, distinct, offsets_of
from placewise.model.problem import Problem
from placewise.placers.shared.repair import PackingInstance

TOTAL = 1 << 28
"""The largest sum of node weights or of edge weights: partitioners count in 32 bits."""
TIGHT = 0.7
"""If blocks need more than this share of all memory, parts are balanced by bytes as well."""


@dataclass(frozen=True, slots=True, eq=False)
class Hypergraph:
    """The hypergraph of the blocks `node` [n_nodes] that some device of `devices` may run.

    `weight` [n_nodes] is their compute seconds, scaled to whole numbers; `share` [len(devices)] is the share of each
    device. Hyperedge i, a tensor, joins the nodes ``pins[offsets[i]:offsets[i + 1]]`` and costs ``cost[i]``, a whole
    number. Its first pin is its producer if it has one.
    """

    devices: Ints
    node: Longs
    weight: Longs
    share: Floats
    offsets: Longs
    pins: Ints
    cost: Longs

    def list_pins(self) -> list[list[int]]:
        """The pins of every hyperedge."""
        flat, ends = self.pins.tolist(), self.offsets.tolist()
        return [flat[first:last] for first, last in pairwise(ends)]

    def list_pairs(self) -> tuple[Longs, Ints, Longs]:
        """The graph of the papers: an edge between each tensor's first pin and each other pin, in both directions.

        Offsets [n_nodes + 1], neighbours and weights. Parallel edges are merged.
        """
        count = np.diff(self.offsets)
        first = np.repeat(self.pins[self.offsets[:-1]], count).astype(np.int64)
        others = self.pins.astype(np.int64)
        apart = first != others
        cost = np.repeat(self.cost, count)[apart]
        n = max(len(self.node), 1)
        tail, head = first[apart], others[apart]
        key, which = np.unique(np.concatenate((tail * n + head, head * n + tail)), return_inverse=True)
        total = np.bincount(which, weights=np.concatenate((cost, cost)), minlength=len(key))
        rows = key // n
        return (
            offsets_of(rows, len(self.node)),
            (key - rows * n).astype(np.int32),
            _scale_to_integers(total.astype(np.float64)),
        )


def list_working_devices(problem: Problem) -> Ints:
    """The devices that share the work: accelerators that may run anything, or host devices if there are none."""
    useful = np.asarray(problem.allowed.any(axis=0))
    accelerators = np.flatnonzero(useful & ~problem.cluster.is_host)
    return (accelerators if len(accelerators) else np.flatnonzero(useful)).astype(np.int32)


def build_hypergraph(problem: Problem, instance: PackingInstance, devices: Ints) -> Hypergraph:
    """The hypergraph for some devices: each tensor is one hyperedge over the blocks that produce and read it."""
    node = np.flatnonzero(instance.runs[:, devices].any(axis=1))
    seconds = np.where(instance.runs[np.ix_(node, devices)], instance.damage[np.ix_(node, devices)], np.nan)
    work = np.nanmean(seconds, axis=1) if len(node) else np.zeros(0)
    pace = np.nansum(np.where(np.isfinite(seconds), work[:, None], np.nan), axis=0)
    spent = np.nansum(seconds, axis=0)
    speed = np.where(spent > 0, pace / np.where(spent > 0, spent, 1.0), 1.0)
    share = speed / speed.sum()
    size, room = instance.own[node].astype(np.float64), problem.capacity[devices]
    if size.sum() > TIGHT * room.sum() > 0:
        share = (share + room / room.sum()) / 2
        work = work / max(float(work.sum()), np.finfo(float).tiny) + size / size.sum()
    index = np.full(problem.n_blocks, -1, np.int64)
    index[node] = np.arange(len(node))
    offsets, pins, cost = _list_hyperedges(problem, index)
    return Hypergraph(devices, node, _scale_to_integers(work), share, offsets, pins, _scale_to_integers(cost))


def _list_hyperedges(problem: Problem, index: Longs) -> tuple[Longs, Ints, Floats]:
    """Offsets, pins (the producer first) and seconds of the tensors that join two or more nodes and take time."""
    graph, n = problem.graph, max(int(index.max(initial=-1)) + 1, 1)
    links = problem.costs.transfer_seconds[:, 1:]
    seconds = links.mean(axis=1) if links.shape[1] else np.zeros(graph.n_tensors)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    reader = index[problem.block[graph.consumers]]
    produced = np.flatnonzero(graph.tensors.producer >= 0)
    owner = np.full(graph.n_tensors, -1, np.int64)
    owner[produced] = index[problem.block[graph.tensors.producer[produced]]]
    uses = (reader >= 0) & (reader != owner[tensor]) & (seconds[tensor] > 0)
    keys = distinct(tensor[uses] * n + reader[uses])
    owned = produced[(owner[produced] >= 0) & (seconds[produced] > 0)]
    rows = np.concatenate((keys // n, owned))
    pins = np.concatenate((keys % n, owner[owned]))
    first = np.concatenate((np.ones(len(keys), np.bool_), np.zeros(len(owned), np.bool_)))
    order = np.lexsort((pins, first, rows))
    rows, pins = rows[order], pins[order]
    count = np.bincount(rows, minlength=graph.n_tensors)
    real = count > 1
    kept = real[rows]
    offsets = np.concatenate(([0], np.cumsum(count[real]))).astype(np.int64)
    return offsets, pins[kept].astype(np.int32), seconds[real]


def _scale_to_integers(values: Floats) -> Longs:
    """Whole numbers, at least one each, in proportion to the values, whose sum is about `TOTAL` at most."""
    total = float(values.sum())
    scaled = values / total * max(TOTAL - len(values), 1) if total > 0 else values
    return np.maximum(np.rint(scaled), 1.0).astype(np.int64)
