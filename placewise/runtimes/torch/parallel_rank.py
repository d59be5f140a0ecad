"""The object in the worker of a device: its part of a live model that is split, replicated and cut into stages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from placewise.errors import RunError
from placewise.readers.torch.parallel_model import ParallelModel, make_model
from placewise.runtimes.torch.arrays import array_of, tensor_of

Arrays = Sequence[npt.NDArray[Any]]


class ParallelRank:
    """Process number `rank` of a plan (`ParallelModel`); all of them connect through the file `meeting`.

    `model` names the function that makes the model, and `options` are its arguments.
    """

    def __init__(
        self, model: str, options: Mapping[str, Any], plan: Mapping[str, Any], rank: int, meeting: str, seconds: float
    ) -> None:
        torch.set_num_threads(1)
        made, args, kwargs = make_model(model, options)
        world = len(plan["stages"]) * plan["data_parallel"] * plan["tensor_parallel"]
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
        )
        try:
            self._model = ParallelModel(made, args, kwargs, plan)
        except ValueError as error:
            raise RunError(f"this plan cannot run: {error}") from None

    def outputs(self, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of this replica's micro-batches in the last stage; `inputs` are those of all micro-batches."""
        return [array_of(value) for value in self._model.forward(self._own(inputs))]

    def step(self, inputs: Arrays) -> tuple[float, dict[str, npt.NDArray[Any]]]:
        """The loss in the last stage, and the gradients of this stage's weights, whole."""
        loss = self._model.step(self._own(inputs))
        return loss, {name: array_of(value) for name, value in self._model.whole_gradients().items()}

    def time(self, inputs: Arrays, steps: int, train: bool) -> list[float]:
        """Seconds of each of some steps, or forward passes, between two barriers."""
        own, found = self._own(inputs), []
        for _ in range(steps):
            dist.barrier()
            begin = time.perf_counter()
            if train:
                self._model.step(own)
            else:
                self._model.forward(own)
            dist.barrier()
            found.append(time.perf_counter() - begin)
        return found

    def weights(self) -> dict[str, int]:
        """Bytes of the weights that this process holds, by name."""
        return {name: _held_bytes(value) for name, value in self._model.named_parameters()}

    def _own(self, inputs: Arrays) -> list[torch.Tensor]:
        """The micro-batches of this replica: every d-th one."""
        model = self._model
        return [tensor_of(np.ascontiguousarray(array[model.replica :: model.replicas])) for array in inputs]


class WholeRank:
    """The same model in one process, as it is: outputs and gradients to compare with."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        from placewise.readers.torch.parallel_model import mean_square

        self._model, self._args, self._kwargs = make_model(model, options)
        self._loss = mean_square

    def outputs(self, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of all micro-batches, stacked."""
        from torch.utils import _pytree as pytree

        with torch.no_grad():
            rows = [pytree.tree_leaves(self._run(inputs, number)) for number in range(len(inputs[0]))]
        return [array_of(torch.stack(column)) for column in zip(*rows, strict=True)]

    def step(self, inputs: Arrays) -> tuple[float, dict[str, npt.NDArray[Any]]]:
        """The mean loss of all micro-batches, and the gradients of all weights."""
        count, total = len(inputs[0]), 0.0
        self._model.zero_grad()
        for number in range(count):
            loss = self._loss(self._run(inputs, number), None) / count
            loss.backward()
            total += float(loss.detach())
        named = self._model.named_parameters()
        return total, {name: array_of(value.grad) for name, value in named if value.grad is not None}

    def _run(self, inputs: Arrays, number: int) -> Any:
        from torch.utils import _pytree as pytree

        spec = pytree.tree_structure((self._args, self._kwargs))
        args, kwargs = pytree.tree_unflatten([tensor_of(array[number]) for array in inputs], spec)
        return self._model(*args, **kwargs)


def _held_bytes(value: Any) -> int:
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel() * local.element_size())
