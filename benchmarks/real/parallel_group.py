"""Live models over several processes as plans with stages say, and in one process to compare with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import placewise
from placewise.processes.limits import name_interfaces
from placewise.processes.scratch import ScratchFolder
from placewise.processes.worker import START, Worker, collect_answers
from placewise.runtimes.base import Closing
from placewise.runtimes.torch.runtime import require_torch

_RANK = "parallel_rank:ParallelRank"
_PATHS = (Path(__file__).resolve().parent, Path(placewise.__file__).resolve().parents[1])
"""Where the processes find this folder and the package."""
NO_OPTIONS: Mapping[str, Any] = {}

Arrays = Sequence[npt.NDArray[Any]]


class ParallelGroup(Closing):
    """So many processes, connected by gloo, that run models in parts: each with one thread, on the `cores` for it.

    A model is ``FILE.py:FUNCTION`` or ``PACKAGE.MODULE:FUNCTION``, a function of `options` that returns a module and
    the arguments of one micro-batch. Inputs are arrays [micro-batches, …], one per argument. After a failure, all
    processes are ended. Raises RunError where processes fail, or do not answer within `seconds`, and MissingExtraError
    without PyTorch.
    """

    def __init__(self, world: int, *, cores: Sequence[Sequence[int]] = (), seconds: float = 300.0) -> None:
        require_torch()
        self.world, self._seconds = world, seconds
        self._plans: dict[str, Mapping[str, Any]] = {}
        self._folder, self._workers = ScratchFolder(), list[Worker]()
        environment = name_interfaces() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, _PATHS))}
        try:
            for rank in range(world):
                self._workers.append(
                    Worker(
                        _RANK, rank, world, str(self._folder.path / "meeting"), seconds, name=f"process {rank}",
                        cores=cores[rank] if cores else (), environment=environment, start=None,
                    )
                )  # fmt: skip
            collect_answers(self._workers, START + seconds)
        except BaseException:
            self.close()
            raise

    def add(self, key: str, model: str, plan: Mapping[str, Any], options: Mapping[str, Any] = NO_OPTIONS) -> None:
        """Prepare a model under a plan of `core.parallel_plan.describe_modules` for as many devices as processes."""
        self._plans[key] = plan
        self._ask("add", key, model, dict(options), dict(plan))

    def outputs(self, key: str, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of all micro-batches, stacked in their order."""
        plan = self._plans[key]
        degree, replicas = plan["tensor_parallel"], plan["data_parallel"]
        last = self._ask("outputs", key, list(inputs))[-replicas * degree :: degree]
        found = []
        for column in zip(*last, strict=True):
            whole = np.empty((len(inputs[0]), *column[0].shape[1:]), column[0].dtype)
            for replica, rows in enumerate(column):
                whole[replica::replicas] = rows
            found.append(whole)
        return found

    def gradients(self, key: str, inputs: Arrays) -> list[dict[str, npt.NDArray[Any]]]:
        """One training step: what every process has of the gradients, by name, each put together from its parts."""
        return self._ask("gradients", key, list(inputs))

    def time(self, key: str, inputs: Arrays, steps: int = 1, *, train: bool = True) -> list[float]:
        """Seconds of each of some training steps, or of forward passes, of all micro-batches."""
        return [max(times) for times in zip(*self._ask("time", key, list(inputs), steps, train), strict=True)]

    def weight_bytes(self, key: str) -> list[dict[str, int]]:
        """Bytes of the weights that every process holds, by name."""
        return self._ask("weights", key)

    def exchange_seconds(self, size: int, count: int, degree: int | None = None) -> list[float]:
        """Seconds of all-reduces of so many bytes in groups of `degree` neighbours at once. Default: all processes."""
        asked = self._ask("time_exchange", size, count, degree or self.world)
        return [max(times) for times in zip(*asked, strict=True)]

    def transfer_seconds(self, size: int, count: int) -> list[float]:
        """Seconds of tensors of so many bytes from one process to another."""
        found: list[float] = self._ask("time_transfer", size, count)[0]
        return found

    def add_whole(self, key: str, model: str, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        """Prepare a whole model in every process."""
        self._ask("add_whole", key, model, dict(options))

    def whole_outputs(self, key: str, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of all micro-batches of a whole model, stacked."""
        found: list[npt.NDArray[Any]] = self._ask_first("whole_outputs", key, list(inputs))
        return found

    def whole_gradients(self, key: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The gradients of the mean loss of all micro-batches of a whole model, by name."""
        found: dict[str, npt.NDArray[Any]] = self._ask_first("whole_gradients", key, list(inputs))
        return found

    def time_whole(
        self, key: str, inputs: Arrays, steps: int = 1, *, train: bool = True, everywhere: bool = False
    ) -> list[float]:
        """Seconds of each of some training steps, or of forward passes, of a whole model in one process.

        With `everywhere`, all processes run it at the same time, and the slowest one counts.
        """
        workers = self._workers if everywhere else self._workers[:1]
        asked = self._collect(workers, "time_whole", (key, list(inputs), steps, train, everywhere))
        return [max(times) for times in zip(*asked, strict=True)]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.kill()
        self._folder.close()

    def _ask(self, method: str, *args: Any) -> list[Any]:
        return self._collect(self._workers, method, args)

    def _ask_first(self, method: str, *args: Any) -> Any:
        return self._collect(self._workers[:1], method, args)[0]

    def _collect(self, workers: Sequence[Worker], method: str, args: Sequence[Any]) -> list[Any]:
        try:
            for worker in workers:
                worker.tell(method, *args)
            return collect_answers(workers, self._seconds)
        except BaseException:
            self.close()
            raise
