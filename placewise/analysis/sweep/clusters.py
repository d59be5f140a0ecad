"""The clusters of a sweep: a list, and counts of devices such as ``1..8xL4``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewise.catalog import read_cluster
from placewise.catalog.device_specs import MAX_DEVICES
from placewise.core.build import Devices
from placewise.errors import ClusterError
from placewise.model.cluster import Cluster

SweptDevices = Devices | Sequence[Devices]
_COUNTS = re.compile(r"(^|,)\s*(\d{1,4})\s*\.\.\s*(\d{1,4})\s*[x×*]\s*")


@dataclass(frozen=True, slots=True, eq=False)
class SweptCluster:
    """A cluster with what to call it; `devices` is what the user gave, None where the model brings its own."""

    label: str
    devices: Devices | None
    cluster: Cluster | None

    @property
    def n_accelerators(self) -> int:
        return 0 if self.cluster is None else sum(not device.is_host for device in self.cluster)

    @property
    def size(self) -> tuple[int, float]:
        """Accelerators, and the bytes that they hold together."""
        held = () if self.cluster is None else (device.memory for device in self.cluster if not device.is_host)
        return self.n_accelerators, sum(held)


def read_clusters(devices: SweptDevices | None) -> tuple[SweptCluster, ...]:
    """All clusters, in order, each once. Raises ClusterError.

    A text may hold several between semicolons, and an item may have counts: ``1..3xL4,cpu`` is three clusters.

    >>> [choice.label for choice in read_clusters("1..2xL4,cpu; A100-80GB")]
    ['1xL4,cpu', '2xL4,cpu', 'A100-80GB']
    """
    if devices is None:
        return (SweptCluster("", None, None),)
    several: Sequence[Devices] = devices if isinstance(devices, (list, tuple)) else [devices]  # type: ignore[list-item]
    found: dict[str, SweptCluster] = {}
    for given in several:
        for label, choice in _expand(given, len(found) + 1):
            if label not in found:
                found[label] = SweptCluster(
                    label, choice, choice if isinstance(choice, Cluster) else read_cluster(choice)
                )
    if not found:
        raise ClusterError("no cluster is given", where="devices", remedy="write clusters like '1..8xL4,cpu; 2xA100'")
    return tuple(found.values())


def _expand(devices: Devices, number: int) -> list[tuple[str, Devices]]:
    """What to call each cluster, and the cluster."""
    if isinstance(devices, Cluster):
        return [(f"cluster {number}", devices)]
    if isinstance(devices, Mapping):
        return [(json.dumps({str(name): size for name, size in devices.items()}), devices)]
    if isinstance(devices, (Path, os.PathLike)):
        return [(str(devices), Path(devices))]
    if not isinstance(devices, str) or devices.lstrip().startswith(("{", "[")):
        return [(str(devices).strip(), devices)]
    texts = [text.strip() for text in devices.split(";")]
    return [(text, text) for one in texts if one for text in expand_counts(one)]


def expand_counts(text: str) -> list[str]:
    """``"1..2xL4,cpu"`` → ``["1xL4,cpu", "2xL4,cpu"]``; several counts make every combination. Raises ClusterError."""
    match = _COUNTS.search(text)
    if match is None:
        return [text]
    least, most = int(match[2]), int(match[3])
    if not 1 <= least <= most <= MAX_DEVICES:
        problem = f"{match[2]}..{match[3]} is no range of counts"
        raise ClusterError(problem, where="devices", remedy=f"write it like 1..8xL4, up to {MAX_DEVICES}")
    before, behind = text[: match.start()] + match[1], text[match.end() :]
    return [one for count in range(least, most + 1) for one in expand_counts(f"{before}{count}x{behind}")]
