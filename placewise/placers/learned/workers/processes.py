"""A crew of processes on this machine: none outlives the one that started it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pickle import PicklingError
from typing import Any

from placewise.errors import PlacerError, RunError
from placewise.placers.learned.workers.backend import LIMIT, Seat
from placewise.processes.worker import Worker


class Process:
    """A seat in a process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def alive(self) -> bool:
        return self.worker.alive

    def tell(self, method: str, *args: Any) -> None:
        with suppress(RunError):  # its link is at its end, and `answer` says why
            self.worker.tell(method, *args)

    def answer(self) -> Any:
        return self.worker.answer()

    def kill(self) -> None:
        self.worker.kill()


class ProcessBackend:
    """The machine that asks."""

    def seat(self, served: str, *args: Any, name: str, worker: bool) -> Process:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            return Process(Worker(served, *args, name=name, environment={"PYTHONPATH": path}, start=None))
        except (PicklingError, AttributeError, TypeError) as error:
            raise PlacerError(
                f"this training cannot be sent to other processes ({error})", remedy="train without a crew"
            ) from None

    def ready(self, seats: Sequence[Seat], seconds: float) -> Sequence[Seat]:
        processes = [seat for seat in seats if isinstance(seat, Process)]
        closed = [process for process in processes if process.worker.link.closed]
        links = wait([process.worker.link for process in processes], min(seconds, LONGEST)) if not closed else ()
        return closed or [process for process in processes if process.worker.link in links]


LONGEST = 86400.0
"""Seconds that are waited for at once: systems count no further than some weeks."""


@dataclass(frozen=True, slots=True)
class Processes:
    """A crew of processes: `controllers`, each with `workers`; a measurement may take `limit` seconds."""

    controllers: int = 2
    workers: int = 1
    limit: float = LIMIT

    def house(self) -> ProcessBackend:
        return ProcessBackend()
