"""Fewer components with the same optimum: leaves that cost nothing are merged with their only neighbour.

Every loose leaf doubles the number of ideals. A leaf is free if it needs no time and no memory (or any memory, if every
device could hold the whole model), has no weights that replicas would have to synchronize, and exchanges tensors with
one neighbour and host memory only. It can follow that neighbour from any stage into its stage: no edge between stages
appears, the stage that it leaves pays for fewer tensors, and the stage that it joins saves at least what it newly pays.
The published program merges such nodes too, whatever memory they need (Tarnawski et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from placewise.model.columns import Ints, Longs
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts
from placewise.simulate.contiguity import Contraction


def merge_leaves(graph: Contraction, costs: ComponentCosts, out: Callable[[], bool] = lambda: False) -> Ints:
    """A label [n] per component, dense and topological; free leaves have the label of their neighbour.

    Once `out` says that time is over, the remaining leaves stay as they are.
    """
    able = costs.seconds < NEVER
    free = np.where(able, costs.seconds, 0).max(axis=1, initial=0) == 0
    if int(costs.size.sum() + costs.storage_bytes.sum()) > costs.capacity.min(initial=NEVER):
        free &= (costs.size == 0) & (np.diff(costs.storage_offsets) == 0)
    if costs.pace.any():
        free &= (costs.weight == 0) & (np.diff(costs.storage_offsets) == 0)
    if not free.any():
        return np.arange(graph.n, dtype=np.int32)
    around: list[set[int]] = [set() for _ in range(graph.n)]
    for tail, head in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        around[tail].add(head)
        around[head].add(tail)
    merged = _MergedComponents(costs)
    leaves = [c for c in np.flatnonzero(free).tolist() if len(around[c]) == 1]
    while leaves and not out():
        leaf = leaves.pop()
        if len(around[leaf]) != 1:
            continue
        (neighbour,) = around[leaf]
        if (able[neighbour] & ~able[leaf]).any() or not merged.saves(leaf, neighbour):
            continue
        merged.join(leaf, neighbour)
        around[neighbour].remove(leaf)
        around[leaf].clear()
        if free[neighbour] and len(around[neighbour]) == 1:
            leaves.append(neighbour)
    _, dense = np.unique([merged.label(c) for c in range(graph.n)], return_inverse=True)
    return dense.astype(np.int32)


class _MergedComponents:
    """Merged components: the label of each, and the tensors of each label except those within it."""

    def __init__(self, costs: ComponentCosts) -> None:
        self._costs = costs
        self._parent = list(range(len(costs.size)))
        self._producer: list[int] = costs.producer.tolist()
        self._readers = _split_rows(costs.consumer_offsets, costs.consumers)
        self._uses, self._makes = (
            _split_rows(costs.use_offsets, costs.uses),
            _split_rows(costs.make_offsets, costs.makes),
        )

    def label(self, component: int) -> int:
        parent = self._parent
        while parent[component] != component:
            parent[component] = parent[parent[component]]
            component = parent[component]
        return component

    def join(self, leaf: int, neighbour: int) -> None:
        self._parent[leaf] = neighbour
        for tensors in (self._uses, self._makes):
            tensors[neighbour] += [t for t in tensors[leaf] if self._crosses(t, neighbour)]
            tensors[leaf] = []

    def saves(self, leaf: int, neighbour: int) -> bool:
        """Whether the stage of `neighbour` never pays more for tensors once the components of `leaf` join it."""
        costs = self._costs
        entering, leaving = np.zeros(costs.enter.shape[1], np.int64), np.zeros(costs.enter.shape[1], np.int64)
        for tensor in set(self._uses[leaf]):
            producer = self._producer[tensor]
            if producer < 0:
                entering += costs.enter[tensor]
            elif self.label(producer) == neighbour:
                if not costs.output[tensor] and self._read_within(tensor, leaf, neighbour):
                    leaving -= costs.leave[tensor]
            elif self.label(producer) != leaf:
                return False
        for tensor in set(self._makes[leaf]):
            if not self._read_within(tensor, leaf, neighbour):
                return False
            if any(self.label(reader) == neighbour for reader in self._readers[tensor]):
                entering -= costs.enter[tensor]
            if costs.output[tensor]:
                leaving += costs.leave[tensor]
        return bool((entering <= 0).all() and (leaving <= 0).all())

    def _read_within(self, tensor: int, leaf: int, neighbour: int) -> bool:
        return all(self.label(reader) in (leaf, neighbour) for reader in self._readers[tensor])

    def _crosses(self, tensor: int, neighbour: int) -> bool:
        producer = self._producer[tensor]
        inside = producer >= 0 and self.label(producer) == neighbour and self._read_within(tensor, neighbour, neighbour)
        return not inside or bool(self._costs.output[tensor])


def _split_rows(offsets: Longs, values: Ints) -> list[list[int]]:
    flat, ends = values.tolist(), offsets.tolist()
    return [flat[first:last] for first, last in pairwise(ends)]
