"""The object in the worker of a device: its parts of live models that are split, replicated and cut into stages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from placewise.errors import RunError
from placewise.readers.torch.parallel_model import ParallelModel, make_model, mean_square
from placewise.runtimes.torch.arrays import array_of, tensor_of

Arrays = Sequence[npt.NDArray[Any]]


class ParallelRank:
    """Process number `rank` of `world`, which connect by gloo through the file `meeting`; it computes with one thread.

    Models are added by key: parts of a plan's (`ParallelModel`), or whole ones, to compare with.
    """

    def __init__(self, rank: int, world: int, meeting: str, seconds: float) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
        )
        self._parts: dict[str, ParallelModel] = {}
        self._wholes: dict[str, _WholeModel] = {}
        self._groups: dict[int, Any] = {}

    def add(self, key: str, model: str, options: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Take this process's part of a model, which a function makes (`make_model`), under a plan."""
        made, args, kwargs = make_model(model, options)
        try:
            self._parts[key] = ParallelModel(made, args, kwargs, plan)
        except ValueError as error:
            raise RunError(f"this plan cannot run: {error}") from None

    def outputs(self, key: str, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of this replica's micro-batches in the last stage; `inputs` are those of all micro-batches."""
        return [array_of(value) for value in self._parts[key].forward(self._own(key, inputs))]

    def gradients(self, key: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The gradients of this stage's weights after one step, whole."""
        self._parts[key].step(self._own(key, inputs))
        return {name: array_of(value) for name, value in self._parts[key].whole_gradients().items()}

    def time(self, key: str, inputs: Arrays, steps: int, train: bool) -> list[float]:
        """Seconds of each of some steps, or forward passes, between two barriers."""
        own, found = self._own(key, inputs), []
        run = self._parts[key].step if train else self._parts[key].forward
        for _ in range(steps):
            dist.barrier()
            begin = time.perf_counter()
            run(own)
            dist.barrier()
            found.append(time.perf_counter() - begin)
        return found

    def weights(self, key: str) -> dict[str, int]:
        """Bytes of the weights that this process holds, by name."""
        return {name: _held_bytes(value) for name, value in self._parts[key].named_parameters()}

    def time_exchange(self, size: int, count: int, degree: int) -> list[float]:
        """Seconds of an all-reduce of so many bytes in groups of `degree` processes, as often as `count` says."""
        if degree not in self._groups:
            self._groups[degree] = dist.new_subgroups(degree)[0]  # type: ignore[no-untyped-call]
        value, found = torch.zeros(max(size // 4, 1)), []
        for _ in range(count):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(value, group=self._groups[degree])
            found.append(time.perf_counter() - begin)
        return found

    def time_transfer(self, size: int, count: int) -> list[float]:
        """Seconds of a tensor of so many bytes from process 0 to process 1 and back, halved."""
        value, rank, found = torch.zeros(max(size // 4, 1)), dist.get_rank(), []
        for _ in range(count):
            dist.barrier()
            begin = time.perf_counter()
            if rank == 0:
                dist.send(value, 1)
                dist.recv(value, 1)
            elif rank == 1:
                dist.recv(value, 0)
                dist.send(value, 0)
            found.append((time.perf_counter() - begin) / 2)
        return found

    def add_whole(self, key: str, model: str, options: Mapping[str, Any]) -> None:
        """Take a whole model."""
        self._wholes[key] = _WholeModel(model, options)

    def whole_outputs(self, key: str, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of all micro-batches of a whole model, stacked."""
        return self._wholes[key].outputs(inputs)

    def whole_gradients(self, key: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The gradients of the mean loss of all micro-batches of a whole model."""
        return self._wholes[key].gradients(inputs)

    def time_whole(self, key: str, inputs: Arrays, steps: int, train: bool, everywhere: bool) -> list[float]:
        """Seconds of each of some steps, or forward passes, of a whole model; `everywhere` they begin together."""
        found = []
        for _ in range(steps):
            if everywhere:
                dist.barrier()
            found.append(self._wholes[key].time(inputs, train))
        return found

    def _own(self, key: str, inputs: Arrays) -> list[torch.Tensor]:
        """The micro-batches of this replica: every d-th one."""
        model = self._parts[key]
        return [tensor_of(np.ascontiguousarray(array[model.replica :: model.replicas])) for array in inputs]


class _WholeModel:
    """A model as it is; micro-batches one after the other."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        self._model, args, kwargs = make_model(model, options)
        self._spec = pytree.tree_structure((args, kwargs))

    def outputs(self, inputs: Arrays) -> list[npt.NDArray[Any]]:
        with torch.no_grad():
            rows = [pytree.tree_leaves(self._run(inputs, number)) for number in range(len(inputs[0]))]
        return [array_of(torch.stack(column)) for column in zip(*rows, strict=True)]

    def gradients(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        self._step(inputs)
        named = self._model.named_parameters()
        return {name: array_of(value.grad) for name, value in named if value.grad is not None}

    def time(self, inputs: Arrays, train: bool) -> float:
        begin = time.perf_counter()
        if train:
            self._step(inputs)
        else:
            with torch.no_grad():
                for number in range(len(inputs[0])):
                    self._run(inputs, number)
        return time.perf_counter() - begin

    def _step(self, inputs: Arrays) -> None:
        self._model.zero_grad()
        for number in range(len(inputs[0])):
            torch.autograd.backward(mean_square(self._run(inputs, number), None) / len(inputs[0]))

    def _run(self, inputs: Arrays, number: int) -> Any:
        args, kwargs = pytree.tree_unflatten([tensor_of(array[number]) for array in inputs], self._spec)
        return self._model(*args, **kwargs)


def _held_bytes(value: Any) -> int:
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel() * local.element_size())
