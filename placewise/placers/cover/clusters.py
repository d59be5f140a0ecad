"""Groups of blocks that a search moves as one: merged along the dearest tensors, in several sizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints, Longs, frozen
from placewise.placers.chains.stages import NEVER
from placewise.placers.cover.state import Machines

_SIZES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""The work that a cluster may have, as shares of what one machine would have on average."""


class Clusters(NamedTuple):
    """The cluster [n_levels, n] of each block, and cluster c's members, ``members[offsets[c]:offsets[c + 1]]``."""

    of: Ints
    offsets: Longs
    members: Ints


def clusters(m: Machines) -> Clusters:
    """Clusters of several sizes; blocks joined by dear tensors first, as long as the work allows it."""
    n = len(m.size)
    work = np.where(m.seconds < NEVER, m.seconds, np.iinfo(np.int64).max).min(axis=1).astype(np.float64)
    pairs = _pairs(m)
    share, first, levels, members = float(work.sum()) / max(len(m.capacity), 1), 0, [], []
    for size in _SIZES:
        label = _merged(n, work, pairs, share * size)
        names, dense = np.unique(label, return_inverse=True)
        levels.append(dense.astype(np.int32) + first)
        members.append(np.argsort(dense, kind="stable"))
        first += len(names)
    of = np.stack(levels)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(of.ravel(), minlength=first))))
    return Clusters(frozen(of, np.int32), frozen(offsets, np.int64), frozen(np.concatenate(members), np.int32))


def _pairs(m: Machines) -> list[tuple[int, int]]:
    """A maker and a reader per use of a tensor, dearest tensors first."""
    cost = m.enter.max(axis=1, initial=0) + m.leave.max(axis=1, initial=0)
    uses = np.repeat(np.arange(len(m.producer)), np.diff(m.consumer_offsets))
    rows = np.argsort(-cost[uses], kind="stable")
    rows = rows[m.producer[uses[rows]] >= 0]
    return list(zip(m.producer[uses[rows]].tolist(), m.consumers[rows].tolist(), strict=True))


def _merged(n: int, work: Floats, pairs: list[tuple[int, int]], most: float) -> Ints:
    """A label [n] per block: pairs are joined while the work of both together is at most `most`."""
    parent, total = list(range(n)), work.tolist()

    def root(block: int) -> int:
        while parent[block] != block:
            parent[block] = parent[parent[block]]
            block = parent[block]
        return block

    for one, other in pairs:
        a, b = root(one), root(other)
        if a != b and total[a] + total[b] <= most:
            parent[b] = a
            total[a] += total[b]
    return np.array([root(block) for block in range(n)], np.int32)
