"""Nodes: which devices of a cluster are near each other, by the links between them."""

from __future__ import annotations

import numpy as np

from placewise.model.cluster import Cluster
from placewise.model.columns import Ints
from placewise.model.disjoint_sets import DisjointSets

NEAR = 0.5
"""Devices are near each other if their link has at least this share of the bandwidth of the fastest link of either."""


def find_nodes(cluster: Cluster) -> Ints:
    """The node [n_devices] of every device: devices that fast direct links join; one node where all is staged."""
    count = len(cluster)
    if cluster.transfers == "staged":
        return np.zeros(count, np.int32)
    at = cluster.location
    speed = cluster.class_bandwidth[cluster.link_class[np.ix_(at, at)]]
    speed[cluster.link_class[np.ix_(at, at)] == 0] = 0.0
    accelerators = np.flatnonzero(~cluster.is_host)
    best = speed[np.ix_(accelerators, accelerators)].max(axis=1, initial=0.0)
    sets = DisjointSets(count)
    for i, a in enumerate(accelerators.tolist()):
        for j, b in enumerate(accelerators[:i].tolist()):
            if speed[a, b] >= NEAR * max(best[i], best[j]) and speed[a, b] > 0:
                sets.join(a, b)
    _, node = np.unique(sets.roots(), return_inverse=True)
    return node.astype(np.int32)


def slowest_link(cluster: Cluster, members: np.ndarray, node: Ints) -> tuple[float, float]:
    """(bytes/s, seconds) of the slowest route between two of `members` that are in one node; free for one alone."""
    host, at = len(cluster), cluster.location[members]
    if cluster.transfers == "staged":
        up, down = cluster.link_class[at, host], cluster.link_class[host, at]
        pace = 1 / cluster.class_bandwidth[up] + 1 / cluster.class_bandwidth[down]
        latency = cluster.class_latency[up] + cluster.class_latency[down]
        slow = float(pace.max(initial=0.0))
        return (1 / slow if slow > 0 else np.inf), float(latency.max(initial=0.0))
    same = node[members][:, None] == node[members][None, :]
    kinds = np.unique(cluster.link_class[np.ix_(at, at)][same & ~np.eye(len(members), dtype=np.bool_)])
    kinds = kinds[kinds > 0]
    if not len(kinds):
        return np.inf, 0.0
    return float(cluster.class_bandwidth[kinds].min()), float(cluster.class_latency[kinds].max())
