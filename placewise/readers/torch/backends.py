"""The back end of a process group, decided once for all of its ranks, without importing PyTorch."""

from __future__ import annotations

from collections.abc import Sequence


def choose_backend(devices: Sequence[str]) -> str:
    """``nccl`` if every rank has a GPU of its own, else ``gloo``; `devices` are PyTorch's names, one per rank.

    NCCL takes no two ranks on one GPU and none without one; gloo exchanges tensors in host memory only.
    """
    alone = len(set(devices)) == len(devices)
    return "nccl" if alone and devices and all(device.startswith("cuda") for device in devices) else "gloo"
