"""Workers as actors on a Ray cluster, placed wherever the cluster has room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from placewise.errors import PlacewiseError, RunError
from placewise.placers.learned.workers.backend import LIMIT, WorkerHandle
from placewise.processes.ray_cluster import join_cluster

CONTROLLER_CPUS = 0.0
"""Processors that a controller requests: it waits for its workers most of the time."""


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
            raise RunError(f"{self._name} is gone ({type(error).__name__}: {lines[-1][:200]})") from None
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
            num_cpus=self._cpus if measures else CONTROLLER_CPUS, scheduling_strategy="SPREAD", max_restarts=0
        )
        handle = RayWorkerHandle(self._ray, kind.remote(), name)
        handle.tell(served, *args)
        return handle

    def ready(self, handles: Sequence[WorkerHandle], seconds: float) -> Sequence[WorkerHandle]:
        waiting = {handle.answers[0]: handle for handle in handles if isinstance(handle, RayWorkerHandle)}
        first, rest = self._ray.wait(list(waiting), timeout=seconds)
        more = self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if first and rest else []
        return [waiting[answer] for answer in (*first, *more)]


@dataclass(frozen=True, slots=True)
class RayCluster:
    """Workers on the Ray cluster at `address` (``HOST:PORT``, or ``auto`` for the one that runs on this machine).

    Each of the `controllers` has `workers`, which request `cpus` processors each; a measurement may take `limit`
    seconds. Every node needs Placewise and the libraries of the reward. Workers wait until the cluster has room.
    """

    address: str
    controllers: int = 2
    workers: int = 1
    limit: float = LIMIT
    cpus: float = 1.0

    def backend(self) -> RayBackend:
        """Join the cluster, unless this process is part of it. Raises MissingExtraError, RunError."""
        ray = join_cluster(self.address, "training on a Ray cluster")
        return RayBackend(ray, self.cpus)
