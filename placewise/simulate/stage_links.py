"""How fast stages that hold several devices exchange tensors and gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.model.cluster import Cluster
from placewise.model.columns import Floats, Ints


def boundary_seconds(cluster: Cluster, own: Sequence[int], other: Sequence[int], nbytes: Floats) -> Floats:
    """Seconds [n] that a device of the stage on `own` is busy with tensors [n] to or from the stage on `other`.

    Staged: over its link with host memory, free where it works there. Direct: over the slowest link between the two,
    in either direction.
    """
    return _slowest(cluster, _boundary_classes(cluster, own, other), nbytes)


def gradient_seconds(cluster: Cluster, devices: Sequence[int], moved: float, messages: float) -> float:
    """Seconds that each of `devices` is busy with `moved` bytes of gradients in `messages`, over the slowest link."""
    classes = _boundary_classes(cluster, devices, devices)
    bandwidth, latency = cluster.class_bandwidth[classes], cluster.class_latency[classes]
    with np.errstate(over="ignore"):
        return float((messages * latency + moved / bandwidth).max(initial=0.0))


def _boundary_classes(cluster: Cluster, own: Sequence[int], other: Sequence[int]) -> Ints:
    a = cluster.location[list(own)]
    if cluster.transfers == "staged":
        host = len(cluster)
        pairs = np.concatenate((cluster.link_class[a, host], cluster.link_class[host, a]))
    else:
        b = cluster.location[list(other)]
        pairs = np.concatenate((cluster.link_class[np.ix_(a, b)], cluster.link_class[np.ix_(b, a)].T))
    classes: Ints = np.unique(pairs)
    return classes[classes > 0]


def _slowest(cluster: Cluster, classes: Ints, nbytes: Floats) -> Floats:
    if not len(classes):
        return np.zeros(len(nbytes))
    with np.errstate(over="ignore"):
        seconds = cluster.class_latency[classes] + nbytes[:, None] / cluster.class_bandwidth[classes]
    slowest: Floats = seconds.max(axis=1)
    return slowest
