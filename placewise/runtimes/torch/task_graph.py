"""Tasks on lanes: a thread per lane runs, of all tasks whose values have arrived, the one that comes first."""

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
"""The lane of outputs: host memory instead of a device."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """A task of a lane: a call that takes the values `reads` and returns the values `makes`, in these orders."""

    lane: int
    call: Callable[..., Sequence[Any]]
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(slots=True)
class _Sample:
    """One run through all tasks.

    `missing` counts the tasks that each task waits for, `readers` the coming reads of each value by (name, lane),
    `left` the unfinished tasks. `values` are those that have arrived, by (name, lane).
    """

    number: int
    missing: list[int]
    readers: dict[tuple[str, int], int]
    left: int
    values: dict[tuple[str, int], Any] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


class TaskGraph:
    """Runs tasks, given in an order in which every value is made before it is read.

    The thread of a lane enters ``contexts[lane]`` once. `send` transfers a value from one lane to another, or to
    `HOST`, in the thread of the lane that made it; `receive` makes it usable in the thread that reads it; `wait`
    returns when a lane has computed what was called there, and only then its task is done. Of its ready tasks a lane
    runs that of the oldest sample, and of these the first in order; with `strict`, a lane runs its tasks in order.
    After a failure, this call and all later calls of `run` raise it.
    """

    def __init__(
        self,
        tasks: Sequence[LaneTask],
        contexts: Sequence[Callable[[], AbstractContextManager[Any]]],
        outputs: Sequence[str],
        *,
        send: Callable[[Any, int, int], Any],
        receive: Callable[[Any, int], Any],
        wait: Callable[[int], None] = lambda lane: None,
        strict: bool = False,
    ) -> None:
        self._tasks, self._outputs, self._send, self._receive, self._wait = tasks, outputs, send, receive, wait
        self._link_tasks(strict)
        self._lock = threading.Lock()
        self._ready: list[list[tuple[int, int, _Sample]]] = [[] for _ in contexts]
        self._wake = [threading.Condition(self._lock) for _ in contexts]
        self._pending: deque[tuple[_Sample, Values]] = deque()
        self._failure: BaseException | None = None
        self._running: list[_Sample] = []
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run_lane, args=(lane, enter), daemon=True)
            for lane, enter in enumerate(contexts)
        ]
        for thread in self._threads:
            thread.start()

    def _link_tasks(self, strict: bool) -> None:
        """Find the tasks that each task waits for, and the lanes that each value is sent to."""
        tasks = self._tasks
        maker = {name: row for row, task in enumerate(tasks) for name in task.makes}
        self._waiting: list[list[int]] = [[] for _ in tasks]  # by task, the tasks that wait for it
        self._missing = [0] * len(tasks)
        self._targets: list[dict[str, set[int]]] = [{name: set() for name in task.makes} for task in tasks]
        self._inputs: dict[str, set[int]] = {}
        self._readers: dict[tuple[str, int], int] = {}
        latest: dict[int, int] = {}

        def add_target(name: str, lane: int) -> None:
            lanes = self._targets[maker[name]][name] if name in maker else self._inputs.setdefault(name, set())
            lanes.add(lane)

        for row, task in enumerate(tasks):
            sources = {maker[name] for name in task.reads if name in maker}
            if strict and task.lane in latest:
                sources.add(latest[task.lane])
            latest[task.lane] = row
            for source in sources:
                self._waiting[source].append(row)
            self._missing[row] = len(sources)
            for name in task.reads:
                add_target(name, task.lane)
                self._readers[name, task.lane] = self._readers.get((name, task.lane), 0) + 1
        for name in self._outputs:
            add_target(name, HOST)

    def run(self, samples: Sequence[Values], in_flight: int = 1) -> tuple[list[dict[str, Any]], float]:
        """The outputs of each sample, and the seconds from the first start to the last output.

        At most `in_flight` samples run at the same time.
        """
        runs = [
            _Sample(number, list(self._missing), dict(self._readers), len(self._tasks))
            for number in range(len(samples))
        ]
        begin = time.perf_counter()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._pending.extend(zip(runs, samples, strict=True))
        for _ in range(in_flight):
            self._start_next()
        outputs = []
        for sample in runs:
            sample.done.wait()
            if self._failure is not None:
                raise self._failure
            outputs.append({name: self._receive(sample.values[name, HOST], HOST) for name in self._outputs})
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
        """Start the next sample, if there is one. Its inputs are sent without the lock, which all lanes need."""
        while True:
            with self._lock:
                if not self._pending:
                    return
                sample, inputs = self._pending.popleft()
                self._running.append(sample)
            sent = {
                (name, lane): self._send(inputs[name], HOST, lane)
                for name, lanes in self._inputs.items()
                for lane in lanes
            }
            with self._lock:
                sample.values.update(sent)
                for row, missing in enumerate(list(sample.missing)):
                    if not missing:
                        self._push(sample, row)
                if self._tasks:
                    return
                self._finish(sample)

    def _push(self, sample: _Sample, row: int) -> None:
        lane = self._tasks[row].lane
        heapq.heappush(self._ready[lane], (sample.number, row, sample))
        self._wake[lane].notify()

    def _run_lane(self, lane: int, enter: Callable[[], AbstractContextManager[Any]]) -> None:
        try:
            with enter():
                while True:
                    with self._lock:
                        while not self._ready[lane] and not self._stopped:
                            self._wake[lane].wait()
                        if self._stopped:
                            return
                        _, row, sample = heapq.heappop(self._ready[lane])
                    self._run_task(lane, row, sample)
        except BaseException as error:
            with self._lock:
                self._failure = error
                for sample in [*self._running, *(sample for sample, _ in self._pending)]:
                    sample.done.set()

    def _run_task(self, lane: int, row: int, sample: _Sample) -> None:
        task, values = self._tasks[row], sample.values
        results = task.call(*[self._receive(values[name, lane], lane) for name in task.reads])
        sent = {
            (name, target): value if target == lane else self._send(value, lane, target)
            for name, value in zip(task.makes, results, strict=True)
            for target in self._targets[row][name]
        }
        self._wait(lane)
        with self._lock:
            values.update(sent)
            for name in task.reads:
                sample.readers[name, lane] -= 1
                if not sample.readers[name, lane]:
                    del values[name, lane]
            for other in self._waiting[row]:
                sample.missing[other] -= 1
                if not sample.missing[other]:
                    self._push(sample, other)
            sample.left -= 1
            finished = not sample.left
            if finished:
                self._finish(sample)
        if finished:
            self._start_next()

    def _finish(self, sample: _Sample) -> None:
        self._running.remove(sample)
        sample.done.set()
