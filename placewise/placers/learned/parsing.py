"""Graph parsing: every node keeps the best of its edges, and the components of kept edges are the groups.

After Graph Parsing Networks (Song et al., ICLR 2024), as used by Duan et al. (NeurIPS 2024). The number of groups is
not fixed beforehand.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from placewise.model.columns import Longs, distinct
from placewise.placers.learned.view import View
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
    return rank[group]


def edges_between(group: Numbers, tail: Numbers, head: Numbers) -> Longs:
    """The first edge of each pair of adjacent groups, in either direction."""
    one, other = group[tail].astype(np.int64), group[head].astype(np.int64)
    crossing = np.flatnonzero(one != other)
    low, high = np.minimum(one, other)[crossing], np.maximum(one, other)[crossing]
    _, first = np.unique(low * (int(group.max(initial=0)) + 1) + high, return_index=True)
    return crossing[np.sort(first)]


def unit_edges(view: View) -> tuple[Longs, Longs]:
    """Edges between units with the same devices, so that no group loses one; then a loop for every unit."""
    same = (view.allowed[view.tail] == view.allowed[view.head]).all(axis=1)
    own = np.arange(view.n)
    return np.concatenate((view.tail[same], own)), np.concatenate((view.head[same], own))


def pool_groups(z: Tensor, score: Tensor, best: Longs, group: Longs) -> Tensor:
    """The mean embedding of every group, members weighed by the score of the edge that they kept (1: none)."""
    place = torch.from_numpy(np.maximum(best, 0))
    gate = torch.ones(len(z)) if not len(score) else torch.where(torch.from_numpy(best >= 0), score[place], 1.0)
    index = torch.from_numpy(group)
    n = int(group.max(initial=-1)) + 1
    total = torch.zeros(n, z.shape[1]).index_add(0, index, z * gate[:, None])
    return total / torch.bincount(index, minlength=n)[:, None]


def group_edges(group: Longs, view: View) -> Tensor:
    """The edges among groups, in both directions [2, …]."""
    edge = edges_between(group, view.tail, view.head)
    one, other = group[view.tail[edge]], group[view.head[edge]]
    return torch.from_numpy(np.stack((np.concatenate((one, other)), np.concatenate((other, one)))).astype(np.int64))
