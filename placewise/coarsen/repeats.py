"""Repeated layers: each repetition of a part of the graph becomes one group.

Signatures distinguish components: first by their ops, then by their surroundings within a few steps. Occurrences of
one signature, *anchors*, cut the graph: a component joins the first anchor that depends on it, so the groups are
differences of a chain of ideals and cannot form cycles. Among many signatures, the one wins whose groups are most
alike and cut least of the traffic. What its equal groups leave is cut again by another signature (a decoder after an
encoder, stages of other widths).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placewise import _native
from placewise.coarsen.merging import Hashes, mix_hash
from placewise.coarsen.quotient import Quotient, build_quotient, renumber
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.problem import Problem

HOPS = (0, 1, 2, 4, 8)
"""Radii of signatures, in steps."""
COUNTS, ANCHORS = 4, 3
"""For each radius: how many numbers of occurrences are tried, and how many signatures for each of them."""
OFTEN, FEWEST, SMALLEST = 3, 2, 2
"""The least occurrences of an anchor, equal groups, and components per group."""
WORTH = 0.2
"""The least worth of a cut: the fraction of components in equal groups times the fraction of flow inside groups."""
CUTS, REST = 5, 0.1
"""The most cuts, and the fraction of components below which the rest is not cut again."""
ENOUGH = 0.9
"""A cut of this worth ends the search for larger radii."""


class _Cut(NamedTuple):
    """A cut by one signature: its worth, the group [n] of each remaining component, and which are in equal groups.

    Consecutive groups outside the equal ones are merged again.
    """

    worth: float
    group: Longs
    alike: Bools  # [n]


def repeated_layers(problem: Problem) -> Ints:
    """Labels [n_ops]: ops of one layer; every component separate if nothing repeats.

    Blocks stay whole and groups acyclic (see `simulate.contract`): backward ops join the forward ops of their
    colocation group, or else their mirrored order. Linear in ops and edges except for sorting.
    """
    component, quotient = build_quotient(problem)
    label = find_layers(problem, component, quotient)
    return (np.arange(quotient.n, dtype=np.int32) if label is None else label)[component]


def find_layers(problem: Problem, component: Ints, quotient: Quotient) -> Ints | None:
    """The layer [n] of every group of a fresh quotient; None if nothing repeats.

    Layers must have equal costs, or else equal kinds and sizes (measured costs are never equal).
    """
    for costs in (True, False):
        signatures = [_sign_components(problem, component, quotient.n, costs=costs)]
        label, left = np.zeros(quotient.n, np.int32), np.ones(quotient.n, np.bool_)
        for _ in range(CUTS):
            cut = _best_cut(quotient, signatures, label, left)
            if cut is None:
                break
            label = renumber(label.astype(np.int64) * (int(cut.group.max()) + 2) + np.where(left, cut.group + 1, 0))
            left &= ~cut.alike
            if left.sum() < REST * quotient.n:
                break
        if label.any():
            return label
    return None


def _best_cut(quotient: Quotient, signatures: list[Hashes], outer: Ints, left: Bools) -> _Cut | None:
    """The cut of highest worth within the groups `outer` [n], for the components that are left [n].

    `signatures` holds those of the radii in `HOPS` computed so far; more are added on demand.
    """
    n_left = int(left.sum())
    if n_left < OFTEN * SMALLEST:
        return None
    graph = quotient.native()
    late = _native.latest_levels(graph)
    opened = np.bincount(late[quotient.tail], minlength=quotient.n + 1)
    open_at = np.cumsum(opened - np.bincount(late[quotient.head], minlength=quotient.n + 1))
    wide = open_at[late].astype(np.float64)
    inside = left[quotient.tail] & left[quotient.head] & (outer[quotient.tail] == outer[quotient.head])
    total = float(quotient.flow[inside].sum()) or 1.0
    best: _Cut | None = None
    for number in range(len(HOPS)):
        if best is not None and best.worth >= ENOUGH:
            break
        if number == len(signatures):
            signatures.append(_extend_signatures(quotient, signatures[-1], HOPS[number] - HOPS[number - 1]))
        for anchors in _choose_anchors(signatures[number], left, late, wide):
            group, content, size, crossing = _native.divide_at_anchors(graph, signatures[0], outer, left, anchors)
            regular, covered = _find_alike_groups(content[:-1], size[:-1])
            worth = covered / n_left * (1 - crossing / total)
            if worth > (best.worth if best else WORTH) * (1 + 1e-9):
                alone = np.append(regular, False)
                fresh = alone | np.append(False, regular)
                best = _Cut(worth, np.cumsum(fresh)[group], left & alone[group])
    return best


def _find_alike_groups(content: Hashes, size: Longs) -> tuple[Bools, int]:
    """Which groups are alike: those of the content that covers most components, and that number of components."""
    kind = np.unique(content, return_inverse=True)[1]
    members = np.bincount(kind)
    nodes = np.bincount(kind, weights=size).astype(np.int64)
    nodes[(members < FEWEST) | (nodes < SMALLEST * members)] = 0
    most = int(np.argmax(nodes))
    return kind == most if nodes[most] else np.zeros(len(content), np.bool_), int(nodes[most])


def _choose_anchors(signature: Hashes, left: Bools, late: Longs, wide: Floats) -> list[Longs]:
    """Components of one signature, ascending, for the signatures that occur most regularly along the graph.

    Regular means at equal distances of levels; ties prefer places that few edges pass.
    """
    nodes = np.flatnonzero(left)
    kind, count = np.unique(signature[nodes], return_inverse=True, return_counts=True)[1:]
    order = np.argsort(kind, kind="stable")
    nodes, kind = nodes[order], kind[order]
    step = np.diff(late[nodes])
    even = (step[1:] == step[:-1]) & (step[1:] > 0) & (kind[2:] == kind[:-2])
    share = np.bincount(kind[2:][even], minlength=len(count)) / np.maximum(count - 2, 1)
    past = np.bincount(kind, weights=wide[nodes], minlength=len(count)) / count
    usable = np.flatnonzero((count >= OFTEN) & (count * SMALLEST <= len(nodes)) & (share > 0))
    if not len(usable):
        return []
    weight = np.bincount(count[usable], weights=(share * count)[usable])
    kinds = [k for k in np.argsort(-weight, kind="stable")[:COUNTS].tolist() if weight[k] > 0]
    end = np.cumsum(count)
    anchors: list[Longs] = []
    for k in kinds:
        mine = usable[count[usable] == k]
        for one in mine[np.lexsort((mine, past[mine], -share[mine]))][:ANCHORS].tolist():
            anchors.append(nodes[end[one] - k : end[one]])
    return anchors


def _sign_components(problem: Problem, component: Ints, n: int, *, costs: bool) -> Hashes:
    """A hash [n] of the ops in each component: kinds, directions, sizes, and seconds if `costs`."""
    graph = problem.graph
    ops, tensors = graph.ops, graph.tensors
    op = mix_hash(ops.kind.codes.astype(np.uint64) * np.uint64(2) + ops.backward)
    op = mix_hash(op + ops.phase.astype(np.uint64))
    if costs:
        for column in problem.costs.op_seconds.T:
            op = mix_hash(op + (column + 0.0).view(np.uint64))
    has_producer = tensors.producer >= 0
    _add(op, tensors.producer[has_producer], mix_hash(tensors.bytes[has_producer].astype(np.uint64)))
    weight_bytes = graph.weights.bytes[graph.weight_edges.value].astype(np.uint64)
    _add(op, graph.weight_edges.consumer, mix_hash(mix_hash(weight_bytes)))
    total = np.zeros(n, np.uint64)
    _add(total, component, mix_hash(op))
    return total


def _extend_signatures(quotient: Quotient, signature: Hashes, steps: int) -> Hashes:
    """Signatures [n] that cover `steps` more steps, in both directions."""
    for _ in range(steps):
        before, after = np.zeros_like(signature), np.zeros_like(signature)
        hashed = mix_hash(signature)
        _add(before, quotient.head, hashed[quotient.tail])
        _add(after, quotient.tail, hashed[quotient.head])
        signature = mix_hash(signature + mix_hash(before + mix_hash(after)))
    return signature


def _add(total: Hashes, row: npt.NDArray[Any], values: Hashes) -> None:
    np.add.at(total, row, values)
