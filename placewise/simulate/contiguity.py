"""The definition of contiguity: the graph that the stages of a pipeline must respect.

Colocation groups are contracted to blocks. The block of a forward op that reads a tensor comes after the block that
produces it. Backward ops follow their block. A block of backward ops only stands for a forward twin without cost and
with mirrored edges: an edge between backward ops counts reversed if one of them is in such a block, and else not at
all (Tarnawski et al., NeurIPS 2020, and their published program). An edge from one phase of a model to a later one
orders time, not stages: every phase runs through the whole pipeline. Blocks on a cycle are in the same stage of every
chain of ideals, and are fused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise import _native
from placewise.model.columns import Ints, Longs, distinct, frozen, offsets_of
from placewise.model.problem import Problem, cached_per_problem
from placewise.simulate.problem_arrays import native_problem


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """The fused quotient graph: an acyclic graph of components, numbered in topological order.

    `component` [n_ops]; the distinct successors of component c, ascending, are
    ``successors[successor_offsets[c]:successor_offsets[c + 1]]``, its predecessors likewise.
    """

    component: Ints
    n: int
    successor_offsets: Longs
    successors: Ints
    predecessor_offsets: Longs
    predecessors: Ints

    def edges(self) -> tuple[Ints, Ints]:
        """Tails and heads [n_edges] of the distinct edges, sorted by tail."""
        tails = np.repeat(np.arange(self.n, dtype=np.int32), np.diff(self.successor_offsets))
        return tails, self.successors


@cached_per_problem
def contract(problem: Problem) -> Contraction:
    """The components that a contiguous placement keeps whole, and their order; linear in ops and edges.

    Without fused ops, components have the order of the ops.
    """
    component, n = components(problem)
    of_block = np.empty(problem.n_blocks, np.int32)
    of_block[problem.block] = component
    tail, head = _block_edges(problem)
    return _contraction(component, n, of_block[tail], of_block[head])


@cached_per_problem
def components(problem: Problem) -> tuple[Ints, int]:
    """The component of each op [n_ops], and their count, as in `contract`."""
    tail, head = _block_edges(problem)
    if (tail < head).all():
        return problem.block, problem.n_blocks
    fused, n = strong_components(tail, head, problem.n_blocks)
    return frozen(fused[problem.block], np.int32), n


def join(contraction: Contraction, label: Ints) -> Contraction:
    """The coarser contraction whose components are the labels [n], which are dense and topologically ordered."""
    tail, head = contraction.edges()
    n = int(label.max(initial=-1)) + 1
    return _contraction(label[contraction.component], n, label[tail], label[head])


def depth_first(contraction: Contraction) -> Ints:
    """A depth-first topological order: the position [n] of each component."""
    tail, head = contraction.edges()
    last = contraction.n - 1
    return strong_components(last - tail, last - head, contraction.n)[0][::-1].copy()


def strong_components(tail: Ints, head: Ints, n: int) -> tuple[Ints, int]:
    """The strongly connected component of each of n nodes, numbered topologically, and their count (Tarjan 1972).

    Nodes that are in topological order already keep their numbers.
    """
    return _native.strong_components(*_rows(tail, head, n))


def device_cycle(contraction: Contraction, device: Ints) -> tuple[int, ...] | None:
    """None if the placement `device` [n_ops] is contiguous, else a cycle of devices that wait for each other.

    A placement is a chain of ideals if and only if no component is split and the devices, joined by the edges of the
    components, form no cycle. Ops without a device (−1) are ignored.
    """
    return _find_cycle(contraction.component, contraction.n, *contraction.edges(), device)


def stage_cycle(problem: Problem, device: Ints) -> tuple[int, ...] | None:
    """The same for the components of a problem, without sorting their edges: quicker for a single placement."""
    if (device == device[:1]).all():
        return None
    component, n = components(problem)
    of_block = np.empty(problem.n_blocks, np.int32)
    of_block[problem.block] = component
    tail, head = _block_edges(problem)
    return _find_cycle(component, n, of_block[tail], of_block[head], device)


def _find_cycle(component: Ints, n: int, tail: Ints, head: Ints, device: Ints) -> tuple[int, ...] | None:
    """As `device_cycle`, for edges between components that may be repeated."""
    placed = device >= 0
    where = np.full(n, -1, np.int64)
    where[component[placed]] = device[placed]
    split = placed & (where[component] != device)
    if split.any():
        op = int(np.argmax(split))
        return int(device[op]), int(where[component[op]])
    source, target = where[tail], where[head]
    crossing = (source != target) & (source >= 0) & (target >= 0)
    after: dict[int, set[int]] = {}
    width = int(where.max(initial=0)) + 1
    for pair in distinct(source[crossing] * width + target[crossing]).tolist():
        after.setdefault(pair // width, set()).add(pair % width)
    return _cycle(after)


def out_of_order(contraction: Contraction, device: Ints) -> tuple[int, int] | None:
    """None if no stage of `device` [n_ops] reads from a later device, else that device and the stage's own.

    Devices have the order of the cluster. Components must be whole and all ops placed.
    """
    where = np.zeros(contraction.n, np.int64)
    where[contraction.component] = device
    tail, head = (where[ends] for ends in contraction.edges())
    back = np.flatnonzero(tail > head)
    return (int(tail[back[0]]), int(head[back[0]])) if len(back) else None


def path_back(problem: Problem, device: Ints) -> tuple[int, ...] | None:
    """None if the placement `device` [n_ops] is convex, else the ops of a path that leaves a device and returns.

    Paths go through forward ops of one phase, and not through colocation groups (the contiguity of the integer program
    of Tarnawski et al. 2020). A path cannot leave an op without a device (−1).
    """
    ops = problem.graph.ops
    native = native_problem(problem)
    path = _native.return_path(native, ops.backward, frozen(ops.phase, np.int32), frozen(device, np.int32))
    return tuple(path.tolist()) or None


def forward_edges(problem: Problem) -> list[tuple[int, int]]:
    """Distinct pairs of forward ops of one phase, ascending; the second reads a tensor of the first."""
    graph = problem.graph
    maker = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets)).astype(np.int64)
    made = maker >= 0
    tail, head = maker[made], graph.consumers[made]
    forward = ~(graph.ops.backward[tail] | graph.ops.backward[head])
    forward &= graph.ops.phase[tail] == graph.ops.phase[head]
    pairs = distinct(tail[forward] * max(problem.n_ops, 1) + head[forward]).tolist()
    return [divmod(pair, problem.n_ops) for pair in pairs]


def _contraction(component: Ints, n: int, tail: Ints, head: Ints) -> Contraction:
    return Contraction(frozen(component, np.int32), n, *_rows(tail, head, n), *_rows(head, tail, n))


@cached_per_problem
def _block_edges(problem: Problem) -> tuple[Ints, Ints]:
    """Tails and heads of the forward quotient's edges between blocks, with repetitions."""
    graph, block = problem.graph, problem.block
    backward = graph.ops.backward
    source = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    made = source >= 0
    source, target = source[made], graph.consumers[made]
    tail, head = block[source], block[target]
    orphan = np.bincount(block[~backward], minlength=problem.n_blocks) == 0
    mirrored = backward[source] & backward[target]
    mirrored[mirrored] = orphan[tail[mirrored]] | orphan[head[mirrored]]
    counts = (mirrored | ~backward[target]) & (tail != head)
    counts &= graph.ops.phase[source] == graph.ops.phase[target]
    return np.where(mirrored, head, tail)[counts], np.where(mirrored, tail, head)[counts]


def _rows(tail: Ints, head: Ints, n: int) -> tuple[Longs, Ints]:
    """Distinct heads per tail as CSR, without loops."""
    key = distinct(tail[tail != head].astype(np.int64) * n + head[tail != head])
    rows = key // max(n, 1)
    return frozen(offsets_of(rows, n), np.int64), frozen(key - rows * n, np.int32)


def _cycle(after: dict[int, set[int]]) -> tuple[int, ...] | None:
    """A cycle of a small graph, or None. Nodes without predecessors are removed; what remains has a cycle."""
    before: dict[int, set[int]] = {}
    for source, targets in after.items():
        for target in targets:
            before.setdefault(target, set()).add(source)
    nodes = set(after) | set(before)
    while free := {node for node in nodes if not before.get(node, set()) & nodes}:
        nodes -= free
    if not nodes:
        return None
    path = [min(nodes)]
    while path[-1] not in path[:-1]:
        path.append(min(before[path[-1]] & nodes))
    return tuple(path[path.index(path[-1]) + 1 :][::-1])
