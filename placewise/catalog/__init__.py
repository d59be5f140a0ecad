"""Clusters by name: the device catalogue, one-line clusters, cluster files, and the local machine."""

from placewise.catalog.detect import this_machine
from placewise.catalog.entries import KnownDevice, KnownLink, known_devices, known_links
from placewise.catalog.read import read_cluster

__all__ = ["KnownDevice", "KnownLink", "known_devices", "known_links", "read_cluster", "this_machine"]
