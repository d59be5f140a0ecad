"""What a worker holds: the sessions of its pieces, which it runs as soon as what they read has arrived."""

from __future__ import annotations

import os
import time
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewise.errors import RunError
from placewise.processes.arena import Arena
from placewise.runtimes.onnxruntime.sessions import Opened, before_others, lacking, open_session, share_threads, trim
from placewise.runtimes.onnxruntime.wiring import (
    CELL,
    GO,
    IDLE,
    RUNNING,
    WAITING,
    Region,
    Role,
    Seat,
    Work,
    board_of,
    is_past,
)  # fmt: skip

Slots = tuple[int, int, int]
"""Which copy of inputs, of inner tensors and of outputs a sample uses."""


class Server:
    """One device's worker."""

    def __init__(self, seat: Seat) -> None:
        self.sit(seat)

    def sit(self, seat: Seat) -> None:
        """Take a seat, without pieces."""
        self._seat = seat
        self._board = board_of(Arena(seat.cells * CELL * 8, seat.board), seat.cells)
        self._state = 1 + seat.row
        self._works: list[Work] = []
        self._sessions: list[Opened] = []
        self._bindings: list[dict[Slots, Any]] = []
        self._regions: Mapping[str, Region] = {}
        self._data: Arena | None = None
        self._base, self._copies = 0, (1, 1)

    def lacks(self) -> str:
        """What this worker's device needs and is not installed; "" if there is nothing."""
        return lacking(self._seat)

    def load(self, works: Sequence[Work]) -> tuple[str, ...]:
        """Open a session for every piece; the names of nodes that run on another provider than the seat's."""
        seat = self._seat
        shared = len(works) > 1 and seat.threads > 1 and seat.spin > 0
        if shared:
            share_threads(seat)
        works = sorted(works, key=lambda work: work.number)
        self._sessions = [open_session(work.model, work.name, seat, shared=shared) for work in works]
        self._works = [replace(work, model=b"") for work in works]
        if seat.first:
            before_others(seat.device)
        return tuple(name for session in self._sessions for name in session.elsewhere)

    def lay(self, size: int, regions: Mapping[str, Region]) -> None:
        """Take note of where tensors lie; what was bound is bound anew."""
        self._data, self._regions = Arena(size, self._seat.data), regions
        self._base = self._data.view(0, (self._data.size,), "uint8").ctypes.data
        self._bindings = [{} for _ in self._works]
        copies = {region.kind.role: region.count for region in regions.values()}
        self._copies = copies.get(Role.INNER, 1), copies.get(Role.OUTPUT, 1)
        trim()

    def stream(self, count: int, in_flight: int, which: Sequence[int]) -> dict[int, list[int]]:
        """Run `count` samples, of which sample s is given the inputs ``which[s]``.

        When each sample left the pieces that end one: nanoseconds of the system's steady clock, by cell.
        """
        board, works, seat = self._board, self._works, self._seat
        ends: dict[int, list[int]] = {work.cell: [] for work in works if work.ends}
        for work in works:
            board[work.cell] = work.first
        queue = [(work.first, row) for row, work in enumerate(works) if work.first < count]
        queue.sort()
        board[self._state] = WAITING
        self._wait_for_go()
        rested = time.perf_counter()
        while queue:
            turn = self._ready(queue, in_flight)
            if turn < 0:
                if time.perf_counter() - rested >= seat.spin:
                    os.eventfd_read(seat.doors[seat.row])
                continue
            sample, row = queue.pop(turn)
            work = works[row]
            board[self._state] = RUNNING + work.number
            self._sessions[row].run(self._bound(row, sample, which[sample]))
            if work.ends:
                ends[work.cell].append(time.perf_counter_ns())
            board[work.cell] = sample + work.step
            board[self._state] = WAITING
            for other in work.rings:
                os.eventfd_write(seat.doors[other], 1)
            if sample + work.step < count:
                insort(queue, (sample + work.step, row))
            rested = time.perf_counter()
        board[self._state] = IDLE
        return ends

    def resident(self) -> int:
        """Bytes of memory that this process holds now, without what it shares with the others."""
        trim()
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return (int(fields["VmRSS"].split()[0]) - int(fields["RssShmem"].split()[0])) * 1024

    def _wait_for_go(self) -> None:
        seat, began = self._seat, time.perf_counter()
        while not self._board[GO]:
            if time.perf_counter() - began >= seat.spin:
                os.eventfd_read(seat.doors[seat.row])

    def _ready(self, queue: Sequence[tuple[int, int]], in_flight: int) -> int:
        """The first in the queue, by sample and then by number, that can begin; −1 if there is none."""
        board, works, last = self._board, self._works, self._seat.last
        for turn, (sample, row) in enumerate(queue):
            waits = works[row].waits
            if (
                is_past(board, waits, sample)
                if waits
                else sample < in_flight or is_past(board, last, sample - in_flight)
            ):
                return turn
        return -1

    def _bound(self, row: int, sample: int, given: int) -> Any:
        """What the session reads and writes for a sample, bound to shared memory; made once per combination."""
        work, session = self._works[row], self._sessions[row]
        ring, outputs = self._copies
        slots = (given, sample % ring, sample % outputs)
        known = self._bindings[row]
        if slots not in known or not session.on_host:
            place = dict(zip((Role.INPUT, Role.INNER, Role.OUTPUT), slots, strict=True))
            known[slots] = session.bind(
                *([self._found(name, place) for name in names] for names in (work.reads, work.makes))
            )
        return known[slots]

    def _found(self, name: str, place: Mapping[Role, int]) -> tuple[str, int, tuple[int, ...], int]:
        """Name, element type, shape and address of a tensor's copy."""
        if name not in self._regions:
            raise RunError(f"{name!r} has no place in shared memory")
        region = self._regions[name]
        kind = region.kind
        return name, kind.element, kind.shape, self._base + region.offset + region.stride * place[kind.role]
