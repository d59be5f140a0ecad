"""Topological orders that go deep: what became ready last comes next, stage after stage."""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs
from placewise.simulate.contiguity import Contraction


def walk(graph: Contraction, sources: Ints | Longs, key: Floats | Longs, stage: Ints | None = None) -> Ints:
    """The position [n] of each component when what became ready last comes next.

    Of components that become ready together the one with the largest `key` [n] comes first; of `sources`, those that
    wait for nothing, the last. Components of an earlier `stage` [n], which no edge may lead back to, come before all
    others.
    """
    tail, head = graph.edges()
    heads = head[np.lexsort((key[head], tail))]
    rank = np.zeros(graph.n, np.int32) if stage is None else stage
    return _native.last_ready_first(graph.successor_offsets, heads, np.asarray(sources, np.int64), rank)
