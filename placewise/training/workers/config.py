"""The number and the place of the workers of a training."""

from __future__ import annotations

from dataclasses import dataclass

from placewise.errors import PlacerError
from placewise.processes.backends import ProcessBackend, RayBackend
from placewise.processes.ray_cluster import join_cluster

MAX_WORKERS = 1000
"""Largest number of controllers, and of workers per controller."""
LIMIT = 600.0
"""Default limit of one measurement, in seconds. Rewards that run placements have shorter limits of their own."""


@dataclass(frozen=True, slots=True)
class Processes:
    """`controllers` processes with `workers` each; one measurement may take `limit` seconds."""

    controllers: int = 2
    workers: int = 1
    limit: float = LIMIT

    def backend(self) -> ProcessBackend:
        return ProcessBackend()


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


WorkerConfig = Processes | RayCluster
"""Number and place of workers: plain data, because controllers receive it too.

With 0 `workers`, controllers measure themselves. A measurement that takes more than `limit` seconds counts as failed.
"""


def require_sizes(config: WorkerConfig) -> None:
    """Raise PlacerError unless there is at least one controller and all numbers are sensible."""
    for name, least in (("controllers", 1), ("workers", 0)):
        count = getattr(config, name)
        if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= MAX_WORKERS:
            raise PlacerError(f"{name} is {count!r}", remedy=f"give a whole number from {least} to {MAX_WORKERS}")
    if not config.limit > 0:
        raise PlacerError(f"the limit of a measurement is {config.limit} s", remedy="give a number above zero")
