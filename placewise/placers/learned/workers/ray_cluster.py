"""A crew on a Ray cluster: its seats are actors, wherever the cluster has room for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from placewise.errors import MissingExtraError, PlacewiseError, RunError
from placewise.placers.learned.workers.backend import LIMIT, Seat

CONTROLLER = 0.0
"""Processors that a controller asks of the cluster: it waits for its workers most of the time."""

CONNECT = 10.0
"""Seconds until a cluster must answer."""


class Actor:
    """What runs on the cluster: an object that answers, or says in words why not."""

    def __init__(self) -> None:
        self._object: Any = None

    def ask(self, method: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """The first question makes the object."""
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
    """A seat in an actor."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self._name = ray, actor, name
        self.alive = True
        self.answers: list[Any] = []

    def tell(self, method: str, *args: Any) -> None:
        self.answers.append(self._actor.ask.remote(method, args))

    def answer(self) -> Any:
        try:
            well, value = self._ray.get(self.answers.pop(0))
        except self._ray.exceptions.RayError as error:
            self.alive = False
            words = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
            raise RunError(f"{self._name} is gone ({type(error).__name__}: {words[-1][:200]})") from None
        if not well:
            raise RunError(f"{self._name} failed: {value}")
        return value

    def kill(self) -> None:
        self.alive = False
        self._ray.kill(self._actor)


class RayBackend:
    """The cluster that this process is part of."""

    def __init__(self, ray: Any, cpus: float) -> None:
        self._ray, self._cpus = ray, cpus

    def seat(self, served: str, *args: Any, name: str, worker: bool) -> RayWorkerHandle:
        kind = self._ray.remote(Actor).options(
            num_cpus=self._cpus if worker else CONTROLLER, scheduling_strategy="SPREAD", max_restarts=0
        )
        made = RayWorkerHandle(self._ray, kind.remote(), name)
        made.tell(served, *args)
        return made

    def ready(self, seats: Sequence[Seat], seconds: float) -> Sequence[Seat]:
        waiting = {seat.answers[0]: seat for seat in seats if isinstance(seat, RayWorkerHandle)}
        first, rest = self._ray.wait(list(waiting), timeout=seconds)
        more = self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if first and rest else []
        return [waiting[answer] for answer in (*first, *more)]


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A crew on the Ray cluster at `address` (``HOST:PORT``, or ``auto`` for the one that runs on this machine).

    `controllers`, each with `workers`, which ask for `cpus` processors each; a measurement may take `limit` seconds.
    Placewise and what a reward needs must be installed on every node. Who cannot be seated yet waits for room.
    """

    address: str
    controllers: int = 2
    workers: int = 1
    limit: float = LIMIT
    cpus: float = 1.0

    def house(self) -> RayBackend:
        """The cluster, joined where this process is not part of it. Raises MissingExtraError, RunError."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray = import_module("ray")
        except ModuleNotFoundError:
            raise MissingExtraError("training on a Ray cluster", "ray") from None
        if not ray.is_initialized():
            try:
                _require_listener(self.address)
                ray.init(address=self.address, log_to_driver=False, configure_logging=False)
            except (OSError, ValueError, RuntimeError) as error:
                raise RunError(f"there is no Ray cluster at {self.address!r}: {error}") from None
        return RayBackend(ray, self.cpus)


def _require_listener(address: str) -> None:
    """Raise OSError or ValueError where nobody listens: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("an address is HOST:PORT, or auto")
    socket.create_connection((host, int(port)), CONNECT).close()
