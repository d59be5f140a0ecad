"""Pieces: the ops that a device receives as one call. Dependencies between pieces are acyclic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.errors import PlanError
from placewise.model.columns import Ints, Longs, Ragged, distinct, frozen
from placewise.model.graph import Graph
from placewise.model.result import Timeline
from placewise.model.topology import sort_topologically

HEAVY = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Attention", "MultiHeadAttention", "LSTM", "GRU", "RNN"})
"""Kinds of ops around which a runtime fuses others into one kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """A placement cut into pieces, numbered so that each depends on smaller numbers only.

    `piece` [n_ops] is the piece of each op, `device` [n_pieces] the device of each piece. A device that could start
    several pieces takes the smallest number. `ops`, `reads` and `makes` list, per piece, its ops, the tensors that it
    reads from outside, and its own tensors that other pieces read or that are outputs of the model.
    """

    piece: Ints
    device: Ints
    ops: Ragged
    reads: Ragged
    makes: Ragged

    def __len__(self) -> int:
        return len(self.device)

    def count(self, n_devices: int) -> tuple[int, ...]:
        """The number of pieces on each device."""
        return tuple(np.bincount(self.device, minlength=n_devices).tolist())


def build_pieces(graph: Graph, device: Ints, label: Ints | Longs, order: Longs | None = None) -> Pieces:
    """Build the pieces of a label [n_ops]: ops of one label and one device.

    Of independent pieces, the one whose first op comes earlier in `order` (of all ops; default: graph order) has the
    smaller number. Raises PlanError if pieces depend on each other in a cycle.
    """
    _, dense = np.unique(np.stack((device, label)), axis=1, return_inverse=True)
    rank = np.arange(graph.n_ops)
    if order is not None:
        rank[order] = np.arange(graph.n_ops)
    first = np.full(int(dense.max(initial=-1)) + 1, graph.n_ops)
    np.minimum.at(first, dense, rank)
    after = _find_dependencies(graph, dense)
    turns = sort_topologically(after, first.tolist())
    if len(turns) < len(first):
        raise PlanError(
            "its pieces depend on each other in a cycle: each needs a tensor that another one produces",
            remedy="cut it into more pieces",
        )
    number = np.empty(len(first), np.int32)
    number[turns] = np.arange(len(first), dtype=np.int32)
    return _describe_pieces(graph, device, number[dense])


def cut_in_order(graph: Graph, device: Ints, order: Longs, kernel: Longs | None = None) -> Longs:
    """Labels [n_ops] that delay nothing, for ops that run in this order (all ops, as in `order_by_time`).

    Within each device's sequence of ops, a piece ends after an op whose tensor another device reads, and begins
    before an op that reads a tensor of another device: nothing is sent late, and no piece waits midway. Consecutive
    ops of one `kernel` [n_ops] (see `group_kernels`) count as one op.
    """
    maker, reader = _find_crossings(graph, device)
    unit = np.arange(graph.n_ops) if kernel is None else kernel
    label = np.zeros(graph.n_ops, np.int64)
    for d in distinct(device).tolist():
        ops = order[device[order] == d]
        begins = np.isin(unit[ops], unit[reader])
        begins[1:] |= np.isin(unit[ops], unit[maker])[:-1]
        begins[1:] &= unit[ops[1:]] != unit[ops[:-1]]
        label[ops] = np.cumsum(begins)
    return label


def group_kernels(graph: Graph, device: Ints, order: Longs, sets: Iterable[Sequence[int]]) -> tuple[Longs, Longs]:
    """Return an order in which the ops of every set that a runtime may fuse are consecutive, and kernels [n_ops]: the
    last op of the set, or the op itself.

    A set qualifies if it is on one device, has at most one op that justifies a kernel (`HEAVY`), and only its last
    op has readers outside. Its ops wait for the last of them, as in a kernel.
    """
    rank = np.empty(graph.n_ops, np.int64)
    rank[order] = np.arange(graph.n_ops)
    key, kernel = rank.copy(), np.arange(graph.n_ops)
    for ops in map(list, sets):
        last = max(ops, key=rank.__getitem__)
        if len(set(device[ops].tolist())) == 1 and _is_kernel(graph, ops, last):
            key[ops], kernel[ops] = rank[last], last
    return np.lexsort((rank, key)), kernel


def _is_kernel(graph: Graph, ops: Sequence[int], last: int) -> bool:
    if sum(graph.ops.kind[op] in HEAVY for op in ops) > 1:
        return False
    inner = [tensor for op in ops if op != last for tensor in graph.outputs_of(op)]
    inside = set(ops)
    return not graph.tensors.output[inner].any() and all(
        inside.issuperset(graph.consumers_of(tensor).tolist()) for tensor in inner
    )


def order_by_time(timeline: Timeline) -> Longs:
    """All ops in the order in which they run, which is topological: ops of no duration precede ops that start then."""
    return np.lexsort((np.arange(len(timeline.start)), timeline.finish, timeline.start))


def cut_by_changes(graph: Graph, device: Ints) -> Longs:
    """Few labels [n_ops]: the most device changes on any path to an op. They never form a cycle."""
    number = np.zeros(graph.n_ops, np.int64)
    where, producer = device.tolist(), graph.tensors.producer.tolist()
    for op in range(graph.n_ops):
        makers = (producer[tensor] for tensor in graph.inputs_of(op).tolist())
        number[op] = max((number[m] + (where[m] != where[op]) for m in makers if m >= 0), default=0)
    return number


def _find_dependencies(graph: Graph, label: Longs) -> list[set[int]]:
    """Per label, the labels whose tensors it reads."""
    maker = graph.tensors.producer[graph.edges.value]
    has_producer = maker >= 0
    source, target = label[maker[has_producer]], label[graph.edges.consumer[has_producer]]
    after: list[set[int]] = [set() for _ in range(int(label.max(initial=-1)) + 1)]
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        if one != other:
            after[other].add(one)
    return after


def _find_crossings(graph: Graph, device: Ints) -> tuple[Ints, Ints]:
    """Producer and reader of every tensor that another device reads."""
    maker, reader = graph.tensors.producer[graph.edges.value], graph.edges.consumer
    crosses = (maker >= 0) & (device[maker] != device[reader])
    return maker[crosses], reader[crosses]


def _describe_pieces(graph: Graph, device: Ints, piece: Ints) -> Pieces:
    count = int(piece.max(initial=-1)) + 1
    where = np.zeros(count, np.int32)
    where[piece] = device
    order = np.argsort(piece, kind="stable")
    bounds = np.searchsorted(piece[order], np.arange(count + 1))
    ops = [order[first:last].tolist() for first, last in pairwise(bounds.tolist())]
    maker, reader = graph.tensors.producer[graph.edges.value], piece[graph.edges.consumer]
    source = np.where(maker >= 0, piece[maker], -1)
    crosses = source != reader
    reads, makes = [set[int]() for _ in range(count)], [set[int]() for _ in range(count)]
    for tensor, one, other in zip(
        graph.edges.value[crosses].tolist(), source[crosses].tolist(), reader[crosses].tolist(), strict=True
    ):
        reads[other].add(tensor)
        if one >= 0:
            makes[one].add(tensor)
    for tensor in np.flatnonzero(graph.tensors.output & (graph.tensors.producer >= 0)).tolist():
        makes[piece[graph.tensors.producer[tensor]]].add(tensor)
    columns = (Ragged.of(map(sorted, rows)) for rows in (ops, reads, makes))
    return Pieces(frozen(piece, np.int32), frozen(where, np.int32), *columns)
