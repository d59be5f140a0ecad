"""The workers of a training: controllers that share one problem, and workers that share a corpus.

Both are pools whose dead members are replaced. After five deaths without a result in between, training ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from placewise.errors import RunError
from placewise.model.columns import Floats, Ints
from placewise.placers.learned.pricing import LOST
from placewise.processes.pool import Pool, PoolMember, TaskOutcome
from placewise.training.workers.config import WorkerConfig, require_sizes
from placewise.training.workers.corpus_worker import CorpusWorker
from placewise.training.workers.messages import (
    ControllerResult,
    ControllerSpec,
    ControllerTask,
    CorpusResult,
    CorpusTask,
    CorpusWorkerSpec,
)

Parameters = Mapping[str, npt.NDArray[Any]]
POLL_SECONDS = 60.0
"""Longest wait for a result before workers are checked again."""
_PRICE = "price"


class ControllerPool(Pool):
    """All controllers. It is an `Evaluate` too: one controller prices, and lost placements are priced again.

    `lost` counts placements of workers that died; `deaths` are those of controllers and of workers. `reference`: see
    `Measuring`.
    """

    def __init__(self, spec: ControllerSpec, seed: int) -> None:
        self._spec, self._seed = spec, seed
        self._late: list[TaskOutcome] = []
        self.failure, self.reference, self.lost = "", np.nan, 0
        super().__init__(spec.config.backend(), spec.config.controllers, self._served_by, "controller", measures=False)

    def _served_by(self, number: int) -> tuple[object, ...]:
        seed = np.random.SeedSequence([self._seed, number]).generate_state(1, np.uint64)
        served = "placewise.training.workers.controller:Controller"
        return served, self._spec, int(seed[0] >> np.uint64(1)), number

    def learning_tasks(self) -> list[ControllerTask]:
        """Learning tasks in progress."""
        return [task for task in self.tasks() if isinstance(task, ControllerTask)]

    def send(self, member: PoolMember, task: ControllerTask) -> None:
        self.give(member, task, "learn", task)

    def results(self, seconds: float) -> list[tuple[ControllerTask, ControllerResult]]:
        """Wait up to `seconds` for the first learning tasks to end. The list may be empty."""
        late, self._late = self._late, []
        outcomes = late or self.wait(seconds)
        return [(outcome.task, outcome.value) for outcome in outcomes if outcome.status == "done"]

    def __call__(self, placements: Ints) -> Floats:
        seconds = np.full(len(placements), LOST)
        while (left := np.flatnonzero(seconds == LOST)).size:
            if self.stop_reason:
                raise RunError(self.stop_reason)
            if _PRICE not in [task for task in self.tasks() if isinstance(task, str)]:
                for member in self.idle()[:1]:
                    self.give(member, _PRICE, "price", placements[left], self.reference)
            for outcome in self.wait(POLL_SECONDS):
                if isinstance(outcome.task, ControllerTask):
                    self._late.append(outcome)
                elif outcome.status == "done":
                    seconds[left], self.failure = outcome.value.seconds, outcome.value.failure
        return seconds

    def count(self, outcome: TaskOutcome) -> None:
        """Count the deaths of a controller's workers too; only their results end a row of deaths."""
        if outcome.status != "done":
            self.count_deaths(1, f"a controller failed: {outcome.why}")
            return
        result: ControllerResult = outcome.value
        self.lost += result.lost
        self.reference = self.reference if np.isfinite(self.reference) else result.reference
        if result.results:
            self.row = 0
        recent = result.row if result.results else result.deaths
        self.count_deaths(recent, result.failure if recent else self.why)
        self.deaths += result.deaths - recent


class LocalPool:
    """One worker, in this process."""

    def __init__(self, spec: CorpusWorkerSpec) -> None:
        threads = torch.get_num_threads()
        self._worker = CorpusWorker(spec)
        torch.set_num_threads(threads)  # threads of this process are the caller's

    def run(self, tasks: Sequence[CorpusTask], parameters: Parameters) -> list[tuple[CorpusTask, CorpusResult]]:
        """Run tasks with `parameters` (empty: those that workers have), and return them in order with their results.

        Tasks of workers that died are missing. Raises RunError, PlacerError.
        """
        results = []
        for place, task in enumerate(tasks):
            news = None if place else parameters or None
            results.append((task, self._worker.run(replace(task, parameters=news))))
        return results

    def close(self) -> None:
        """There is nothing to terminate."""


class DistributedPool(Pool):
    """The controllers of a config, as workers. Dead workers are replaced; their task is dropped.

    Raises PlacerError for invalid numbers of workers, MissingExtraError, and RunError if the cluster does not answer.
    """

    def __init__(self, spec: CorpusWorkerSpec, config: WorkerConfig) -> None:
        require_sizes(config)
        served = "placewise.training.workers.corpus_worker:CorpusWorker"
        super().__init__(config.backend(), config.controllers, lambda _: (served, spec), "worker", measures=True)
        self._parameters: Parameters = {}
        self._edition = 0

    def run(self, tasks: Sequence[CorpusTask], parameters: Parameters) -> list[tuple[CorpusTask, CorpusResult]]:
        if parameters is not self._parameters:
            self._parameters, self._edition = parameters, self._edition + 1
        results = dict[int, CorpusResult]()

        def give(member: PoolMember, waiting: list[int]) -> None:
            """Send a task, preferably of a problem that this worker has cached, and parameters only if new."""
            slot = self.members.index(member)
            place = next((p for p in waiting if tasks[p].number % self.size == slot), waiting[0])
            waiting.remove(place)
            news = self._parameters if member.sent != self._edition else None
            member.sent = self._edition
            self.give(member, place, "run", replace(tasks[place], parameters=news or None))

        for outcome in self.scatter(len(tasks), give, POLL_SECONDS):
            if outcome.status == "done":
                results[outcome.task] = outcome.value
            elif outcome.status == "refused":
                raise RunError(outcome.why)
        if self.stop_reason:
            raise RunError(self.stop_reason)
        return [(task, results[place]) for place, task in enumerate(tasks) if place in results]


WorkerPool = LocalPool | DistributedPool
"""Any number of workers, anywhere."""
