"""What a crew is made of: seats, which are objects in other processes, and houses, which are where seats are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from placewise.errors import PlacerError

MOST = 1000
"""Controllers, and workers of each."""
LIMIT = 600.0
"""Seconds of a measurement, if nobody says otherwise: rewards that run placements have shorter limits of their own."""


class Seat(Protocol):
    """An object in another process. It answers questions in their order, or dies."""

    @property
    def alive(self) -> bool: ...

    def tell(self, method: str, *args: Any) -> None:
        """Ask without waiting; what it is told when it is dead is lost."""

    def answer(self) -> Any:
        """The answer that a house said is ready. Raises RunError if the object raised, or is dead."""

    def kill(self) -> None:
        """End it at once."""


class Backend(Protocol):
    """Where seats are: this machine, or a cluster."""

    def seat(self, served: str, *args: Any, name: str, worker: bool) -> Seat:
        """A new seat for an object made from `served` (``module:Class``); its first answer is that it is made.

        `worker`: whether it measures, or commands those that do.
        """

    def ready(self, seats: Sequence[Seat], seconds: float) -> Sequence[Seat]:
        """Those that have an answer, or died, as soon as one of them does; none after so many seconds."""


class Crew(Protocol):
    """How many work, and where: plain data, which controllers are sent too.

    `controllers` roll out and learn, each with `workers` of its own that measure (0: it measures itself); a
    measurement that takes more than `limit` seconds has failed.
    """

    @property
    def controllers(self) -> int: ...

    @property
    def workers(self) -> int: ...

    @property
    def limit(self) -> float: ...

    def house(self) -> Backend:
        """The house, from wherever this is called. Raises MissingExtraError, RunError."""


def require_sizes(crew: Crew) -> None:
    """Raise PlacerError unless there is a controller, and no figure is absurd."""
    for name, least in (("controllers", 1), ("workers", 0)):
        count = getattr(crew, name)
        if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= MOST:
            raise PlacerError(f"{name} is {count!r}", remedy=f"give a whole number from {least} to {MOST}")
    if not crew.limit > 0:
        raise PlacerError(f"the limit of a measurement is {crew.limit} s", remedy="give a number above zero")
