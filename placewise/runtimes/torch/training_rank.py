"""The objects in the workers of a training run: the stages of one process, or the whole program to compare with."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist

from placewise.errors import RunError
from placewise.files.training_checkpoint import ANEW
from placewise.readers.torch.backends import choose_backend
from placewise.readers.torch.pipeline_trainer import PipelineTrainer, WholeTrainer, make_optimizer
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.arrays import array_of, tensor_of
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.split_program import load_program, set_tf32, take_gpu


class TrainingRank:
    """Process `rank` of `world` of a training run, which connect through the file `meeting`.

    `plan` is the document of `PipelineTrainer`, and `data` rows of inputs and of a target.
    """

    def __init__(
        self,
        payload: Payload,
        plan: Mapping[str, Any],
        rank: int,
        world: int,
        meeting: str,
        seconds: float,
        data: Arrays,
    ) -> None:
        self._memory, self._payload = PeakMemory(), payload
        set_tf32(payload.tf32)
        device = torch.device(plan["devices"][rank])
        if device.type == "cuda":
            take_gpu(str(device))
        self._device = device
        dist.init_process_group(
            choose_backend(plan["devices"]),
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=seconds),
        )
        try:
            self._trainer = PipelineTrainer(load_program(payload), plan, device=str(device), data=_tensors(data))
        except ValueError as error:
            raise RunError(f"this plan cannot train: {error}") from None
        _train_nothing(plan, device)
        self._memory.restart(device)
        self._runtime = self._memory.now(device) - self._trainer.held_bytes()
        self._code = _status("RssFile")
        self._copied = False

    def step(self, number: int) -> tuple[float, float]:
        """Run a training step: its loss and its seconds."""
        if self._copied:
            self._memory.restart(self._device)
            self._copied = False
        step = self._trainer.step(number)
        return step.loss, step.seconds

    def gradients(self) -> dict[str, npt.NDArray[Any]]:
        """The gradients of the last step, by parameter; the memory that their copies take is not that of training."""
        self._copied = True
        return {name: array_of(value.cpu()) for name, value in self._trainer.gradients().items()}

    def order(self) -> list[list[tuple[int, str, int]]]:
        """What every process of a replica does in a step: stage, kind and micro-batch of each action."""
        return [[(int(s), str(kind), int(m)) for s, kind, m in actions] for actions in self._trainer.order()]

    def peak_memory(self) -> int:
        """The most bytes that training took so far."""
        return self._memory.peak(self._device)

    def runtime_memory(self) -> int:
        """Bytes that this process took before the first step beyond its weights: libraries, connections, code; on a
        processor, with the code that steps have loaded since then.
        """
        more = 0 if self._device.type == "cuda" else _status("RssFile") - self._code
        return max(self._runtime + more, 0)

    def save(self, path: str) -> None:
        """Write the state of this process into a file, whole or not at all."""
        _write(self._trainer.state(), Path(path))

    def load(self, path: str) -> None:
        """Take over the state in a file."""
        try:
            self._trainer.load_state(torch.load(path, map_location=self._device, weights_only=True))
        except ValueError as error:
            raise RunError(str(error)) from None
        except Exception as error:  # torch.load raises many types
            raise RunError(f"{path} is damaged; {ANEW}") from error

    def merge(self, files: list[str], path: str) -> None:
        """Write the state of the model: what the files of all processes hold of it, the rest as it was."""
        whole = {name: value.detach() for name, value in load_program(self._payload).state_dict.items()}
        trained: dict[str, torch.Tensor] = {}
        aliases: dict[str, str] = {}
        for name in files:
            state = torch.load(name, map_location="cpu", weights_only=True)
            trained |= state["buffers"] | state["parameters"]
            aliases |= state["aliases"]
        trained |= {other: trained[name] for other, name in aliases.items() if name in trained}
        _write(whole | {name: value for name, value in trained.items() if name in whole}, Path(path))


class WholeProgram:
    """The whole program on one device, trained alone to compare with."""

    def __init__(self, payload: Payload, plan: Mapping[str, Any], device: str, data: Arrays) -> None:
        set_tf32(payload.tf32)
        try:
            self._trainer = WholeTrainer(load_program(payload), plan, device=device, data=_tensors(data))
        except ValueError as error:
            raise RunError(f"this plan cannot train: {error}") from None

    def step(self, number: int) -> tuple[float, float]:
        """Run a training step: its loss and its seconds."""
        step = self._trainer.step(number)
        return step.loss, step.seconds

    def gradients(self) -> dict[str, npt.NDArray[Any]]:
        """The gradients of the last step, by parameter."""
        return {name: array_of(value.cpu()) for name, value in self._trainer.gradients().items()}

    def is_random(self) -> bool:
        """Whether the program draws random numbers, so that no two processes agree."""
        return self._trainer.is_random


class PeakMemory:
    """The most memory that this process takes beyond what it has when this object is made."""

    def __init__(self) -> None:
        self._before = _status("VmRSS")

    def restart(self, device: torch.device) -> None:
        """Forget peaks so far, which loading the program made."""
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def now(self, device: torch.device) -> int:
        """Bytes that it takes now; on a GPU, those that PyTorch allocated."""
        if device.type == "cuda":
            return torch.cuda.memory_allocated(device)
        return max(_status("VmRSS") - self._before, 0)

    def peak(self, device: torch.device) -> int:
        """Bytes; on a GPU, those that PyTorch allocated."""
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device)
        return max(_status("VmHWM") - self._before, 0)


def _train_nothing(plan: Mapping[str, Any], device: torch.device) -> None:
    """A step of a tiny model, so that libraries are loaded and threads started before memory is counted."""
    layer = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 4)).to(device)
    optimizer = make_optimizer(plan, list(layer.parameters()))
    layer(torch.zeros(1, 1, 8, 8, device=device)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.zeros(1, device=device))


def _status(name: str) -> int:
    """A figure of memory of this process in bytes; 0 where the system does not say."""
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(rf"{name}:\s*(\d+) kB", text)
    return int(found[1]) << 10 if found else 0


def _tensors(data: Arrays) -> dict[str, torch.Tensor]:
    return {name: tensor_of(array) for name, array in data.items()}


def _write(state: Mapping[str, Any], path: Path) -> None:
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
