"""Groups that a search moves as one: merged along the dearest tensors, in several sizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Ints, Longs, frozen
from placewise.placers.chains.stages import NEVER
from placewise.placers.search.costs import Costs
from placewise.simulate.kernels import kernel

_SIZES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""The work that a cluster may have, as shares of what one device would have on average."""
MOST_MEMBERS = 1 << 12
"""No cluster has more groups: a move of more is too slow to try often."""


class Clusters(NamedTuple):
    """The cluster [n_levels, n] of each group, and cluster c's members, ``members[offsets[c]:offsets[c + 1]]``."""

    of: Ints
    offsets: Longs
    members: Ints


def clusters(c: Costs) -> Clusters:
    """Clusters of several sizes; groups joined by dear tensors first, as long as the work allows it."""
    n = len(c.size)
    kinds = c.seconds.reshape(n, c.n_phases, -1).sum(axis=1)
    work = np.where(kinds < NEVER, kinds, np.iinfo(np.int64).max).min(axis=1).astype(np.float64)
    tail, head = _pairs(c)
    share, first = float(work.sum()) / max(len(c.capacity), 1), 0
    parent, total, count = np.arange(n, dtype=np.int32), work.copy(), np.ones(n, np.int32)
    levels, members, starts = [], [], [np.zeros(1, np.int64)]
    for size in _SIZES:
        _merge(tail, head, share * size, MOST_MEMBERS, parent, total, count)
        label = _labels(parent)
        levels.append(label + np.int32(first))
        members.append(np.argsort(label, kind="stable").astype(np.int32))
        starts.append(np.cumsum(np.bincount(label)) + n * (len(levels) - 1))
        first = int(levels[-1].max(initial=first - 1)) + 1
    return Clusters(
        frozen(np.stack(levels), np.int32), frozen(np.concatenate(starts), np.int64),
        frozen(np.concatenate(members), np.int32),
    )  # fmt: skip


def _pairs(c: Costs) -> tuple[Ints, Ints]:
    """A maker and a reader per use of a tensor, dearest tensors first."""
    cost = c.transfer.max(axis=1, initial=0)
    uses = np.repeat(np.arange(len(c.producer)), np.diff(c.consumer_offsets))
    rows = np.argsort(-cost[uses], kind="stable")
    rows = rows[c.producer[uses[rows]] >= 0]
    return frozen(c.producer[uses[rows]], np.int32), frozen(c.consumers[rows], np.int32)


@kernel
def _merge(tail, head, most, most_members, parent, total, count):
    """Join the ends of pairs while the work of both together is at most `most`; roots are the smallest members."""
    for row in range(len(tail)):
        a, b = tail[row], head[row]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a != b and total[a] + total[b] <= most and count[a] + count[b] <= most_members:
            if b < a:
                a, b = b, a
            parent[b] = a
            total[a] += total[b]
            count[a] += count[b]


@kernel
def _labels(parent):
    """Dense labels [n] of the sets, by their smallest members."""
    label, found = np.empty(len(parent), np.int32), np.int32(0)
    for i in range(len(parent)):
        root = i
        while parent[root] != root:
            root = parent[root]
        if root == i:
            label[i] = found
            found += np.int32(1)
        else:
            label[i] = label[root]
    return label
