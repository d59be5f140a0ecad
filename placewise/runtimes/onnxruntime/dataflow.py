"""The parent's side: start the workers, lay tensors out in shared memory, and stream samples through the pieces."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.errors import ClusterError, InputError
from placewise.model.columns import Longs
from placewise.model.graph import Graph
from placewise.processes.shared_memory import SharedMemory
from placewise.processes.worker import START, Worker, collect_answers
from placewise.runtimes.base import Closing, Realised
from placewise.runtimes.inputs import Arrays, fresh_inputs
from placewise.runtimes.onnxruntime.wiring import (
    RUNNING,
    START_FLAG,
    Region,
    Role,
    counter_bytes,
    lay_out_tensors,
    view_counters,
)
from placewise.runtimes.onnxruntime.worker_specs import DataflowSpec

_SERVER = "placewise.runtimes.onnxruntime.server:PieceServer"
_POLL, _NANO = 5e-5, 1e-9
"""Seconds between two checks whether all workers are ready to start; seconds of a nanosecond."""


class Dataflow(Closing):
    """Pieces in their workers, ready to run: `PreparedPlacement` of the runtime `onnxruntime`.

    If a worker dies, hangs or fails, the measurement fails, and all workers are restarted for the next one.
    """

    def __init__(self, graph: Graph, spec: DataflowSpec, notes: tuple[str, ...], seconds: float) -> None:
        self._graph, self._seconds = graph, seconds
        self._workers: tuple[Worker, ...] = ()
        self._closers: list[Callable[[], None]] = []
        self._counters_fd = self._tensors_fd = -1
        self._eventfds: tuple[int, ...] = ()
        self._layout: tuple[int, int, int] = (0, 0, 0)
        self._regions: Mapping[str, Region] = {}
        self.realised = Realised(())
        self._take(spec, notes)
        self.elsewhere = self._start()

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        return self.stream([inputs])[0]

    def stream(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[dict[str, npt.NDArray[Any]]]:
        """The outputs of every sample, with `in_flight` samples at the same time. Raises RunError, InputError."""
        self._run_samples(samples, range(len(samples)), in_flight, keep=len(samples))
        return [self._read_outputs(row, sample) for row, sample in enumerate(samples)]

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """As `PreparedPlacement.time`; a stream is measured without its filling and its draining."""
        count = len(samples)
        if in_flight == 1:
            begin, ends = self._run_samples(samples, range(count), 1, keep=1)
            seconds: list[float] = (np.diff(ends, prepend=begin) * _NANO).tolist()
            return seconds
        order = [row % count for row in range(-in_flight, count + in_flight)]
        _, ends = self._run_samples(samples, order, in_flight, keep=in_flight)
        return [float(ends[in_flight + count - 1] - ends[in_flight - 1]) * _NANO / count]

    @property
    def resident(self) -> dict[str, int]:
        """Bytes of memory that each worker holds, by device, without shared memory. Raises RunError."""
        self._restart_if_dead()
        sizes = self._ask("resident", *[()] * len(self._workers))
        return dict(zip(self._spec.names, sizes, strict=True))

    @property
    def pids(self) -> dict[str, int]:
        """The process of each worker, by device."""
        self._restart_if_dead()
        return {worker.name: worker.pid for worker in self._workers}

    def replace_pieces(self, spec: DataflowSpec, notes: tuple[str, ...]) -> None:
        """Load other pieces into the same workers. Raises RunError, and InputError for pieces on other devices."""
        if spec.devices != self._spec.devices:
            raise InputError("this placement uses other devices", remedy="prepare it anew")
        self._take(spec, notes)
        if not self._is_alive():
            self.close()
            self.elsewhere = self._start()
            return
        size = max(counter_bytes(spec.n_counters), os.fstat(self._counters_fd).st_size)
        os.ftruncate(self._counters_fd, size)
        self._counters = view_counters(SharedMemory(size, self._counters_fd), spec.n_counters)
        fds = self._counters_fd, self._tensors_fd, self._eventfds
        self._ask("configure", *[(spec.worker(row, *fds),) for row in range(len(spec.names))])
        self.elsewhere = self._load()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.kill()
        for closer in self._closers:
            with suppress(OSError):
                closer()
        self._workers, self._closers, self._layout = (), [], (0, 0, 0)

    def _take(self, spec: DataflowSpec, notes: tuple[str, ...]) -> None:
        self._spec, self.notes = spec, notes
        self._layout = 0, 0, 0

    def _start(self) -> tuple[str, ...]:
        """Start every worker and load its pieces; the nodes that run elsewhere than asked."""
        spec = self._spec
        counters, tensors = SharedMemory(counter_bytes(spec.n_counters)), SharedMemory(0)
        eventfds = tuple(os.eventfd(0) for _ in spec.names)
        self._closers = [counters.close, tensors.close, *(lambda fd=fd: os.close(fd) for fd in eventfds)]
        self._counters, self._counters_fd = view_counters(counters, spec.n_counters), counters.fd
        self._tensors, self._tensors_fd, self._eventfds = tensors, tensors.fd, eventfds
        fds = (counters.fd, tensors.fd, *eventfds)
        try:
            for row, name in enumerate(spec.names):
                own = spec.worker(row, counters.fd, tensors.fd, eventfds)
                place = spec.places[row]
                worker = Worker(_SERVER, own, name=name, cores=place.cores, quota=place.quota, fds=fds)
                self._workers += (worker,)
            missing = next(filter(None, self._ask("missing_provider", *[()] * len(spec.names), seconds=START)), None)
            if missing is not None:
                raise ClusterError(missing, remedy="install an onnxruntime that has it, or bind the device elsewhere")
            return self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> tuple[str, ...]:
        with self._spec.load_models(self._spec.tasks) as tasks:
            elsewhere = self._ask("load", *[(own,) for own in tasks], seconds=max(START, self._seconds))
        return tuple(name for names in elsewhere for name in names)

    def _is_alive(self) -> bool:
        return bool(self._workers) and all(worker.alive for worker in self._workers)

    def _restart_if_dead(self) -> None:
        if not self._is_alive():
            self.close()
            self._start()

    def _ask(self, method: str, *args: tuple[Any, ...], seconds: float | None = None) -> list[Any]:
        """The answer of every worker to a request with its own arguments. A failure ends all workers."""
        try:
            for worker, own in zip(self._workers, args, strict=True):
                worker.tell(method, *own)
            return collect_answers(self._workers, seconds or self._seconds, suspects=self._running_workers)
        except BaseException:
            self.close()
            raise

    def _running_workers(self) -> list[Worker]:
        return [worker for row, worker in enumerate(self._workers) if self._counters[1 + row] >= RUNNING]

    def _run_samples(
        self, samples: Sequence[Arrays], order: Sequence[int], in_flight: int, *, keep: int
    ) -> tuple[int, Longs]:
        """Run `samples` in this order, with room for `keep` outputs.

        When the stream began, and when each sample was complete, ascending, in nanoseconds.
        """
        distinct = {id(sample): sample for sample in samples}
        slot = {key: row for row, key in enumerate(distinct)}
        self._restart_if_dead()
        self._allocate_tensors(len(distinct), in_flight, keep)
        for key, sample in distinct.items():
            self._write_inputs(sample, slot[key])
        which = [slot[id(samples[row])] for row in order]
        for counter in range(self._spec.n_counters):
            self._counters[counter] = 0
        try:
            for worker in self._workers:
                worker.tell("stream", len(which), in_flight, which)
            begin = self._release_workers()
            answers = collect_answers(self._workers, self._seconds, suspects=self._running_workers)
        except BaseException:
            self.close()
            raise
        ends = {counter: moments for answer in answers for counter, moments in answer.items()}
        return begin, self._completion_times(len(which), ends)

    def _allocate_tensors(self, inputs: int, ring: int, outputs: int) -> None:
        """Make room for the given number of copies of each role, and tell the workers if the layout changed."""
        if self._layout == (inputs, ring, outputs):
            return
        size, self._regions = lay_out_tensors(self._spec.tensors, inputs, ring, outputs)
        size = max(size, self._tensors.size)
        os.ftruncate(self._tensors_fd, size)
        self._tensors = SharedMemory(size, self._tensors_fd)
        self._ask("map_tensors", *[(size, self._regions)] * len(self._workers))
        self._layout = inputs, ring, outputs

    def _write_inputs(self, sample: Arrays, row: int) -> None:
        """Write the inputs of a sample. Raises InputError for a missing or unsuitable array."""
        inputs = {name: region for name, region in self._regions.items() if region.tensor.role is Role.INPUT}
        missing = next((name for name in inputs if name not in sample), None)
        if missing is not None:
            raise InputError(f"the input {missing!r} is missing", remedy="give an array for every input")
        arrays = fresh_inputs(self._graph, 0, sample)
        for name, region in inputs.items():
            self._view(region, row)[...] = arrays[name]

    def _release_workers(self) -> int:
        """Wait until every worker is ready, let all of them start, and return that moment in nanoseconds."""
        until, links = time.monotonic() + self._seconds, [worker.link for worker in self._workers]
        while not all(self._counters[1 + row] for row in range(len(links))):
            if wait(links, _POLL) or time.monotonic() > until:
                break  # the answers report what is wrong
        begin = time.perf_counter_ns()
        self._counters[START_FLAG] = 1
        for eventfd in self._eventfds:
            os.eventfd_write(eventfd, 1)
        return begin

    def _completion_times(self, count: int, ends: Mapping[int, Sequence[int]]) -> Longs:
        """When each of `count` samples had left all the pieces that end one, ascending."""
        complete = np.zeros(count, np.int64)
        steps = {task.counter: (task.first, task.step) for own in self._spec.tasks for task in own}
        for counter, moments in ends.items():
            first, step = steps[counter]
            complete[first::step] = np.maximum(complete[first::step], np.array(moments, np.int64))
        return np.sort(complete)

    def _view(self, region: Region, copy: int) -> npt.NDArray[Any]:
        tensor = region.tensor
        return self._tensors.view(region.offset + copy * region.stride, tensor.shape, tensor.dtype)

    def _read_outputs(self, row: int, sample: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The outputs of the sample in slot `row`; an output that is an input of the model is taken from the sample."""
        tensors, outputs = self._graph.tensors, {}
        for tensor in np.flatnonzero(tensors.output).tolist():
            name = tensors.name[tensor]
            region = self._regions[name]
            is_input = region.tensor.role is Role.INPUT
            outputs[name] = np.asarray(sample[name]) if is_input else np.array(self._view(region, row))
        return outputs
