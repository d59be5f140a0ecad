"""Devices and links by name: the catalogue, one-line clusters, cluster files, and this machine."""

from placewise.catalog.detect import this_machine
from placewise.catalog.entries import KnownDevice, known_devices
from placewise.catalog.read import read_cluster

__all__ = ["KnownDevice", "known_devices", "read_cluster", "this_machine"]
