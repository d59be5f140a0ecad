"""Where pupils work: one in this process, or many in processes of their own or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy.typing as npt
import torch

from placewise.errors import RunError
from placewise.placers.learned.corpus.messages import Answer, Brief, Task
from placewise.placers.learned.corpus.worker import CorpusWorker
from placewise.placers.learned.workers.backend import Crew, require_sizes
from placewise.placers.learned.workers.measuring import IN_A_ROW
from placewise.placers.learned.workers.pool import Member, Outcome, Pool

Parameters = Mapping[str, npt.NDArray[Any]]
BREATH = 60.0
"""Seconds between looks at the pupils."""


class WorkerPool(Protocol):
    """Pupils, however many, wherever they are."""

    def answers(self, tasks: Sequence[Task], parameters: Parameters) -> list[tuple[Task, Answer]]:
        """The tasks, in their order, with their answers; without those that were lost with a pupil.

        All are done with `parameters`; none: those that pupils have. Raises RunError, PlacerError.
        """

    def close(self) -> None:
        """Let all pupils go."""


class Private:
    """One pupil, in this process."""

    def __init__(self, brief: Brief) -> None:
        threads = torch.get_num_threads()
        self._pupil = CorpusWorker(brief)
        torch.set_num_threads(threads)  # those of this process are the caller's

    def answers(self, tasks: Sequence[Task], parameters: Parameters) -> list[tuple[Task, Answer]]:
        given = [replace(task, parameters=None if place else parameters or None) for place, task in enumerate(tasks)]
        return [(task, self._pupil.study(told)) for task, told in zip(tasks, given, strict=True)]

    def close(self) -> None:
        """Nobody is anywhere else."""


class Class:
    """The controllers of a crew, as pupils. Who dies is replaced, and its task is lost.

    Raises PlacerError for sizes that make no sense, MissingExtraError, and RunError where there is no such cluster.
    """

    def __init__(self, brief: Brief, crew: Crew) -> None:
        require_sizes(crew)
        served = "placewise.placers.learned.corpus.worker:CorpusWorker"
        self._pool = Pool(crew.house(), crew.controllers, lambda _: (served, brief), "pupil", worker=True)
        self._parameters: Parameters = {}
        self._edition = self.deaths = self._row = 0

    @property
    def members(self) -> Sequence[Member]:
        """The pupils, whatever they do."""
        return tuple(self._pool.members)

    def answers(self, tasks: Sequence[Task], parameters: Parameters) -> list[tuple[Task, Answer]]:
        if parameters is not self._parameters:
            self._parameters, self._edition = parameters, self._edition + 1
        waiting, found = list(range(len(tasks))), dict[int, Answer]()
        while waiting or self._pool.tasks():
            for member in self._pool.idle():
                if waiting:
                    self._send(member, waiting, tasks)
            for outcome in self._pool.wait(BREATH):
                self._take(outcome, found)
        return [(task, found[place]) for place, task in enumerate(tasks) if place in found]

    def _send(self, member: Member, waiting: list[int], tasks: Sequence[Task]) -> None:
        """Give a pupil a problem that it has had before, if there is one, with the parameters that it has not."""
        seat = self._pool.members.index(member)
        place = next((p for p in waiting if tasks[p].number % self._pool.size == seat), waiting[0])
        waiting.remove(place)
        news = self._parameters if member.told != self._edition else None
        member.told = self._edition
        self._pool.give(member, place, "study", replace(tasks[place], parameters=news or None))

    def _take(self, outcome: Outcome, found: dict[int, Answer]) -> None:
        if outcome.fate == "done":
            found[outcome.task], self._row = outcome.value, 0
            return
        if outcome.fate == "refused":
            raise RunError(outcome.why)
        self.deaths, self._row = self.deaths + 1, self._row + 1
        if self._row >= IN_A_ROW:
            raise RunError(f"{self._row} pupils died one after the other without a result; the last one: {outcome.why}")

    def close(self) -> None:
        self._pool.close()
