"""Chains: what has one reader only goes with it, and what reads one group only goes with that.

Merging ops with their sole child or sole parent is how Duan et al. 2024 (appendix G) and most placers before them
shorten a graph. It makes no cycles: what leaves a tree of sole children leaves it at its root.
"""

from __future__ import annotations

import numpy as np

from placewise.coarsen.quotient import Limits, Quotient
from placewise.model.columns import Ints
from placewise.simulate.kernels import kernel


def sole_children(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: groups join their only successor, as far as the limits allow."""
    offsets, heads, _ = quotient.rows()
    leader = np.arange(quotient.n, dtype=np.int32)
    _follow(offsets, heads, quotient.key, quotient.seconds.copy(), quotient.bytes.copy(), *limits, leader)
    return leader


def sole_parents(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: groups join their only predecessor, as far as the limits allow."""
    return sole_children(quotient.mirrored(), limits)[::-1]


@kernel
def _follow(offsets, heads, key, seconds, size, most_seconds, most_bytes, leader):
    """Point every node with one successor to that one's leader, from the last to the first."""
    for node in range(len(leader) - 1, -1, -1):
        if offsets[node + 1] - offsets[node] != 1:
            continue
        root = leader[heads[offsets[node]]]
        if key[root] != key[node] or seconds[root] + seconds[node] > most_seconds:
            continue
        if size[root] + size[node] > most_bytes:
            continue
        leader[node] = root
        seconds[root] += seconds[node]
        size[root] += size[node]
