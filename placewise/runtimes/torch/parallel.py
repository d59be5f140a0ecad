"""A live model over several processes as a plan with stages says, and in one process to compare with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.processes.scratch import ScratchFolder
from placewise.processes.worker import START, Worker, collect_answers
from placewise.runtimes.base import Closing
from placewise.runtimes.torch.runtime import require_torch

_RANK = "placewise.runtimes.torch.parallel_rank:ParallelRank"
_WHOLE = "placewise.runtimes.torch.parallel_rank:WholeRank"

Arrays = Sequence[npt.NDArray[Any]]


class ParallelRun(Closing):
    """A process per device of a plan (`core.parallel_plan.describe_modules`), connected by gloo.

    `model` is ``FILE.py:FUNCTION`` or ``PACKAGE.MODULE:FUNCTION``, a function of `options` that returns a module and
    the arguments of one micro-batch. Inputs are arrays [micro-batches, …], one per argument. Every process computes
    with one thread, on the cores that `cores` has for it, if any. Raises RunError where processes fail, or do not
    answer within `seconds`, and MissingExtraError without PyTorch.
    """

    def __init__(
        self,
        model: str,
        plan: Mapping[str, Any],
        *,
        options: Mapping[str, Any] | None = None,
        cores: Sequence[Sequence[int]] = (),
        seconds: float = 300.0,
    ) -> None:
        require_torch()
        self._plan, self._seconds = plan, seconds
        self._degree, self._replicas = plan["tensor_parallel"], plan["data_parallel"]
        self._folder, self._workers = ScratchFolder(), list[Worker]()
        world = len(plan["stages"]) * self._replicas * self._degree
        environment = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), "OMP_NUM_THREADS": "1"}
        try:
            for rank in range(world):
                self._workers.append(
                    Worker(
                        _RANK, model, dict(options or {}), dict(plan), rank, str(self._folder.path / "meeting"), seconds,
                        name=f"process {rank}", cores=cores[rank] if cores else (), environment=environment, start=None,
                    )
                )  # fmt: skip
            collect_answers(self._workers, START + seconds)
        except BaseException:
            self.close()
            raise

    def outputs(self, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of all micro-batches, stacked in their order."""
        answers = self._ask("outputs", list(inputs))
        last = answers[(len(self._plan["stages"]) - 1) * self._replicas * self._degree :: self._degree]
        found = []
        for column in zip(*last, strict=True):
            whole = np.empty((len(inputs[0]), *column[0].shape[1:]), column[0].dtype)
            for replica, rows in enumerate(column):
                whole[replica :: self._replicas] = rows
            found.append(whole)
        return found

    def gradients(self, inputs: Arrays) -> list[dict[str, npt.NDArray[Any]]]:
        """One training step: what every process has of the gradients, by name, each put together from its parts."""
        return [gradients for _, gradients in self._ask("step", list(inputs))]

    def time(self, inputs: Arrays, steps: int = 1, *, train: bool = True) -> list[float]:
        """Seconds of each of some training steps, or of forward passes, of all micro-batches."""
        return [max(times) for times in zip(*self._ask("time", list(inputs), steps, train), strict=True)]

    def weight_bytes(self) -> list[dict[str, int]]:
        """Bytes of the weights that every process holds, by name."""
        found: list[dict[str, int]] = self._ask("weights")
        return found

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.kill()
        self._folder.close()

    def _ask(self, method: str, *args: Any) -> list[Any]:
        try:
            for worker in self._workers:
                worker.tell(method, *args)
            return collect_answers(self._workers, self._seconds)
        except BaseException:
            self.close()
            raise


class WholeRun(Closing):
    """The same model in one process: outputs and gradients of all micro-batches, one after the other."""

    def __init__(
        self, model: str, *, options: Mapping[str, Any] | None = None, cores: Sequence[int] = (), seconds: float = 300.0
    ) -> None:
        require_torch()
        self._seconds = seconds
        environment = {"OMP_NUM_THREADS": "1"}
        self._worker = Worker(
            _WHOLE, model, dict(options or {}), name="one process", cores=cores, environment=environment,
            start=START + seconds,
        )  # fmt: skip

    def outputs(self, inputs: Arrays) -> list[npt.NDArray[Any]]:
        """As `ParallelRun.outputs`."""
        found: list[npt.NDArray[Any]] = self._worker.ask("outputs", list(inputs), timeout=self._seconds)
        return found

    def gradients(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The gradients of the mean loss of all micro-batches, by name."""
        _, gradients = self._worker.ask("step", list(inputs), timeout=self._seconds)
        return dict(gradients)

    def close(self) -> None:
        """End the process."""
        self._worker.kill()
