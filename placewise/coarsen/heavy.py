"""Heavy edges: groups that send each other much, for the little that they compute, become one.

An edge is worth its flow over the product of both ends' seconds, so that light groups go first and groups stay of a
size. No cycle can come of it (Herrmann, Özkaya, Uçar, Kaya and Çatalyürek, SIAM J. Scientific Computing 41, 2019,
theorem 4.2): a cluster spans two adjacent levels of the graph, a level being the longest path to it, and no edge goes
from the lower level of one cluster to the upper level of another one that spans the same two.
"""

from __future__ import annotations

import numpy as np

from placewise.coarsen.quotient import Limits, Quotient
from placewise.model.columns import Floats, Ints
from placewise.simulate.kernels import helper, kernel

NONE, SEVERAL = -1, -2
LEAST = 1e-140
"""Mean seconds below which nothing takes time: products of them would be 0."""


def heavy_edges(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n] of clusters along heavy edges, light groups choosing first."""
    offsets, heads, flow = quotient.rows()
    mirror = np.lexsort((quotient.tail, quotient.head))
    back = np.searchsorted(quotient.head[mirror], np.arange(quotient.n + 1)).astype(np.int64)
    cluster = np.arange(quotient.n, dtype=np.int32)
    _cluster(
        offsets, heads, flow + 1e-9 * (float(flow.mean()) if len(flow) else 0.0) + 1e-300,
        back, quotient.tail[mirror], mirror, quotient.key, np.argsort(quotient.seconds, kind="stable"),
        _sizes(quotient.seconds), quotient.seconds.copy(), quotient.bytes.copy(),
        *limits, cluster,
    )  # fmt: skip
    return cluster


def _sizes(seconds: Floats) -> Floats:
    """What groups count for [n], of which products are taken: their seconds, and no less than a tenth of the mean."""
    mean = float(seconds.mean()) if len(seconds) else 0.0
    return np.maximum(seconds, 0.1 * mean) + 1e-300 if mean > LEAST else np.ones(len(seconds))


@helper
def _tie(tied, node, cluster):
    """Note that `node` has an edge to `cluster` across the two levels that it spans."""
    if tied[node] == NONE:
        tied[node] = cluster
    elif tied[node] != cluster:
        tied[node] = SEVERAL


@helper
def _place(node, low, cluster, level, offsets, heads, back, tails, lower, upper):
    """Tell the neighbours of `node`, now at the lower or the upper level of `cluster`, that they are tied to it."""
    if low:
        for row in range(offsets[node], offsets[node + 1]):
            if level[heads[row]] == level[node] + 1:
                _tie(upper, heads[row], cluster)
    else:
        for row in range(back[node], back[node + 1]):
            if level[tails[row]] == level[node] - 1:
                _tie(lower, tails[row], cluster)


@kernel
def _cluster(
    offsets, heads, flow, back, tails, mirror, key, order, size, seconds, held, most_seconds, most_bytes, cluster
):
    n = len(cluster)
    level = np.zeros(n, np.int32)
    for node in range(n):
        for row in range(offsets[node], offsets[node + 1]):
            level[heads[row]] = max(level[heads[row]], level[node] + 1)
    base = np.full(n, -1, np.int32)  # the lower level of a cluster of several, by its number
    lower = np.full(n, NONE, np.int32)  # the cluster that a node on its lower level would have to join
    upper = np.full(n, NONE, np.int32)
    for node in order:
        if base[cluster[node]] >= 0:
            continue
        best, worth, goes_low = -1, 0.0, False
        for low in (True, False):
            first, last = (offsets[node], offsets[node + 1]) if low else (back[node], back[node + 1])
            bottom = level[node] if low else level[node] - 1
            tied = lower[node] if low else upper[node]
            if tied == SEVERAL:
                continue
            for row in range(first, last):
                other = heads[row] if low else tails[row]
                if level[other] != (level[node] + 1 if low else level[node] - 1) or key[other] != key[node]:
                    continue
                there = cluster[other]
                alone = base[there] < 0
                if not alone and base[there] != bottom:
                    continue
                if tied != NONE and (alone or tied != there):
                    continue
                if alone and (upper[other] if low else lower[other]) != NONE:
                    continue
                if seconds[there] + seconds[node] > most_seconds or held[there] + held[node] > most_bytes:
                    continue
                rating = flow[row if low else mirror[row]] / (size[there] * size[node])
                if rating > worth:
                    best, worth, goes_low = other, rating, low
        if best < 0:
            continue
        there = cluster[best]
        if base[there] < 0:
            base[there] = level[node] if goes_low else level[node] - 1
            _place(best, not goes_low, there, level, offsets, heads, back, tails, lower, upper)
        cluster[node] = there
        seconds[there] += seconds[node]
        held[there] += held[node]
        size[there] += size[node]
        _place(node, goes_low, there, level, offsets, heads, back, tails, lower, upper)
