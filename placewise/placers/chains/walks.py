"""Topological orders that go deep: what became ready last comes next, stage after stage."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.simulate.contract import Contraction
from placewise.simulate.kernels import kernel


def walk(graph: Contraction, sources: Ints | Longs, key: Floats | Longs, stage: Ints | None = None) -> Ints:
    """The position [n] of each component when what became ready last comes next.

    Of components that become ready together the one with the largest `key` [n] comes first; of `sources`, those that
    wait for nothing, the last. Components of an earlier `stage` [n], which no edge may lead back to, come before all
    others.
    """
    tail, head = graph.edges()
    heads = head[np.lexsort((key[head], tail))]
    rank = np.zeros(graph.n, np.int32) if stage is None else stage
    waiting = np.diff(graph.predecessor_offsets)
    position = np.empty(graph.n, np.int32)
    _walk(graph.successor_offsets, heads, waiting, np.asarray(sources, np.int64), rank, position)
    return position


@kernel
def _walk(offsets, heads, waiting, sources, rank, position):
    last, before = np.full(max(rank.max(), 0) + 1 if len(rank) else 1, -1), np.empty(len(position), np.int64)
    for component in sources:
        before[component] = last[rank[component]]
        last[rank[component]] = component
    stage, placed = 0, 0
    while placed < len(position) and stage < len(last):
        component = last[stage]
        if component < 0:
            stage += 1
            continue
        last[stage] = before[component]
        position[component] = placed
        placed += 1
        for row in range(offsets[component], offsets[component + 1]):
            after = heads[row]
            waiting[after] -= 1
            if waiting[after] == 0:
                before[after] = last[rank[after]]
                last[rank[after]] = after
