"""The object in a worker: the sessions of its pieces, each of which runs as soon as its inputs have arrived."""

from __future__ import annotations

import os
import time
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewise.errors import RunError
from placewise.processes.shared_memory import SharedMemory
from placewise.runtimes.onnxruntime.sessions import (
    PieceSession,
    describe_missing_provider,
    open_session,
    raise_priority,
    share_threads,
    trim_heap,
)
from placewise.runtimes.onnxruntime.wiring import (
    IDLE,
    RUNNING,
    START_FLAG,
    WAITING,
    PieceTask,
    Region,
    Role,
    WorkerSpec,
    counter_bytes,
    is_finished,
    view_counters,
)

Slots = tuple[int, int, int]
"""Which copy of inputs, of inner tensors and of outputs a sample uses."""


class PieceServer:
    """The worker of one device."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.configure(spec)

    def configure(self, spec: WorkerSpec) -> None:
        """Take a new specification and drop all pieces."""
        self._spec = spec
        memory = SharedMemory(counter_bytes(spec.n_counters), spec.counters_fd)
        self._counters = view_counters(memory, spec.n_counters)
        self._state = 1 + spec.row
        self._tasks: list[PieceTask] = []
        self._sessions: list[PieceSession] = []
        self._bindings: list[dict[Slots, Any]] = []
        self._regions: Mapping[str, Region] = {}
        self._tensors: SharedMemory | None = None
        self._base, self._copies = 0, (1, 1)

    def missing_provider(self) -> str:
        """Which execution provider is missing, as a sentence; "" if none is."""
        return describe_missing_provider(self._spec)

    def load(self, tasks: Sequence[PieceTask]) -> tuple[str, ...]:
        """Open a session for every piece; the names of nodes that run on another provider than the specified one."""
        spec = self._spec
        shared = len(tasks) > 1 and spec.threads > 1 and spec.spin > 0
        if shared:
            share_threads(spec)
        tasks = sorted(tasks, key=lambda task: task.number)
        self._sessions = [open_session(task.model, task.name, spec, shared=shared) for task in tasks]
        self._tasks = [replace(task, model=b"") for task in tasks]
        if spec.first:
            raise_priority(spec.device)
        return tuple(name for session in self._sessions for name in session.elsewhere)

    def map_tensors(self, size: int, regions: Mapping[str, Region]) -> None:
        """Take over where tensors lie in shared memory, and drop all bindings."""
        self._tensors, self._regions = SharedMemory(size, self._spec.tensors_fd), regions
        self._base = self._tensors.view(0, (self._tensors.size,), "uint8").ctypes.data
        self._bindings = [{} for _ in self._tasks]
        copies = {region.tensor.role: region.count for region in regions.values()}
        self._copies = copies.get(Role.INNER, 1), copies.get(Role.OUTPUT, 1)
        trim_heap()

    def stream(self, count: int, in_flight: int, which: Sequence[int]) -> dict[int, list[int]]:
        """Run `count` samples; sample s reads the inputs ``which[s]``.

        Returns, by counter, when each sample left the pieces that end one, in nanoseconds of the system's steady clock.
        """
        counters, tasks, spec = self._counters, self._tasks, self._spec
        ends: dict[int, list[int]] = {task.counter: [] for task in tasks if task.ends}
        for task in tasks:
            counters[task.counter] = task.first
        queue = sorted((task.first, row) for row, task in enumerate(tasks) if task.first < count)
        counters[self._state] = WAITING
        self._wait_for_start()
        idle_since = time.perf_counter()
        while queue:
            turn = self._find_ready(queue, in_flight)
            if turn < 0:
                if time.perf_counter() - idle_since >= spec.spin:
                    os.eventfd_read(spec.eventfds[spec.row])
                continue
            sample, row = queue.pop(turn)
            task = tasks[row]
            counters[self._state] = RUNNING + task.number
            self._sessions[row].run(self._bind(row, sample, which[sample]))
            if task.ends:
                ends[task.counter].append(time.perf_counter_ns())
            counters[task.counter] = sample + task.step
            counters[self._state] = WAITING
            for other in task.signals:
                os.eventfd_write(spec.eventfds[other], 1)
            if sample + task.step < count:
                insort(queue, (sample + task.step, row))
            idle_since = time.perf_counter()
        counters[self._state] = IDLE
        return ends

    def resident(self) -> int:
        """Bytes of memory that this process holds, without memory shared with other processes."""
        trim_heap()
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return (int(fields["VmRSS"].split()[0]) - int(fields["RssShmem"].split()[0])) * 1024

    def _wait_for_start(self) -> None:
        spec, began = self._spec, time.perf_counter()
        while not self._counters[START_FLAG]:
            if time.perf_counter() - began >= spec.spin:
                os.eventfd_read(spec.eventfds[spec.row])

    def _find_ready(self, queue: Sequence[tuple[int, int]], in_flight: int) -> int:
        """The position of the first (sample, task) in the queue that can start; −1 if none can."""
        counters, tasks, last = self._counters, self._tasks, self._spec.last
        for turn, (sample, row) in enumerate(queue):
            waits = tasks[row].waits
            if waits:
                ready = is_finished(counters, waits, sample)
            else:
                ready = sample < in_flight or is_finished(counters, last, sample - in_flight)
            if ready:
                return turn
        return -1

    def _bind(self, row: int, sample: int, inputs: int) -> Any:
        """The inputs and outputs of a session for a sample, bound to shared memory; kept per combination of slots."""
        task, session = self._tasks[row], self._sessions[row]
        ring, outputs = self._copies
        slots = (inputs, sample % ring, sample % outputs)
        bindings = self._bindings[row]
        if slots not in bindings or not session.on_host:
            copy = dict(zip((Role.INPUT, Role.INNER, Role.OUTPUT), slots, strict=True))
            reads, makes = ([self._locate(name, copy) for name in names] for names in (task.reads, task.makes))
            bindings[slots] = session.bind(reads, makes)
        return bindings[slots]

    def _locate(self, name: str, copy: Mapping[Role, int]) -> tuple[str, int, tuple[int, ...], int]:
        """Name, element type, shape and address of the copy of a tensor."""
        if name not in self._regions:
            raise RunError(f"{name!r} has no place in shared memory")
        region = self._regions[name]
        tensor = region.tensor
        return name, tensor.element, tensor.shape, self._base + region.offset + region.stride * copy[tensor.role]
