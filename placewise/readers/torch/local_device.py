"""The device of a process of a job that torchrun started, also where several machines count their own GPUs.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def take_device(devices: Sequence[str], rank: int) -> torch.device:
    """The device of a process, made the current one. Raises RuntimeError for a GPU where PyTorch sees none."""
    device = torch.device(find_device(devices, rank))
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"it is on {device}, and PyTorch sees no GPU here")
        torch.cuda.set_device(device)
    return device


def find_device(devices: Sequence[str], rank: int) -> str:
    """PyTorch's name of the device of a process; `devices` are those of all processes of the job."""
    name, first = devices[rank], rank - int(os.environ.get("LOCAL_RANK", rank))
    if not name.startswith("cuda") or int(os.environ.get("LOCAL_WORLD_SIZE", len(devices))) == len(devices):
        return name
    return f"cuda:{sum(other.startswith('cuda') for other in devices[first:rank])}"
