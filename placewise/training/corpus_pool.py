"""The workers of a training on a corpus: one in this process, or many in other processes or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy.typing as npt
import torch

from placewise.errors import RunError
from placewise.placers.learned.workers.config import WorkerConfig, require_sizes
from placewise.placers.learned.workers.measuring import DEATHS_IN_A_ROW
from placewise.processes.pool import Pool, PoolMember, TaskOutcome
from placewise.training.corpus_worker import CorpusResult, CorpusTask, CorpusWorker, CorpusWorkerSpec

Parameters = Mapping[str, npt.NDArray[Any]]
POLL_SECONDS = 60.0
"""Longest wait for a result before workers are checked again."""


class WorkerPool(Protocol):
    """Any number of workers, anywhere."""

    def run(self, tasks: Sequence[CorpusTask], parameters: Parameters) -> list[tuple[CorpusTask, CorpusResult]]:
        """Run tasks with `parameters` (empty: those that workers have), and return them in order with their results.

        Tasks of workers that died are missing. Raises RunError, PlacerError.
        """

    def close(self) -> None:
        """Terminate all workers."""


class LocalPool:
    """One worker, in this process."""

    def __init__(self, spec: CorpusWorkerSpec) -> None:
        threads = torch.get_num_threads()
        self._worker = CorpusWorker(spec)
        torch.set_num_threads(threads)  # threads of this process are the caller's

    def run(self, tasks: Sequence[CorpusTask], parameters: Parameters) -> list[tuple[CorpusTask, CorpusResult]]:
        results = []
        for place, task in enumerate(tasks):
            news = None if place else parameters or None
            results.append((task, self._worker.run(replace(task, parameters=news))))
        return results

    def close(self) -> None:
        """There is nothing to terminate."""


class DistributedPool:
    """The controllers of a config, as workers. Dead workers are replaced; their task is dropped.

    Raises PlacerError for invalid numbers of workers, MissingExtraError, and RunError if the cluster does not answer.
    """

    def __init__(self, spec: CorpusWorkerSpec, config: WorkerConfig) -> None:
        require_sizes(config)
        served = "placewise.training.corpus_worker:CorpusWorker"
        self._pool = Pool(config.backend(), config.controllers, lambda _: (served, spec), "worker", measures=True)
        self._parameters: Parameters = {}
        self._edition = self.deaths = self._row = 0

    @property
    def members(self) -> Sequence[PoolMember]:
        """All workers, idle or busy."""
        return tuple(self._pool.members)

    def run(self, tasks: Sequence[CorpusTask], parameters: Parameters) -> list[tuple[CorpusTask, CorpusResult]]:
        if parameters is not self._parameters:
            self._parameters, self._edition = parameters, self._edition + 1
        waiting, results = list(range(len(tasks))), dict[int, CorpusResult]()
        while waiting or self._pool.tasks():
            for member in self._pool.idle():
                if waiting:
                    self._send(member, waiting, tasks)
            for outcome in self._pool.wait(POLL_SECONDS):
                self._take_outcome(outcome, results)
        return [(task, results[place]) for place, task in enumerate(tasks) if place in results]

    def _send(self, member: PoolMember, waiting: list[int], tasks: Sequence[CorpusTask]) -> None:
        """Send a task, preferably of a problem that this worker has cached, and parameters only if they are new."""
        slot = self._pool.members.index(member)
        place = next((p for p in waiting if tasks[p].number % self._pool.size == slot), waiting[0])
        waiting.remove(place)
        news = self._parameters if member.sent != self._edition else None
        member.sent = self._edition
        self._pool.give(member, place, "run", replace(tasks[place], parameters=news or None))

    def _take_outcome(self, outcome: TaskOutcome, results: dict[int, CorpusResult]) -> None:
        if outcome.status == "done":
            results[outcome.task], self._row = outcome.value, 0
            return
        if outcome.status == "refused":
            raise RunError(outcome.why)
        self.deaths, self._row = self.deaths + 1, self._row + 1
        if self._row >= DEATHS_IN_A_ROW:
            raise RunError(
                f"{self._row} workers died one after the other without a result; the last one: {outcome.why}"
            )

    def close(self) -> None:
        self._pool.close()
