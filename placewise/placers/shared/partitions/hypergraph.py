"""A problem as a weighted hypergraph, or graph, for partitioners: whole numbers, blocks as nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.model.columns import Floats, Ints, Longs, distinct, offsets_of
from placewise.model.problem import Problem
from placewise.placers.shared.memory_repair import PackingInstance

TOTAL = 1 << 28
"""What node weights, or edge weights, come to at most: partitioners count in 32 bits."""
TIGHT = 0.7
"""Where blocks need more than this share of all bytes, parts are balanced by bytes as well."""


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """What is cut: `node` [n_nodes] are the blocks that some device of `devices` may run.

    `weight` [n_nodes] is their compute seconds as whole numbers, `share` [len(devices)] what each device should get;
    tensor i of those that count joins nodes ``pins[offsets[i]:offsets[i + 1]]`` and costs ``cost[i]``, also a whole
    number; its first pin is its producer where it has one.
    """

    devices: Ints
    node: Longs
    weight: Longs
    share: Floats
    offsets: Longs
    pins: Ints
    cost: Longs

    def lists(self) -> list[list[int]]:
        """The pins of every tensor."""
        flat, ends = self.pins.tolist(), self.offsets.tolist()
        return [flat[first:last] for first, last in pairwise(ends)]

    def pairs(self) -> tuple[Longs, Ints, Longs]:
        """The graph of the papers: an edge from each tensor's first pin to each other one, both ways, as rows.

        Offsets [n_nodes + 1], neighbours and weights; edges between the same two nodes are one.
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
        return offsets_of(rows, len(self.node)), (key - rows * n).astype(np.int32), _whole(total.astype(np.float64))


def net_of(problem: Problem, cargo: PackingInstance, devices: Ints) -> Net:
    """The hypergraph for some devices: each tensor one hyperedge over the blocks that make and read it."""
    node = np.flatnonzero(cargo.runs[:, devices].any(axis=1))
    seconds = np.where(cargo.runs[np.ix_(node, devices)], cargo.damage[np.ix_(node, devices)], np.nan)
    work = np.nanmean(seconds, axis=1) if len(node) else np.zeros(0)
    pace = np.nansum(np.where(np.isfinite(seconds), work[:, None], np.nan), axis=0)
    spent = np.nansum(seconds, axis=0)
    speed = np.where(spent > 0, pace / np.where(spent > 0, spent, 1.0), 1.0)
    share = speed / speed.sum()
    size, room = cargo.own[node].astype(np.float64), problem.capacity[devices]
    if size.sum() > TIGHT * room.sum():
        share = (share + room / room.sum()) / 2
        work = work / max(float(work.sum()), np.finfo(float).tiny) + size / size.sum()
    index = np.full(problem.n_blocks, -1, np.int64)
    index[node] = np.arange(len(node))
    offsets, pins, cost = _nets(problem, index)
    return Net(devices, node, _whole(work), share, offsets, pins, _whole(cost))


def _nets(problem: Problem, index: Longs) -> tuple[Longs, Ints, Floats]:
    """Offsets, pins (the producer first) and seconds of the tensors that join two nodes or more and take time."""
    graph, n = problem.graph, max(int(index.max(initial=-1)) + 1, 1)
    links = problem.costs.transfer_seconds[:, 1:]
    seconds = links.mean(axis=1) if links.shape[1] else np.zeros(graph.n_tensors)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    reader = index[problem.block[graph.consumers]]
    made = np.flatnonzero(graph.tensors.producer >= 0)
    maker = np.full(graph.n_tensors, -1, np.int64)
    maker[made] = index[problem.block[graph.tensors.producer[made]]]
    uses = (reader >= 0) & (reader != maker[tensor]) & (seconds[tensor] > 0)
    keys = distinct(tensor[uses] * n + reader[uses])
    owned = made[(maker[made] >= 0) & (seconds[made] > 0)]
    rows = np.concatenate((keys // n, owned))
    pins = np.concatenate((keys % n, maker[owned]))
    first = np.concatenate((np.ones(len(keys), np.bool_), np.zeros(len(owned), np.bool_)))
    order = np.lexsort((pins, first, rows))
    rows, pins = rows[order], pins[order]
    count = np.bincount(rows, minlength=graph.n_tensors)
    real = count > 1
    kept = real[rows]
    offsets = np.concatenate(([0], np.cumsum(count[real]))).astype(np.int64)
    return offsets, pins[kept].astype(np.int32), seconds[real]


def _whole(values: Floats) -> Longs:
    """Whole numbers, one at least, in proportion to the values, that come to about `TOTAL` at most."""
    total = float(values.sum())
    scaled = values / total * max(TOTAL - len(values), 1) if total > 0 else values
    return np.maximum(np.rint(scaled), 1.0).astype(np.int64)
