"""Graph parsing: every node keeps the best of its edges, and the components of kept edges are the groups.

After Graph Parsing Networks (Song et al., ICLR 2024), as used by Duan et al. (NeurIPS 2024). The number of groups is
not fixed beforehand.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Longs, distinct
from placewise.simulate.contiguity import strong_components

Numbers = npt.NDArray[np.integer]


def best_edges(tail: Numbers, head: Numbers, score: npt.NDArray[np.floating], n: int) -> Longs:
    """The edge of the highest score at each node [n], in or out; the first of equal ones, −1 for none."""
    best = np.full(n, -1, np.int64)
    order = np.lexsort((-np.arange(len(score)), score))
    ends = np.stack((tail[order], head[order]), axis=1).reshape(-1)
    # The last write to an index wins, so the best edges are written last.
    best[ends] = np.repeat(order, 2)
    return best


def join_groups(tail: Numbers, head: Numbers, kept: Numbers, n: int) -> Longs:
    """The group [n] of every node, joined by the kept edges (−1: none); groups are numbered by their first nodes."""
    edge = distinct(kept[kept >= 0])
    one, other = tail[edge].astype(np.int32), head[edge].astype(np.int32)
    component, _ = strong_components(np.concatenate((one, other)), np.concatenate((other, one)), n)
    _, first, group = np.unique(component, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbered: Longs = rank[group]
    return numbered


def edges_between(group: Numbers, tail: Numbers, head: Numbers) -> Longs:
    """The first edge of each pair of adjacent groups, in either direction."""
    one, other = group[tail].astype(np.int64), group[head].astype(np.int64)
    crossing = np.flatnonzero(one != other)
    low, high = np.minimum(one, other)[crossing], np.maximum(one, other)[crossing]
    _, first = np.unique(low * (int(group.max(initial=0)) + 1) + high, return_index=True)
    edges: Longs = crossing[np.sort(first)]
    return edges
