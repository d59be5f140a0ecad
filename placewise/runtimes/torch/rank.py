"""The object in the worker of a stage: its module and its rank in torch.distributed.pipelining."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleGPipe

from placewise.errors import RunError
from placewise.readers.torch.cutting import HostStage, MicrobatchStage, build_stage
from placewise.readers.torch.prefetch import PrefetchingStage
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.arrays import array_of, tensors_of
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.split_program import load_program, set_tf32, take_gpu


class Rank:
    """Stage number `stage` of `count`, on `device`; all ranks connect by `backend` through the file `meeting`."""

    def __init__(
        self, payload: Payload, stage: int, count: int, device: str, meeting: str, seconds: float, backend: str = "gloo"
    ) -> None:
        torch.set_grad_enabled(False)
        set_tf32(payload.tf32)
        if device.startswith("cuda"):
            take_gpu(device)
        program = load_program(payload)
        try:
            self._piece = build_stage(program, payload.device, stage, device=device)
        except ValueError as error:
            raise RunError(f"these stages cannot run: {error}") from None
        self._backend, self._exchange = backend, torch.device("cpu" if backend == "gloo" else device)
        self._device, self._stage, self._count = torch.device(device), stage, count
        self._meeting, self._seconds = meeting, seconds
        on_host = self._exchange != self._device
        module = HostStage(self._piece.module, device) if on_host else self._piece.module
        self._module = MicrobatchStage(module, first=stage == 0, last=stage == count - 1)
        self._stage_args: tuple[Any, Any] = ((), ())
        self._schedules: dict[int, ScheduleGPipe] = {}

    def probe(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The results of this stage for those of the previous stage; this fixes the shapes that stages exchange."""
        values = [value.to(self._exchange) for value in tensors_of(self._piece.reads, arrays)]
        values = [value[None] for value in values] if self._stage == 0 else values
        results = self._module(*values)
        self._stage_args = (tuple(values), results)
        if not all(isinstance(value, torch.Tensor) for value in results):
            raise RunError("a number that is no tensor would have to go from stage to stage: export with fixed shapes")
        results = [value[0] for value in results] if self._stage == self._count - 1 else results
        return {name: array_of(value.cpu()) for name, value in zip(self._piece.makes, results, strict=True)}

    def connect(self) -> None:
        """Connect to the other ranks."""
        dist.init_process_group(
            self._backend,
            init_method=f"file://{self._meeting}",
            rank=self._stage,
            world_size=self._count,
            timeout=timedelta(seconds=self._seconds),
        )

    def stream(self, samples: Sequence[Arrays], count: int) -> tuple[float, float, list[dict[str, npt.NDArray[Any]]]]:
        """Run `count` samples as micro-batches: when this stage began and ended, and the outputs of the last stage."""
        schedule = self._schedule(count)
        inputs = self._stack(samples)
        dist.barrier()
        begin = time.perf_counter()
        results = _step(schedule, inputs)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        end = time.perf_counter()
        if self._stage < self._count - 1:
            return begin, end, []
        rows = results if isinstance(results, (tuple, list)) else (results,)
        pairs = [(name, value.cpu()) for name, value in zip(self._piece.makes, rows, strict=True)]
        return begin, end, [{name: array_of(value[k]) for name, value in pairs} for k in range(count)]

    def alone(self, samples: Sequence[Arrays], count: int) -> list[tuple[float, float]]:
        """Run each of `count` samples alone: when this stage began and ended."""
        return [self.stream(samples[k : k + 1], 1)[:2] for k in range(count)]

    def _stack(self, samples: Sequence[Arrays]) -> list[torch.Tensor]:
        if self._stage:
            return []
        columns = zip(*(tensors_of(self._piece.reads, sample) for sample in samples), strict=True)
        return [torch.stack(column).to(self._exchange) for column in columns]

    def _schedule(self, count: int) -> ScheduleGPipe:
        """The schedule of `count` micro-batches; a new one runs once to warm up."""
        if count not in self._schedules:
            values, results = self._stage_args
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                stage = PrefetchingStage(self._module, self._stage, self._count, self._exchange, values, results)
                self._schedules[count] = ScheduleGPipe(stage, count)
                first = [value.expand(count, *value.shape[1:]) for value in values] if self._stage == 0 else []
                _step(self._schedules[count], first)
        return self._schedules[count]


def _step(schedule: ScheduleGPipe, inputs: Sequence[torch.Tensor]) -> Any:
    """The outputs of a stream. Raises what the module raised, without the schedule's words around it."""
    try:
        return schedule.step(*inputs)
    except RuntimeError as error:
        raise error.__cause__ or error from None
