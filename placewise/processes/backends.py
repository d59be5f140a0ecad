"""Backends of pools: processes on this machine, none of which outlives its parent, and actors on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import wait
from pickle import PicklingError
from typing import Any

from placewise._util.text import shortened
from placewise.errors import PlacerError, PlacewiseError, RunError
from placewise.processes.pool import WorkerHandle
from placewise.processes.worker import Worker

LONGEST_WAIT = 86400.0
"""Seconds of one wait: operating systems accept no more than some weeks."""
IDLE_CPUS = 0.0
"""Processors that a worker requests that mostly waits for others."""


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


class Actor:
    """Runs on the cluster and serves one object. Errors are returned as text."""

    def __init__(self) -> None:
        self._object: Any = None

    def call(self, method: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call a method of the object. The first call creates it: `method` is then ``module:Class``."""
        try:
            if self._object is None:
                module, _, name = method.partition(":")
                self._object = getattr(import_module(module), name)(*args)
                return True, None
            return True, getattr(self._object, method)(*args)
        except PlacewiseError as error:
            return False, str(error)
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"


class RayWorkerHandle:
    """A worker in an actor."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self._name = ray, actor, name
        self.alive = True
        self.answers: list[Any] = []

    def tell(self, method: str, *args: Any) -> None:
        self.answers.append(self._actor.call.remote(method, args))

    def answer(self) -> Any:
        try:
            succeeded, value = self._ray.get(self.answers.pop(0))
        except self._ray.exceptions.RayError as error:
            self.alive = False
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
            raise RunError(f"{self._name} is gone ({type(error).__name__}: {shortened(lines[-1], 200)})") from None
        if not succeeded:
            raise RunError(f"{self._name} failed: {value}")
        return value

    def kill(self) -> None:
        self.alive = False
        self._ray.kill(self._actor)


class RayBackend:
    """Starts actors on the cluster that this process has joined."""

    def __init__(self, ray: Any, cpus: float) -> None:
        self._ray, self._cpus = ray, cpus

    def start_worker(self, served: str, *args: Any, name: str, measures: bool) -> RayWorkerHandle:
        kind = self._ray.remote(Actor).options(
            num_cpus=self._cpus if measures else IDLE_CPUS, scheduling_strategy="SPREAD", max_restarts=0
        )
        handle = RayWorkerHandle(self._ray, kind.remote(), name)
        handle.tell(served, *args)
        return handle

    def ready(self, handles: Sequence[WorkerHandle], seconds: float) -> Sequence[WorkerHandle]:
        waiting = {handle.answers[0]: handle for handle in handles if isinstance(handle, RayWorkerHandle)}
        first, rest = self._ray.wait(list(waiting), timeout=seconds)
        more = self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if first and rest else []
        return [waiting[answer] for answer in (*first, *more)]
