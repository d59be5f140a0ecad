"""One side of a border between two stages of torch.distributed.pipelining, to time what crosses it."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleGPipe

from placewise.readers.torch.cutting import MicrobatchStage
from placewise.readers.torch.prefetch import PrefetchingStage

WARM_UP = 2


class BorderRank:
    """Stage `rank` of two that compute nothing, connected by gloo through the file `meeting`."""

    def __init__(self, rank: int, meeting: str, seconds: float) -> None:
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        self._rank = rank
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=seconds)
        )

    def stream(self, elements: int, samples: int, rounds: int) -> list[float]:
        """Seconds per sample of each of `rounds` streams of `samples` tensors of so many float32 elements."""
        module = MicrobatchStage(_HandOn(), first=self._rank == 0, last=self._rank == 1)
        value = torch.zeros(elements)
        outer = (value[None],)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ends = (outer, (value,)) if self._rank == 0 else ((value,), outer)
            stage = PrefetchingStage(module, self._rank, 2, torch.device("cpu"), *ends)
            schedule = ScheduleGPipe(stage, samples)
        given = [torch.zeros(samples, elements)] if self._rank == 0 else []
        seconds = []
        for _ in range(WARM_UP + rounds):
            dist.barrier()
            begin = time.perf_counter()
            schedule.step(*given)
            dist.barrier()
            seconds.append((time.perf_counter() - begin) / samples)
        return seconds[WARM_UP:]


class _HandOn(torch.nn.Module):
    def forward(self, *values: Any) -> Any:
        return values
