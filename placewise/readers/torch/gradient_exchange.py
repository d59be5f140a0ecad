"""Gradients of several processes summed or averaged, in few exchanges.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

BUCKET = 25 << 20
"""Bytes of gradients that are exchanged at once."""


def reduce_in_buckets(tensors: Sequence[torch.Tensor], group: Any, count: int) -> None:
    """Sum tensors over a group and divide by `count`, in buckets."""
    buckets: list[list[torch.Tensor]] = []
    size = 0
    for tensor in tensors:
        fits = buckets and buckets[-1][0].dtype == tensor.dtype and size + tensor.nbytes <= BUCKET
        if not fits:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    for bucket in buckets:
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat / count, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
