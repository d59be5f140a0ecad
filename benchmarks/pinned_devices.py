"""Devices with the figures that published tables were made with, whatever the catalogue says today.

Tables of placers compare values over versions, and their best known values belong to one problem each. So the shares
of the peaks that programs reach, and what an op costs besides, are those of version 0.1.
"""

from __future__ import annotations

from dataclasses import replace

from placewise.catalog import read_cluster
from placewise.model.cluster import Cluster, Device

GPU = {"matmul": 0.7, "conv": 0.5, "attention": 0.4, "reduction": 0.1, "elementwise": 0.1, "memory": 0.8}
CPU = {"matmul": 0.6, "conv": 0.8, "attention": 0.5, "reduction": 0.06, "elementwise": 0.06, "memory": 0.8}
GPU_OVERHEAD, INTEL_OVERHEAD, CPU_OVERHEAD = 5e-6, 10e-6, 1e-6
"""Seconds per op."""
INTEL = {"matmul": 0.5, "conv": 0.5, "attention": 0.3, "reduction": 0.1, "elementwise": 0.1, "memory": 0.8}


def read_pinned(line: str) -> Cluster:
    """A cluster of NVIDIA's and Intel's GPUs and CPUs, as `read_cluster` has it but for these figures."""
    cluster = read_cluster(line)
    return replace(cluster, devices=tuple(map(_pin, cluster.devices)))


def _pin(device: Device) -> Device:
    if device.kind == "cpu":
        return replace(device, efficiency=CPU, op_overhead=CPU_OVERHEAD)
    if any("Flex" in note for note in device.notes):
        return replace(device, efficiency=INTEL, op_overhead=INTEL_OVERHEAD)
    return replace(device, efficiency=GPU, op_overhead=GPU_OVERHEAD)
