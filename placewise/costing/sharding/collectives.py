"""Seconds of collectives among the devices of a split: ring, tree or one shot, whichever takes least.

With t devices, n bytes of the whole tensor, a latency of α seconds and a link of β seconds per byte:

- all-reduce: ring 2 (t − 1) α + 2 (t − 1)/t · n β (Patarasuk and Yuan 2009); two trees 2 ⌈log₂ t⌉ α + 2 n β (Sanders,
  Speck and Träff 2009; NCCL's double binary tree).
- all-gather and reduce-scatter: ring (t − 1) α + (t − 1)/t · n β; recursive doubling and halving, for powers of two,
  ⌈log₂ t⌉ α + (t − 1)/t · n β (Thakur, Rabenseifner and Gropp 2005, section 4).
- all-to-all, where every device sends n/t: pairwise (t − 1) α + (t − 1)/t · n/t · β; Bruck's ⌈log₂ t⌉ (α + n/(2 t) · β)
  (Bruck et al. 1997).
- Where every pair has a direct link of its own: one shot, in which every device sends what it has to every other,
  α + (t − 1) m β for m bytes to each (n for an all-reduce, n/t for all-gather and reduce-scatter, n/t² for all-to-all).

The link is the slowest one of a ring through the devices. Transfers that share a wire share its bandwidth. Where
transfers are staged, each goes through host memory: both halves, one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placewise.model.cluster import Cluster
from placewise.model.columns import Ints
from placewise.model.disjoint_sets import DisjointSets


class GroupLink(NamedTuple):
    """The slowest link of a group of devices: seconds of latency, and seconds per byte; whether all pairs have one."""

    latency: float = 0.0
    per_byte: float = 0.0
    meshed: bool = False


def collective_seconds(kind: str, nbytes: float, degree: int, link: GroupLink) -> float:
    """Seconds of one collective; `nbytes` as in `Collective`."""
    if degree == 1:
        return 0.0
    steps, rounds = degree - 1, (degree - 1).bit_length()
    part = steps / degree * nbytes * link.per_byte
    if kind == "all-reduce":
        ring = 2 * steps * link.latency + 2 * part
        tree = 2 * rounds * link.latency + 2 * nbytes * link.per_byte
    elif kind == "all-to-all":
        ring = steps * link.latency + part / degree
        tree = rounds * (link.latency + nbytes / (2 * degree) * link.per_byte)
    else:
        ring = steps * link.latency + part
        tree = rounds * link.latency + part if degree & (degree - 1) == 0 else ring
    if not link.meshed:
        return min(ring, tree)
    sent = steps * nbytes * (1.0 if kind == "all-reduce" else 1 / degree**2 if kind == "all-to-all" else 1 / degree)
    return min(ring, tree, link.latency + sent * link.per_byte)


def find_group_link(cluster: Cluster, devices: Sequence[int]) -> GroupLink:
    """The slowest link of the ring through `devices`."""
    if len(devices) < 2:
        return GroupLink()
    hops = [_hop(cluster, a, b) for a, b in zip(devices, (*devices[1:], devices[0]), strict=True)]
    users = Counter(wire for hop in hops for _, _, wire in hop if wire >= 0)
    latency = max(sum(seconds for seconds, _, _ in hop) for hop in hops)
    per_byte = max(sum(pace * max(users[wire], 1) for _, pace, wire in hop) for hop in hops)
    return GroupLink(latency, per_byte, cluster.transfers == "direct" and not users)


def _hop(cluster: Cluster, source: int, target: int) -> list[tuple[float, float, int]]:
    """Latency, seconds per byte and wire (−1: none is shared) of each link from one device to the next."""
    a, b = int(cluster.location[source]), int(cluster.location[target])
    host = len(cluster)
    pairs = [(a, host), (host, b)] if cluster.transfers == "staged" else [(a, b)]
    found = []
    for one, other in pairs:
        kind = int(cluster.link_class[one, other])
        if kind:
            pace = 1 / float(cluster.class_bandwidth[kind])
            found.append((float(cluster.class_latency[kind]), pace, int(cluster.wire[one, other])))
    return found


def find_nodes(cluster: Cluster, device_class: Ints) -> Ints:
    """The node [n_devices] of each device: devices of one class that are joined by the fastest links of both.

    Where transfers are staged, all devices of a class have the host in common.
    """
    sets = DisjointSets(len(cluster))
    for kind in range(int(device_class.max(initial=-1)) + 1):
        members = np.flatnonzero(device_class == kind)
        where = cluster.location[members]
        speed = cluster.class_bandwidth[cluster.link_class[np.ix_(where, where)]].copy()
        if cluster.transfers == "staged":
            speed[:] = 1.0
        np.fill_diagonal(speed, 0.0)
        best = speed.max(axis=1, initial=0.0)
        for a, b in np.argwhere((speed == best[:, None]) & (speed == best[None, :]) & (speed > 0)).tolist():
            sets.join(int(members[a]), int(members[b]))
    return np.array(sets.roots(), np.int32)


def find_class_link(cluster: Cluster, device_class: Ints, node: Ints, kind: int, degree: int) -> GroupLink | None:
    """The slowest link of any group of `degree` devices of a class, side by side in one node; None if there is none."""
    links = []
    members = np.flatnonzero(device_class == kind)
    for home in np.unique(node[members]).tolist():
        inside = members[node[members] == home].tolist()
        links += [
            find_group_link(cluster, inside[first : first + degree])
            for first in range(0, len(inside) - degree + 1, degree)
        ]
    if not links:
        return None
    meshed = all(link.meshed for link in links)
    return GroupLink(max(link.latency for link in links), max(link.per_byte for link in links), meshed)
