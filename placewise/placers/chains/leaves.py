"""Fewer components, same optimum: leaves that cost nothing move with their only neighbour.

Every loose leaf doubles the number of ideals. One that needs no time and no memory (or any memory, where
every device could hold the whole model), no weights that replicas would have to synchronize, and that trades
tensors with one neighbour and host memory only, can follow that neighbour from any stage into its stage: no
edge between stages appears, the stage that it leaves pays for fewer tensors, and the stage that it joins saves
at least what it newly pays. The published program merges such nodes too (Tarnawski et al. 2020), whatever
memory they need.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewise.model.columns import Ints, Longs
from placewise.placers.chains.stages import NEVER, StageCosts
from placewise.simulate.contract import Contraction


def merge_leaves(graph: Contraction, costs: StageCosts, out: Callable[[], bool] = lambda: False) -> Ints:
    """A label [n] per component, dense and topological: the free leaves carry their neighbour's.

    Where time is `out`, the leaves that are left stay.
    """
    label = list(range(graph.n))
    members = [[c] for c in range(graph.n)]
    around: list[set[int]] = [set() for _ in range(graph.n)]
    for tail, head in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        around[tail].add(head)
        around[head].add(tail)
    free = np.where(costs.seconds < NEVER, costs.seconds, 0).max(axis=1, initial=0) == 0
    if int(costs.size.sum() + costs.storage_bytes.sum()) > costs.capacity.min(initial=NEVER):
        free &= (costs.size == 0) & (np.diff(costs.storage_offsets) == 0)
    if costs.pace.any():
        free &= (costs.weight == 0) & (np.diff(costs.storage_offsets) == 0)
    leaves = [c for c in np.flatnonzero(free).tolist() if len(around[c]) == 1]
    while leaves and not out():
        leaf = leaves.pop()
        if len(around[leaf]) != 1:
            continue
        (home,) = around[leaf]
        able = costs.seconds < NEVER
        if (able[home] & ~able[leaf]).any() or not _saves(costs, label, members[leaf], home):
            continue
        for component in members[leaf]:
            label[component] = home
        members[home] += members[leaf]
        around[home].remove(leaf)
        around[leaf].clear()
        if free[home] and len(around[home]) == 1:
            leaves.append(home)
    _, dense = np.unique(label, return_inverse=True)
    return dense.astype(np.int32)


def _saves(costs: StageCosts, label: list[int], leaf: list[int], home: int) -> bool:
    """Whether the stage of `home` never pays more for tensors once the components of `leaf` join it."""
    own = label[leaf[0]]
    entering, leaving = np.zeros(costs.enter.shape[1], np.int64), np.zeros(costs.enter.shape[1], np.int64)
    for tensor in {t for component in leaf for t in _row(costs.use_offsets, costs.uses, component)}:
        maker = int(costs.producer[tensor])
        if maker < 0:
            entering += costs.enter[tensor]
        elif label[maker] == home:
            if not costs.output[tensor] and _read_within(costs, label, tensor, own, home):
                leaving -= costs.leave[tensor]
        elif label[maker] != own:
            return False
    for tensor in (t for component in leaf for t in _row(costs.make_offsets, costs.makes, component)):
        if not _read_within(costs, label, tensor, own, home):
            return False
        if any(label[c] == home for c in _row(costs.consumer_offsets, costs.consumers, tensor)):
            entering -= costs.enter[tensor]
        if costs.output[tensor]:
            leaving += costs.leave[tensor]
    return bool((entering <= 0).all() and (leaving <= 0).all())


def _row(offsets: Longs, values: Ints, row: int) -> list[int]:
    found: list[int] = values[offsets[row] : offsets[row + 1]].tolist()
    return found


def _read_within(costs: StageCosts, label: list[int], tensor: int, own: int, home: int) -> bool:
    """Whether all readers of a tensor carry one of two labels."""
    return all(label[c] in (own, home) for c in _row(costs.consumer_offsets, costs.consumers, tensor))
