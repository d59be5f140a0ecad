"""Hierarchies of labels, from fine to coarse; each level groups the groups of the previous one.

A pass merges groups with their only successor or predecessor, as Duan et al. 2024 (appendix G) and most placers before
do to shorten a graph, or along heavy edges: a large flow between groups of few seconds. Merging along heavy edges
cannot create cycles (Herrmann, Özkaya, Uçar, Kaya and Çatalyürek, SIAM J. Scientific Computing 41, 2019, theorem 4.2):
a cluster spans two adjacent levels of the graph, a level being the longest path to it, and no edge leads from the
lower level of one cluster to the upper level of another that spans the same two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from placewise import _native
from placewise.coarsen.merging import sums
from placewise.coarsen.quotient import Limits, Quotient, build_quotient, merge_groups, renumber
from placewise.coarsen.repeats import find_layers
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.simulate.contiguity import strong_components

Integer = TypeVar("Integer", bound=np.integer[Any])
Grouping = Callable[[Quotient, Limits], Ints]

RATIO = 4.0
"""Approximate ratio of the numbers of groups of consecutive levels."""
SLACK = 2.0
"""The most seconds of a group, relative to the mean of its level."""
MAX_MEMORY_SHARE = 0.05
"""The largest fraction of the smallest memory that a group may take."""
STALLED = 0.95
"""Passes end when one leaves more than this fraction of the groups."""


def hierarchy(
    problem: Problem,
    *,
    wanted: int,
    key: npt.NDArray[np.integer] | None = None,
    start: Ints | None = None,
) -> list[Ints]:
    """Labels [n_ops] from fine to coarse, down to about `wanted` groups; none if the problem has no more than that.

    No label makes a cycle in the graph of components. `key` [n_ops] separates ops that must never be grouped (by the
    devices of a placement that the groups must express, say). `start`, a label, makes the first level, except where it
    mixes keys, makes cycles or exceeds the limits. If it reveals little of the graph (a graph without scopes), repeated
    layers are used instead; groups extend beyond layers once they cannot grow inside.
    """
    component, quotient = build_quotient(problem, key)
    keys, number, labels = quotient.key, component, []
    layer: Ints | None = None
    if start is not None and quotient.n > wanted:
        before, number, quotient = quotient.n, *_apply_start_label(problem, number, quotient, start, wanted)
        if quotient.n > max(wanted, before / 2):
            layer = find_layers(problem, number, quotient)
        if layer is not None:
            start = layer[number]
            number, quotient = _apply_start_label(problem, number, quotient, start, wanted)
            quotient = quotient._replace(key=_extend_keys(quotient, _label_components(number, quotient.n, start)))
        if quotient.n <= max(wanted, before / 2):
            labels.append(number)
    while quotient.n > wanted:
        before = quotient.n
        target = max(float(wanted), quotient.n / RATIO)
        number, quotient = _coarsen_once(number, quotient, target, _limits(problem, quotient, target))
        if quotient.n <= STALLED * before:
            labels.append(number)
        elif layer is None:
            break
        if layer is not None and quotient.n > max(wanted, STALLED * before):
            quotient, layer = quotient._replace(key=_label_components(number, quotient.n, keys[component])), None
    return labels


def _apply_start_label(
    problem: Problem, number: Ints, quotient: Quotient, start: Ints, wanted: int
) -> tuple[Ints, Quotient]:
    """Merge groups as far as the label `start` [n_ops] may."""
    label = _split_unsound_groups(
        quotient, _label_components(number, quotient.n, start), _limits(problem, quotient, wanted)
    )
    fresh, quotient = merge_groups(quotient, label)
    return fresh[number], quotient


def _extend_keys(quotient: Quotient, layer: Ints) -> Longs:
    """Keys [n] that also separate layers [n]."""
    return renumber(quotient.key * (int(layer.max()) + 1) + layer).astype(np.int64)


def _coarsen_once(number: Ints, quotient: Quotient, target: float, limits: Limits) -> tuple[Ints, Quotient]:
    """Chains, then heavy edges, repeatedly until the target is met or progress stalls."""
    passes: tuple[Grouping, ...] = (sole_children, sole_parents, heavy_edges)
    before = np.inf
    while target < quotient.n < STALLED * before:
        before = quotient.n
        for group in passes:
            if quotient.n > target:
                fresh, quotient = merge_groups(quotient, renumber(group(quotient, limits)))
                number = fresh[number]
    if quotient.n > 2 * target:
        fresh, quotient = merge_groups(quotient, cut_intervals(quotient, limits))
        number = fresh[number]
    return number, quotient


def _limits(problem: Problem, quotient: Quotient, target: float) -> Limits:
    """Slightly more than an even share each, so balance and packing stay possible."""
    room = problem.capacity[np.isfinite(problem.capacity)].min(initial=np.inf)
    share = SLACK / max(target, 1.0)
    most = share * float(quotient.bytes.sum())
    return Limits(
        share * float(quotient.seconds.sum()), max(most, MAX_MEMORY_SHARE * room) if np.isfinite(room) else np.inf
    )


def _label_components(component: Ints, n: int, label: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """The label [n] of each component: that of its first op."""
    first = np.full(n, len(component), np.int64)
    np.minimum.at(first, component, np.arange(len(component)))
    return label[first]


def _split_unsound_groups(quotient: Quotient, label: Ints, limits: Limits) -> Ints:
    """Keep labels [n] that respect limits and keys and make no cycles; split the others into single groups."""
    pure = renumber(label.astype(np.int64) * (int(quotient.key.max(initial=0)) + 1) + quotient.key)
    n = int(pure.max(initial=-1)) + 1
    seconds, nbytes = sums(quotient.seconds, pure, n), sums(quotient.bytes, pure, n)
    component, _ = strong_components(pure[quotient.tail], pure[quotient.head], n)
    bad = (seconds > limits.seconds) | (nbytes > limits.bytes) | (np.bincount(component, minlength=1)[component] > 1)
    alone = bad[pure]
    pure[alone] = n + np.arange(int(alone.sum()))
    return renumber(pure)


def cut_intervals(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: runs of consecutive groups, as long as the limits allow."""
    label: Ints = _native.cut_intervals(quotient.native(), *limits)
    return label


def sole_children(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: merge groups with their only successor, within the limits."""
    label: Ints = _native.join_sole_successors(quotient.native(), *limits)
    return label


def sole_parents(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: merge groups with their only predecessor, within the limits."""
    return sole_children(quotient.mirrored(), limits)[::-1]


LEAST = 1e-140
"""Mean seconds below which times count as zero: their products would underflow."""


def heavy_edges(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n] of clusters along heavy edges, light groups choosing first.

    The weight of an edge is its flow over the product of both ends' seconds, which keeps groups similar in size.
    """
    mean = float(quotient.flow.mean()) if len(quotient.flow) else 0.0
    graph = quotient._replace(flow=quotient.flow + 1e-9 * mean + 1e-300).native()
    label: Ints = _native.cluster_heavy_edges(graph, _sizes(quotient.seconds), *limits)
    return label


def _sizes(seconds: Floats) -> Floats:
    """The seconds of groups [n] for use in products: at least a tenth of the mean."""
    mean = float(seconds.mean()) if len(seconds) else 0.0
    return np.maximum(seconds, 0.1 * mean) + 1e-300 if mean > LEAST else np.ones(len(seconds))
