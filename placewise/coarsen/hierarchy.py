"""From fine to coarse: labels, each of which groups the groups of the one before."""

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
"""So many times fewer groups from one level to the next, about."""
SLACK = 2.0
"""So many times the mean seconds of a level's groups, at most, in one of them."""
LUMP = 0.05
"""Of the smallest memory, the share that any group may take."""
STALLED = 0.95
"""A pass that leaves a larger share of the groups is the last of its kind."""


def hierarchy(
    problem: Problem,
    *,
    wanted: int,
    key: npt.NDArray[np.integer] | None = None,
    start: Ints | None = None,
    ratio: float = RATIO,
) -> list[Ints]:
    """Labels [n_ops] from fine to coarse, until there are about `wanted` groups; none where there are no more.

    No label makes a cycle in the graph of components. `key` [n_ops] tells apart what is never grouped (say, the
    devices of a placement that the groups must be able to express); `start`, a label, makes the first level, but
    where it mixes keys, makes cycles or exceeds the limits. Where that says little of the graph (a graph without
    scopes), its repeated layers do; groups go beyond those that exceed the limits when they can grow no further inside.
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
        target = max(float(wanted), quotient.n / ratio)
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
    """Groups as far as the label `start` [n_ops] may make them."""
    label = _split_unsound_groups(
        quotient, _label_components(number, quotient.n, start), _limits(problem, quotient, wanted)
    )
    fresh, quotient = merge_groups(quotient, label)
    return fresh[number], quotient


def _extend_keys(quotient: Quotient, layer: Ints) -> Longs:
    """Keys [n] that tell layers [n] apart as well."""
    return renumber(quotient.key * (int(layer.max()) + 1) + layer).astype(np.int64)


def _coarsen_once(number: Ints, quotient: Quotient, target: float, limits: Limits) -> tuple[Ints, Quotient]:
    """Chains, then heavy edges, again and again until the target is met or nothing much happens."""
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
    """A little more than an even share each, so that balance and packing stay possible."""
    room = problem.capacity[np.isfinite(problem.capacity)].min(initial=np.inf)
    share = SLACK / max(target, 1.0)
    most = share * float(quotient.bytes.sum())
    return Limits(share * float(quotient.seconds.sum()), max(most, LUMP * room) if np.isfinite(room) else np.inf)


def _label_components(component: Ints, n: int, label: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """The label [n] of each component: that of its first op."""
    first = np.full(n, len(component), np.int64)
    np.minimum.at(first, component, np.arange(len(component)))
    return label[first]


def _split_unsound_groups(quotient: Quotient, label: Ints, limits: Limits) -> Ints:
    """The labels [n] where they keep the limits, do not mix keys and make no cycles; single groups elsewhere."""
    pure = renumber(label.astype(np.int64) * (int(quotient.key.max(initial=0)) + 1) + quotient.key)
    n = int(pure.max(initial=-1)) + 1
    seconds, nbytes = sums(quotient.seconds, pure, n), sums(quotient.bytes, pure, n)
    component, _ = strong_components(pure[quotient.tail], pure[quotient.head], n)
    bad = (seconds > limits.seconds) | (nbytes > limits.bytes) | (np.bincount(component, minlength=1)[component] > 1)
    alone = bad[pure]
    pure[alone] = n + np.arange(int(alone.sum()))
    return renumber(pure)


def cut_intervals(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: neighbours in the order of the groups, as many together as the limits allow."""
    label: Ints = _native.cut_intervals(quotient.native(), *limits)
    return label


def sole_children(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: groups join their only successor, as far as the limits allow."""
    label: Ints = _native.join_sole_successors(quotient.native(), *limits)
    return label


def sole_parents(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: groups join their only predecessor, as far as the limits allow."""
    return sole_children(quotient.mirrored(), limits)[::-1]


LEAST = 1e-140
"""Mean seconds below which nothing takes time: products of them would be 0."""


def heavy_edges(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n] of clusters along heavy edges, light groups choosing first."""
    mean = float(quotient.flow.mean()) if len(quotient.flow) else 0.0
    graph = quotient._replace(flow=quotient.flow + 1e-9 * mean + 1e-300).native()
    label: Ints = _native.cluster_heavy_edges(graph, _sizes(quotient.seconds), *limits)
    return label


def _sizes(seconds: Floats) -> Floats:
    """What groups count for [n], of which products are taken: their seconds, and no less than a tenth of the mean."""
    mean = float(seconds.mean()) if len(seconds) else 0.0
    return np.maximum(seconds, 0.1 * mean) + 1e-300 if mean > LEAST else np.ones(len(seconds))
