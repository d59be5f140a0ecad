"""Pools of workers that are replaced when they die, and what a backend that starts them must do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from placewise.errors import RunError

DEATHS_IN_A_ROW = 5
"""Deaths of workers without a result in between after which nothing more is expected of a pool."""
START_LIMIT = 300.0
"""Seconds until a worker must have started. On a cluster it may have to wait for resources."""


class WorkerHandle(Protocol):
    """An object in another process. It answers calls in order until it dies."""

    @property
    def alive(self) -> bool: ...

    def tell(self, method: str, *args: Any) -> None:
        """Call a method without waiting. Calls to a dead worker are dropped."""

    def answer(self) -> Any:
        """Return the result that `Backend.ready` announced. Raises RunError if the call failed or the worker died."""

    def kill(self) -> None:
        """Terminate the worker immediately."""


class Backend(Protocol):
    """Starts workers, on this machine or on a cluster."""

    def start_worker(self, served: str, *args: Any, name: str, measures: bool) -> WorkerHandle:
        """Start a worker that serves an instance of `served` (``module:Class``). Its first answer confirms the start.

        `measures` is true for workers that measure placements, and false for controllers.
        """

    def ready(self, handles: Sequence[WorkerHandle], seconds: float) -> Sequence[WorkerHandle]:
        """Wait until a handle has an answer or its worker died; return those handles, or none after `seconds`."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """How a task ended: `done` with a value, or `refused`, `late` or `died`, with the reason in `why`.

    `task` is None if the worker did not even start.
    """

    task: Any
    status: Literal["done", "refused", "late", "died"]
    value: Any = None
    why: str = ""


@dataclass(slots=True, eq=False)
class PoolMember:
    """A worker of a pool, its current task (None: idle) and its deadline. `sent` is a counter for the pool's owner."""

    handle: WorkerHandle
    until: float
    busy: bool = True
    started: bool = False
    task: Any = None
    sent: int = 0


@dataclass(slots=True, eq=False)
class Pool:
    """`size` workers of one backend. Dead workers are replaced; their task is dropped.

    `served_by(number)` returns the class and arguments of each new worker. `deaths` counts the workers that died, `row`
    those since the last result; `why` is the reason of the last death.
    """

    backend: Backend
    size: int
    served_by: Callable[[int], tuple[Any, ...]]
    name: str
    measures: bool
    members: list[PoolMember] = field(default_factory=list)
    n_started: int = 0
    deaths: int = 0
    row: int = 0
    why: str = ""

    def __post_init__(self) -> None:
        self.fill()

    def fill(self) -> None:
        """Start workers until the pool has its size."""
        while len(self.members) < self.size:
            served, *args = self.served_by(self.n_started)
            name = f"{self.name} {self.n_started}"
            handle = self.backend.start_worker(served, *args, name=name, measures=self.measures)
            self.members.append(PoolMember(handle, time.monotonic() + START_LIMIT))
            self.n_started += 1

    def idle(self) -> list[PoolMember]:
        return [member for member in self.members if not member.busy]

    def tasks(self) -> list[Any]:
        """Tasks in progress."""
        return [member.task for member in self.members if member.busy and member.started]

    def give(self, member: PoolMember, task: Any, method: str, *args: Any, seconds: float = math.inf) -> None:
        """Start a task on an idle member, with a limit of `seconds`."""
        member.task, member.busy, member.until = task, True, time.monotonic() + seconds
        member.handle.tell(method, *args)

    def wait(self, seconds: float) -> list[TaskOutcome]:
        """Wait up to `seconds` for the first tasks to end. The list may be empty."""
        busy = [member for member in self.members if member.busy]
        patience = min([member.until - time.monotonic() for member in busy] + [seconds])
        ready = self.backend.ready([member.handle for member in busy], max(patience, 0.0)) if busy else []
        outcomes = [self._collect(member) for member in busy if member.handle in ready]
        now = time.monotonic()
        outcomes += [self._expire(member) for member in busy if member.handle not in ready and member.until <= now]
        self.fill()
        finished = [outcome for outcome in outcomes if outcome is not None]
        for outcome in finished:
            self.count(outcome)
        return finished

    def scatter(self, n: int, give: Callable[[PoolMember, list[int]], None], seconds: float) -> Iterator[TaskOutcome]:
        """The outcomes of tasks 0 … n − 1 as they end, after waits of at most `seconds`; a `stop_reason` ends it.

        `give(member, waiting)` takes a task out of `waiting` and starts it on an idle member.
        """
        waiting = list(range(n))
        while (waiting or self.tasks()) and not self.stop_reason:
            for member in self.idle()[: len(waiting)]:
                give(member, waiting)
            yield from self.wait(seconds)

    def count(self, outcome: TaskOutcome) -> None:
        """Count a death, as is a worker that did not start, or a result that ends a row of deaths."""
        if outcome.status == "died" or outcome.task is None:
            self.count_deaths(1, outcome.why)
        else:
            self.row = 0

    def count_deaths(self, deaths: int, why: str) -> None:
        """Count deaths without a result between them."""
        self.deaths, self.row, self.why = self.deaths + deaths, self.row + deaths, why

    @property
    def stop_reason(self) -> str:
        """Why nothing more is expected of the pool; empty before `DEATHS_IN_A_ROW`."""
        if self.row < DEATHS_IN_A_ROW:
            return ""
        return f"{self.row} workers died one after the other without a result; the last one: {self.why}"

    def close(self) -> None:
        """Terminate all workers."""
        for member in self.members:
            member.handle.kill()
        self.members.clear()

    def drop(self, member: PoolMember) -> None:
        """Terminate one worker. `fill` replaces it."""
        member.handle.kill()
        self.members.remove(member)

    def _collect(self, member: PoolMember) -> TaskOutcome | None:
        task, started = member.task, member.started
        try:
            value = member.handle.answer()
        except RunError as error:
            if member.handle.alive and started:
                member.busy, member.task = False, None
                return TaskOutcome(task, "refused", why=str(error))
            status: Literal["refused", "died"] = "refused" if member.handle.alive else "died"
            self.drop(member)
            return TaskOutcome(task, status, why=str(error))
        member.started, member.busy, member.task = True, False, None
        return TaskOutcome(task, "done", value) if started else None

    def _expire(self, member: PoolMember) -> TaskOutcome:
        self.drop(member)
        what = "finish" if member.started else "start"
        return TaskOutcome(member.task, "late" if member.started else "died", why=f"it did not {what} in time")
