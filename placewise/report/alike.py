"""Equal devices that trade places: a placement that differs by names only is no other placement."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewise.model.cluster import Cluster, Device
from placewise.model.columns import Ints, Longs


def traded(cluster: Cluster, before: Ints, after: Ints) -> tuple[str, int]:
    """Which equal devices trade places between two placements [n_ops], and how many ops move apart from that.

    The text is "" where that explains less than half of what moved.
    """
    count = np.zeros((len(cluster), len(cluster)), np.int64)
    np.add.at(count, (before, after), 1)
    new_name = _new_names(cluster, count)
    moved = int(count.sum() - count.trace())
    left = int(count.sum() - count[np.arange(len(cluster)), new_name].sum())
    if not moved or left > moved / 2:
        return "", moved
    names = cluster.names
    return ", ".join(f"{names[d]} → {names[e]}" for d, e in enumerate(new_name) if d != e), left


def _new_names(cluster: Cluster, count: Longs) -> list[int]:
    """For each device the equal one that holds most of its ops afterwards, each taken once, the largest share first."""
    figures = [_figures(device) for device in cluster]
    pairs = [
        (-int(count[d, e]), d != e, d, e)
        for d in range(len(cluster))
        for e in range(len(cluster))
        if figures[d] == figures[e]
    ]
    chosen: dict[int, int] = {}
    taken: set[int] = set()
    for _, _, d, e in sorted(pairs):
        if d not in chosen and e not in taken:
            chosen[d] = e
            taken.add(e)
    return [chosen[d] for d in range(len(cluster))]


def _figures(device: Device) -> tuple[Any, ...]:
    """All that distinguishes devices but their names and links."""
    speeds = tuple(sorted(device.peak_flops.items())), tuple(sorted(device.efficiency.items()))
    overheads = device.op_overhead, device.call_overhead, device.streams
    memory = device.memory, device.reserved, device.memory_bandwidth
    return device.kind, memory, speeds, overheads, device.unsupported, device.available
