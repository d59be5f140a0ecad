"""The build of llama.cpp that runs a cluster's cards, by which it names them: CUDA0, ROCm1, MTL0."""

from __future__ import annotations

import numpy as np

from placewise.core.host_weights import find_accelerators, is_apple
from placewise.model.cluster import Device, is_rpc
from placewise.model.problem import Problem

ANY_BUILD = "Vulkan"
"""Runs cards of several makers."""
_STARTS = {"gpu.": "SYCL", "xpu": "SYCL", "rocm": "ROCm", "hip": "ROCm"}
"""What builds call devices, by how their names begin here; others are CUDA's."""
_AMD, _VOLTA = "AMD ", "NVIDIA V100"


def list_cards(problem: Problem) -> list[int]:
    """The accelerators of this machine: all but servers."""
    gpus = np.flatnonzero(find_accelerators(problem)).tolist()
    return [gpu for gpu in gpus if not is_rpc(problem.cluster.names[gpu])]


def is_volta(device: Device) -> bool:
    """Whether a card is of NVIDIA's Volta."""
    return any(note.startswith(_VOLTA) for note in device.notes)


def find_build(problem: Problem) -> str:
    """The build that runs all cards of a problem: that of their maker, or the one for cards of several."""
    builds = {_find_build(problem.cluster.devices[card]) for card in list_cards(problem)}
    return builds.pop() if len(builds) == 1 else ANY_BUILD


def _find_build(device: Device) -> str:
    if any(note.startswith(_AMD) for note in device.notes):
        return "ROCm"
    if is_apple(device):
        return "MTL"
    return next((build for start, build in _STARTS.items() if device.name.lower().startswith(start)), "CUDA")
