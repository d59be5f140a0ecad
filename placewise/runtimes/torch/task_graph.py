"""Tasks on lanes: a thread per lane does, of all tasks whose values are there, the one that comes first."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]
HOST = -1
"""The lane that outputs go to: no device, but host memory."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work for a lane: a call that takes the values `reads` and returns the values `makes`, in these orders."""

    lane: int
    call: Callable[..., Sequence[Any]]
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(slots=True)
class _Sample:
    """One run through all tasks. `here` holds values by (name, lane); `missing` counts what each task waits for."""

    number: int
    missing: list[int]
    readers: dict[tuple[str, int], int]
    left: int
    here: dict[tuple[str, int], Any] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


class Flow:
    """Runs tasks, given in an order in which every value is made before it is read.

    `inside[lane]` is entered by the lane's thread for good; `send` hands a value of one lane to another one (or to
    `HOST`), in the thread of the lane that made it, and `receive` makes it usable in the thread that reads it. Of the
    tasks that can run a lane takes that of the oldest sample, and of these the first in order; with `strict`, the
    tasks of a lane run in order. Any failure ends everything: every later call raises it again.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        inside: Sequence[Callable[[], AbstractContextManager[Any]]],
        outputs: Sequence[str],
        *,
        send: Callable[[Any, int, int], Any],
        receive: Callable[[Any, int], Any],
        strict: bool = False,
    ) -> None:
        self._tasks, self._outputs, self._send, self._receive = tasks, outputs, send, receive
        maker = {name: place for place, task in enumerate(tasks) for name in task.makes}
        self._waiting: list[list[int]] = [[] for _ in tasks]  # tasks that wait for a task
        self._missing = [0] * len(tasks)
        self._targets: list[dict[str, set[int]]] = [{name: set() for name in task.makes} for task in tasks]
        self._given: dict[str, set[int]] = {}
        self._readers: dict[tuple[str, int], int] = {}
        latest: dict[int, int] = {}
        for place, task in enumerate(tasks):
            before = {maker[name] for name in task.reads if name in maker}
            if strict and task.lane in latest:
                before.add(latest[task.lane])
            latest[task.lane] = place
            for other in before:
                self._waiting[other].append(place)
            self._missing[place] = len(before)
            for name in task.reads:
                targets = self._targets[maker[name]][name] if name in maker else self._given.setdefault(name, set())
                targets.add(task.lane)
                self._readers[name, task.lane] = self._readers.get((name, task.lane), 0) + 1
        for name in outputs:
            targets = self._targets[maker[name]][name] if name in maker else self._given.setdefault(name, set())
            targets.add(HOST)
        self._lock = threading.Lock()
        self._ready: list[list[tuple[int, int, _Sample]]] = [[] for _ in inside]
        self._wake = [threading.Condition(self._lock) for _ in inside]
        self._pending: deque[tuple[_Sample, Values]] = deque()
        self._failure: BaseException | None = None
        self._running: list[_Sample] = []
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, args=(lane, enter), daemon=True) for lane, enter in enumerate(inside)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, samples: Sequence[Values], in_flight: int = 1) -> tuple[list[dict[str, Any]], float]:
        """The outputs of each sample, and the seconds from the first start to the last output.

        At most `in_flight` samples are on their way at once.
        """
        made = [_Sample(k, list(self._missing), dict(self._readers), len(self._tasks)) for k in range(len(samples))]
        begin = time.perf_counter()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._pending.extend(zip(made, samples, strict=True))
            for _ in range(in_flight):
                self._start_next()
        outputs = []
        for sample in made:
            sample.done.wait()
            if self._failure is not None:
                raise self._failure
            outputs.append({name: self._receive(sample.here[name, HOST], HOST) for name in self._outputs})
        return outputs, time.perf_counter() - begin

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            self._stopped = True
            for wake in self._wake:
                wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _start_next(self) -> None:
        if not self._pending:
            return
        sample, given = self._pending.popleft()
        self._running.append(sample)
        for name, lanes in self._given.items():
            for lane in lanes:
                sample.here[name, lane] = self._send(given[name], HOST, lane)
        for place, missing in enumerate(sample.missing):
            if not missing:
                self._push(sample, place)
        if not self._tasks:
            self._finish(sample)

    def _push(self, sample: _Sample, place: int) -> None:
        lane = self._tasks[place].lane
        heapq.heappush(self._ready[lane], (sample.number, place, sample))
        self._wake[lane].notify()

    def _work(self, lane: int, enter: Callable[[], AbstractContextManager[Any]]) -> None:
        try:
            with enter():
                while True:
                    with self._lock:
                        while not self._ready[lane] and not self._stopped:
                            self._wake[lane].wait()
                        if self._stopped:
                            return
                        _, place, sample = heapq.heappop(self._ready[lane])
                    self._do(lane, place, sample)
        except BaseException as error:
            with self._lock:
                self._failure = error
                for sample in [*self._running, *(sample for sample, _ in self._pending)]:
                    sample.done.set()

    def _do(self, lane: int, place: int, sample: _Sample) -> None:
        task, here = self._tasks[place], sample.here
        results = task.call(*[self._receive(here[name, lane], lane) for name in task.reads])
        sent = {
            (name, to): value if to == lane else self._send(value, lane, to)
            for name, value in zip(task.makes, results, strict=True)
            for to in self._targets[place][name]
        }
        with self._lock:
            here.update(sent)
            for name in task.reads:
                sample.readers[name, lane] -= 1
                if not sample.readers[name, lane]:
                    del here[name, lane]
            for other in self._waiting[place]:
                sample.missing[other] -= 1
                if not sample.missing[other]:
                    self._push(sample, other)
            sample.left -= 1
            if not sample.left:
                self._finish(sample)

    def _finish(self, sample: _Sample) -> None:
        self._running.remove(sample)
        sample.done.set()
        self._start_next()
