"""A pipeline stage that receives the next micro-batches while it computes.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

AHEAD = 2
"""Micro-batches whose values are received while a stage computes."""


class PrefetchingStage(PipelineStage):
    """A `PipelineStage` with receives posted `AHEAD` micro-batches early, so that a sender need not wait for it.

    The schedules of PyTorch post a receive only when they need the value, and gloo moves nothing before that.
    """

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Wait for the values of this micro-batch, and leave nothing for the schedule to receive."""
        if fwd_chunk_id == 0:
            self._posted: dict[int, list[Any]] = {}
        for chunk in range(fwd_chunk_id, min(fwd_chunk_id + AHEAD + 1, len(self.args_recv_info))):
            if chunk not in self._posted:
                self._posted[chunk] = [
                    dist.irecv(op.tensor, src=op.peer, group=op.group) for op in super().get_fwd_recv_ops(chunk)
                ]
        for work in self._posted[fwd_chunk_id]:
            if work is not None:
                work.wait()
        return []
