"""Pairs of devices of this machine that a tiny model is placed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewise.catalog import read_cluster
from placewise.catalog.detect import this_machine
from placewise.diagnosis.checks import NotHere
from placewise.diagnosis.machine import Machine
from placewise.model.cluster import Cluster

TWO_CORES, GPU_AND_CORES, TWO_GPUS, OPENVINO_GPU = (
    "two cores",
    "a GPU and cores",
    "two GPUs",
    "an OpenVINO GPU and cores",
)
INTEL_MEMORY = 2 << 30
"""Bytes that the checks assume of a GPU of OpenVINO."""


@dataclass(frozen=True, slots=True)
class Group:
    """Two devices as a cluster, and where they are, as for --bind."""

    cluster: Cluster
    binding: Mapping[str, str] = field(default_factory=dict)


def find_group(machine: Machine, name: str) -> Group:
    """The pair of devices of this name. Raises NotHere if this machine lacks one of them."""
    host = this_machine().memory
    if name == TWO_CORES:
        first, second = machine.cores[0], machine.cores[-1]
        return Group(read_cluster("2xcore"), {"core:0": f"cores:{first}", "core:1": f"cores:{second}"})
    if name == OPENVINO_GPU:
        gpu = next((found.partition(" ")[0] for found in machine.openvino if found.startswith("GPU")), "")
        if not gpu:
            raise NotHere("OpenVINO finds no GPU")
        return Group(read_cluster({"GPU.0": INTEL_MEMORY, "cpu": host}), {"GPU.0": f"openvino:{gpu}"})
    wanted = 1 if name == GPU_AND_CORES else 2
    if not machine.gpus:
        raise NotHere(machine.why_no_gpu)
    if len(machine.gpus) < wanted:
        raise NotHere("CUDA sees one GPU")
    memory = {f"cuda:{gpu.number}": gpu.memory for gpu in machine.gpus[:wanted]}
    return Group(read_cluster({**memory, "cpu": host} if name == GPU_AND_CORES else memory))
