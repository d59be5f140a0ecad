"""Match a file's name for a device to devices of a cluster."""

from __future__ import annotations

import re

from placewise.model.cluster import Cluster

_PARTS = {"core": "cpu"}
"""Kinds of devices that are parts of another kind."""


def match_devices(word: str, cluster: Cluster) -> tuple[int, ...]:
    """Match devices by name, by kind (``cpu``, ``gpu``), by the name before their number (``cuda``), or all (``*``)."""
    if word == "*":
        return tuple(range(len(cluster)))
    if word in cluster.names:
        return (cluster.index(word),)
    matches = [
        place
        for place, device in enumerate(cluster)
        if word.lower() in (device.kind.lower(), _family(device.name), _PARTS.get(device.kind, device.kind))
    ]
    return tuple(matches)


def find_only_kind(cluster: Cluster) -> str:
    """``*`` if all devices are of one kind, else ""."""
    return "*" if len({(device.kind, tuple(device.peak_flops.items())) for device in cluster}) == 1 else ""


def have_equal_speeds(columns: tuple[int, ...], cluster: Cluster) -> bool:
    """Whether devices have the same speeds, so that the times of one apply to the others."""
    speeds = {
        (device.memory_bandwidth, tuple(sorted(device.peak_flops.items())))
        for device in (cluster.devices[column] for column in columns)
    }
    return len(speeds) <= 1


def _family(name: str) -> str:
    return re.split(r"[:.]", name, maxsplit=1)[0].lower()
