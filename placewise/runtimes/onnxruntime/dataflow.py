"""The parent's side: it starts the workers, lays tensors out in shared memory, and lets samples flow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from placewise.errors import ClusterError, InputError
from placewise.model.columns import Longs
from placewise.model.graph import Graph
from placewise.processes.arena import Arena
from placewise.processes.worker import START, Worker, answers
from placewise.runtimes.base import Realised
from placewise.runtimes.inputs import Arrays, fresh_inputs
from placewise.runtimes.onnxruntime.wiring import CELL, GO, RUNNING, Region, Role, board_of, laid_out
from placewise.runtimes.onnxruntime.workers import Crew

_SERVER = "placewise.runtimes.onnxruntime.server:Server"
_GLANCE, _NANO = 5e-5, 1e-9
"""Seconds between two looks at whether all workers are at the start; seconds of a nanosecond."""


class Dataflow:
    """Pieces at their workers, ready to run: `Prepared` for the runtime `onnxruntime`.

    `weights` are the bytes of the weights that each worker's pieces hold, by device. A worker that dies, hangs or
    refuses fails the measurement, and all are started again for the next.
    """

    def __init__(self, graph: Graph, crew: Crew, notes: tuple[str, ...], seconds: float) -> None:
        self._graph, self._crew, self._seconds = graph, crew, seconds
        self._workers: tuple[Worker, ...] = ()
        self._closers: list[Callable[[], None]] = []
        self._board_fd = self._data_fd = -1
        self._doors: tuple[int, ...] = ()
        self._layout: tuple[int, int, int] = (0, 0, 0)
        self._regions: Mapping[str, Region] = {}
        self.weights = dict(zip(crew.names, crew.weights, strict=True))
        self.notes = notes
        self.realised = Realised(())
        self.elsewhere = self._start()

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """As `Prepared.run` says."""
        return self.stream([inputs])[0]

    def stream(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[dict[str, npt.NDArray[Any]]]:
        """The outputs of every sample, with so many in flight. Raises RunError, InputError."""
        self._flow(samples, range(len(samples)), in_flight, keep=len(samples))
        return [self._outputs(row, sample) for row, sample in enumerate(samples)]

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """As `Prepared.time` says; a stream is measured between its filling and its draining, which come on top."""
        count = len(samples)
        if in_flight == 1:
            begin, ends = self._flow(samples, range(count), 1, keep=1)
            seconds: list[float] = (np.diff(ends, prepend=begin) * _NANO).tolist()
            return seconds
        order = [row % count for row in range(-in_flight, count + in_flight)]
        _, ends = self._flow(samples, order, in_flight, keep=in_flight)
        return [float(ends[in_flight + count - 1] - ends[in_flight - 1]) * _NANO / count]

    @property
    def resident(self) -> dict[str, int]:
        """Bytes of memory that each worker holds now, by device, shared memory not counted. Raises RunError."""
        self._ready()
        held = self._ask("resident", *[()] * len(self._workers))
        return dict(zip(self._crew.names, held, strict=True))

    @property
    def pids(self) -> dict[str, int]:
        """The process of each worker, by device."""
        self._ready()
        return {worker.name: worker.pid for worker in self._workers}

    def take(self, crew: Crew, notes: tuple[str, ...]) -> None:
        """Other pieces in the same workers. Raises RunError, and InputError for pieces on other devices."""
        if crew.devices != self._crew.devices:
            raise InputError("this placement uses other devices", remedy="prepare it anew")
        self._crew, self._layout, self.notes = crew, (0, 0, 0), notes
        self.weights = dict(zip(crew.names, crew.weights, strict=True))
        if not self._workers or not all(worker.alive for worker in self._workers):
            self.close()
            self.elsewhere = self._start()
            return
        size = max(crew.cells * CELL * 8, os.fstat(self._board_fd).st_size)
        os.ftruncate(self._board_fd, size)
        self._board = board_of(Arena(size, self._board_fd), crew.cells)
        rows = range(len(crew.names))
        self._ask("sit", *[(crew.seat(row, self._board_fd, self._data_fd, self._doors),) for row in rows])
        self.elsewhere = self._load()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.kill()
        for closer in self._closers:
            with suppress(OSError):
                closer()
        self._workers, self._closers, self._layout = (), [], (0, 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> tuple[str, ...]:
        """Start every worker and load its pieces; nodes that run elsewhere than asked."""
        crew = self._crew
        board, data = Arena(crew.cells * CELL * 8), Arena(0)
        doors = tuple(os.eventfd(0) for _ in crew.names)
        self._closers = [board.close, data.close, *(lambda door=door: os.close(door) for door in doors)]
        self._board, self._board_fd = board_of(board, crew.cells), board.fd
        self._data, self._data_fd, self._doors = data, data.fd, doors
        try:
            for row, name in enumerate(crew.names):
                seat, fds = crew.seat(row, board.fd, data.fd, doors), (board.fd, data.fd, *doors)
                self._workers += (Worker(_SERVER, seat, name=name, cores=crew.places[row].cores, fds=fds),)
            lacking = next(filter(None, self._ask("lacks", *[()] * len(crew.names), seconds=START)), None)
            if lacking is not None:
                raise ClusterError(lacking, remedy="install an onnxruntime that has it, or bind the device elsewhere")
            return self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> tuple[str, ...]:
        with self._crew.loaded(self._crew.works) as ready:
            elsewhere = self._ask("load", *[(works,) for works in ready], seconds=max(START, self._seconds))
        return tuple(name for names in elsewhere for name in names)

    def _ready(self) -> None:
        """Start again what failed, or died in the meantime."""
        if not self._workers or not all(worker.alive for worker in self._workers):
            self.close()
            self._start()

    def _ask(self, method: str, *args: tuple[Any, ...], seconds: float | None = None) -> list[Any]:
        """What every worker answers to a question with its own arguments. After a failure all are gone."""
        try:
            for worker, own in zip(self._workers, args, strict=True):
                worker.tell(method, *own)
            return answers(self._workers, seconds or self._seconds, suspects=self._running)
        except BaseException:
            self.close()
            raise

    def _running(self) -> list[Worker]:
        return [worker for row, worker in enumerate(self._workers) if self._board[1 + row] >= RUNNING]

    def _flow(self, samples: Sequence[Arrays], order: Sequence[int], in_flight: int, *, keep: int) -> tuple[int, Longs]:
        """Let samples flow, in this order of `samples`; outputs have `keep` places.

        When it began and when each was complete, ascending, in nanoseconds.
        """
        given = {id(sample): sample for sample in samples}
        place = {key: row for row, key in enumerate(given)}
        self._ready()
        self._lay(len(given), in_flight, keep)
        for key, sample in given.items():
            self._give(sample, place[key])
        which = [place[id(samples[row])] for row in order]
        for cell in range(self._crew.cells):
            self._board[cell] = 0
        try:
            for worker in self._workers:
                worker.tell("stream", len(which), in_flight, which)
            begin = self._go()
            found = answers(self._workers, self._seconds, suspects=self._running)
        except BaseException:
            self.close()
            raise
        return begin, self._ends(len(which), {cell: ends for each in found for cell, ends in each.items()})

    def _lay(self, inputs: int, ring: int, outputs: int) -> None:
        """Give every tensor as many places as it needs, and tell the workers if anything changed."""
        if self._layout == (inputs, ring, outputs):
            return
        size, self._regions = laid_out(self._crew.kinds, inputs, ring, outputs)
        size = max(size, self._data.size)
        os.ftruncate(self._data_fd, size)
        self._data = Arena(size, self._data_fd)
        self._ask("lay", *[(size, self._regions)] * len(self._workers))
        self._layout = inputs, ring, outputs

    def _give(self, sample: Arrays, row: int) -> None:
        """Write a sample's inputs. Raises InputError for what does not fit."""
        wanted = {name: region for name, region in self._regions.items() if region.kind.role is Role.INPUT}
        missing = next((name for name in wanted if name not in sample), None)
        if missing is not None:
            raise InputError(f"the input {missing!r} is missing", remedy="give an array for every input")
        checked = fresh_inputs(self._graph, 0, sample)
        for name, region in wanted.items():
            self._view(region, row)[...] = checked[name]

    def _go(self) -> int:
        """Wait until every worker is at the start, and let them go; the moment when that was."""
        until, links = time.monotonic() + self._seconds, [worker.link for worker in self._workers]
        while not all(self._board[1 + row] for row in range(len(links))):
            if wait(links, _GLANCE) or time.monotonic() > until:
                break  # what is wrong is in the answers
        begin = time.perf_counter_ns()
        self._board[GO] = 1
        for door in self._doors:
            os.eventfd_write(door, 1)
        return begin

    def _ends(self, count: int, found: Mapping[int, Sequence[int]]) -> Longs:
        """When each of `count` samples had left all the pieces that end one, ascending."""
        ends = np.zeros(count, np.int64)
        steps = {work.cell: (work.first, work.step) for works in self._crew.works for work in works}
        for cell, moments in found.items():
            first, step = steps[cell]
            ends[first::step] = np.maximum(ends[first::step], np.array(moments, np.int64))
        return np.sort(ends)

    def _view(self, region: Region, copy: int) -> npt.NDArray[Any]:
        kind = region.kind
        return self._data.view(region.offset + copy * region.stride, kind.shape, kind.dtype)

    def _outputs(self, row: int, sample: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The outputs of the sample in place `row`; an output that is an input is that."""
        tensors, found = self._graph.tensors, {}
        for tensor in np.flatnonzero(tensors.output).tolist():
            name = tensors.name[tensor]
            region = self._regions[name]
            found[name] = (
                np.asarray(sample[name]) if region.kind.role is Role.INPUT else np.array(self._view(region, row))
            )
        return found
