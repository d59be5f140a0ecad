"""A pool: so many seats for objects of one kind; who dies is replaced, and what it was doing is lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from placewise.errors import RunError
from placewise.placers.learned.workers.backend import Backend, Seat

START = 300.0
"""Seconds that a seat may take until its object is made: on a cluster it may wait for room."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task: `done` with a value, or in words how it was `refused`, `late`, or `died` with its seat.

    `task` is None where a seat was not even made.
    """

    task: Any
    fate: Literal["done", "refused", "late", "died"]
    value: Any = None
    why: str = ""


@dataclass(slots=True, eq=False)
class Member:
    """One seat: what it does (None: nothing), until when. `told` is for who commands it."""

    seat: Seat
    until: float
    busy: bool = True
    made: bool = False
    task: Any = None
    told: int = 0


@dataclass(slots=True, eq=False)
class Pool:
    """`size` seats in a house. `made_from(number)` gives the class and arguments of the object of each new seat."""

    house: Backend
    size: int
    made_from: Callable[[int], tuple[Any, ...]]
    name: str
    worker: bool
    members: list[Member] = field(default_factory=list)
    hired: int = 0

    def __post_init__(self) -> None:
        self.fill()

    def fill(self) -> None:
        """Replace who is gone."""
        while len(self.members) < self.size:
            served, *args = self.made_from(self.hired)
            seat = self.house.seat(served, *args, name=f"{self.name} {self.hired}", worker=self.worker)
            self.members.append(Member(seat, time.monotonic() + START))
            self.hired += 1

    def idle(self) -> list[Member]:
        return [member for member in self.members if not member.busy]

    def tasks(self) -> list[Any]:
        """What is being worked at."""
        return [member.task for member in self.members if member.busy and member.made]

    def give(self, member: Member, task: Any, method: str, *args: Any, seconds: float = math.inf) -> None:
        """Let an idle member do something, for so many seconds at most."""
        member.task, member.busy, member.until = task, True, time.monotonic() + seconds
        member.seat.tell(method, *args)

    def wait(self, seconds: float) -> list[Outcome]:
        """What has come to an end, as soon as something does; may be nothing, after so many seconds or before."""
        busy = [member for member in self.members if member.busy]
        patience = min([member.until - time.monotonic() for member in busy] + [seconds])
        ready = self.house.ready([member.seat for member in busy], max(patience, 0.0)) if busy else []
        found = [self._outcome(member) for member in busy if member.seat in ready]
        now = time.monotonic()
        found += [self._late(member) for member in busy if member.seat not in ready and member.until <= now]
        self.fill()
        return [outcome for outcome in found if outcome is not None]

    def close(self) -> None:
        """End all of them."""
        for member in self.members:
            member.seat.kill()
        self.members.clear()

    def _outcome(self, member: Member) -> Outcome | None:
        task, made = member.task, member.made
        try:
            value = member.seat.answer()
        except RunError as error:
            if member.seat.alive and made:
                member.busy, member.task = False, None
                return Outcome(task, "refused", why=str(error))
            fate: Literal["refused", "died"] = "refused" if member.seat.alive else "died"
            self.drop(member)
            return Outcome(task, fate, why=str(error))
        member.made, member.busy, member.task = True, False, None
        return Outcome(task, "done", value) if made else None

    def _late(self, member: Member) -> Outcome:
        self.drop(member)
        what = "finish" if member.made else "start"
        return Outcome(member.task, "late" if member.made else "died", why=f"it did not {what} in time")

    def drop(self, member: Member) -> None:
        """End one, whatever it does; `fill` replaces it."""
        member.seat.kill()
        self.members.remove(member)
