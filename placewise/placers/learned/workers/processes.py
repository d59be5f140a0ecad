"""Workers as processes on this machine. None of them outlives the process that started it."""

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
from placewise.placers.learned.workers.backend import LIMIT, WorkerHandle
from placewise.processes.worker import Worker

LONGEST_WAIT = 86400.0
"""Seconds of one wait: operating systems accept no more than some weeks."""


class ProcessHandle:
    """A worker in a process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def alive(self) -> bool:
        return self.worker.alive

    def tell(self, method: str, *args: Any) -> None:
        with suppress(RunError):  # a broken link is reported by `answer`
            self.worker.tell(method, *args)

    def answer(self) -> Any:
        return self.worker.answer()

    def kill(self) -> None:
        self.worker.kill()


class ProcessBackend:
    """Starts processes on this machine."""

    def start_worker(self, served: str, *args: Any, name: str, measures: bool) -> ProcessHandle:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            return ProcessHandle(Worker(served, *args, name=name, environment={"PYTHONPATH": path}, start=None))
        except (PicklingError, AttributeError, TypeError) as error:
            raise PlacerError(
                f"this training cannot be sent to other processes ({error})", remedy="train in one process"
            ) from None

    def ready(self, handles: Sequence[WorkerHandle], seconds: float) -> Sequence[WorkerHandle]:
        processes = [handle for handle in handles if isinstance(handle, ProcessHandle)]
        closed = [process for process in processes if process.worker.link.closed]
        links = wait([process.worker.link for process in processes], min(seconds, LONGEST_WAIT)) if not closed else ()
        return closed or [process for process in processes if process.worker.link in links]


@dataclass(frozen=True, slots=True)
class Processes:
    """`controllers` processes with `workers` each; one measurement may take `limit` seconds."""

    controllers: int = 2
    workers: int = 1
    limit: float = LIMIT

    def backend(self) -> ProcessBackend:
        return ProcessBackend()
