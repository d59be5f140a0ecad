"""A crew in this very process: every question is answered at once, in order; who raises Death is dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from placewise.errors import RunError
from placewise.placers.learned.workers.backend import Seat


class Death(BaseException):
    """What kills a seat."""


class HereSeat:
    """An object of this process."""

    def __init__(self) -> None:
        self.alive, self.object = True, None
        self.answers: list[tuple[str, Any]] = []

    def tell(self, method: str, *args: Any) -> None:
        try:
            if self.object is None:
                module, _, name = method.partition(":")
                self.object = getattr(import_module(module), name)(*args)
                self.answers.append(("ok", None))
            else:
                self.answers.append(("ok", getattr(self.object, method)(*args)))
        except Death as death:
            self.answers.append(("death", str(death)))
        except Exception as error:
            self.answers.append(("error", str(error)))

    def answer(self) -> Any:
        kind, value = self.answers.pop(0)
        self.alive = kind != "death"
        if kind != "ok":
            raise RunError(value)
        return value

    def kill(self) -> None:
        self.alive = False


class HereHouse:
    """This process."""

    def seat(self, served: str, *args: Any, name: str, worker: bool) -> HereSeat:
        seat = HereSeat()
        seat.tell(served, *args)
        return seat

    def ready(self, seats: Sequence[Seat], seconds: float) -> Sequence[Seat]:
        return [seat for seat in seats if seat.answers]


@dataclass(frozen=True)
class Here:
    """A crew in this process."""

    controllers: int = 2
    workers: int = 2
    limit: float = 60.0

    def house(self) -> HereHouse:
        return HereHouse()
