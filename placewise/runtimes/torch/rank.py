"""What the worker of a stage holds: its module, and its place in torch.distributed.pipelining."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from placewise.errors import RunError
from placewise.readers.torch.cutting import MicrobatchStage, build_stage
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.arrays import array_of, tensor_of
from placewise.runtimes.torch.loading import load
from placewise.runtimes.torch.payload import Payload


class Rank:
    """Stage `place` of `count`, on `device`; `meeting` is a file that all ranks meet through."""

    def __init__(self, handed: Payload, place: int, count: int, device: str, meeting: str, seconds: float) -> None:
        torch.set_grad_enabled(False)
        program = load(handed)
        try:
            self._piece = build_stage(program, handed.device, place, device=device)
        except ValueError as error:
            raise RunError(f"these stages cannot run: {error}") from None
        self._device, self._place, self._count = torch.device(device), place, count
        self._meeting, self._seconds = meeting, seconds
        self._module = MicrobatchStage(self._piece.module, first=place == 0, last=place == count - 1)
        self._stage_args: tuple[Any, Any] = ((), ())
        self._schedules: dict[int, ScheduleGPipe] = {}

    def probe(self, given: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """What this stage makes of what the one before made: so that all know which shapes will come."""
        values = [tensor_of(given[name]).to(self._device) for name in self._piece.reads]
        values = [value[None] for value in values] if self._place == 0 else values
        made = self._module(*values)
        self._stage_args = (tuple(values), made)
        if not all(isinstance(value, torch.Tensor) for value in made):
            raise RunError("a number that is no tensor would have to go from stage to stage: export with fixed shapes")
        made = [value[0] for value in made] if self._place == self._count - 1 else made
        return {name: array_of(value.cpu()) for name, value in zip(self._piece.makes, made, strict=True)}

    def connect(self) -> None:
        """Meet the others."""
        dist.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo",
            init_method=f"file://{self._meeting}",
            rank=self._place,
            world_size=self._count,
            timeout=timedelta(seconds=self._seconds),
        )

    def stream(self, samples: Sequence[Arrays], count: int) -> tuple[float, float, list[dict[str, npt.NDArray[Any]]]]:
        """`count` samples as micro-batches: when this stage began and ended, and the outputs, if it is the last one."""
        schedule = self._schedule(count)
        given = self._stacked(samples)
        dist.barrier()
        begin = time.perf_counter()
        made = schedule.step(*given)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        end = time.perf_counter()
        if self._place < self._count - 1:
            return begin, end, []
        rows = made if isinstance(made, (tuple, list)) else (made,)
        pairs = [(name, value.cpu()) for name, value in zip(self._piece.makes, rows, strict=True)]
        return begin, end, [{name: array_of(value[k]) for name, value in pairs} for k in range(count)]

    def alone(self, samples: Sequence[Arrays], count: int) -> list[tuple[float, float]]:
        """Each of `count` samples alone: when this stage began and ended."""
        return [self.stream(samples[k : k + 1], 1)[:2] for k in range(count)]

    def leave(self) -> None:
        """Part from the others."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _stacked(self, samples: Sequence[Arrays]) -> list[torch.Tensor]:
        if self._place:
            return []
        names = self._piece.reads
        return [torch.stack([tensor_of(sample[name]) for sample in samples]).to(self._device) for name in names]

    def _schedule(self, count: int) -> ScheduleGPipe:
        """The schedule for so many micro-batches, gone through once when it is new."""
        if count not in self._schedules:
            values, made = self._stage_args
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                stage = PipelineStage(self._module, self._place, self._count, self._device, values, made)
                self._schedules[count] = ScheduleGPipe(stage, count)
                first = [value.expand(count, *value.shape[1:]) for value in values] if self._place == 0 else []
                self._schedules[count].step(*first)
        return self._schedules[count]
