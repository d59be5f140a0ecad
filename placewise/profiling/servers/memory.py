"""What the memory of a machine does for its cores: copies by one and by all, and tensors handed from core to core."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from placewise.errors import RunError
from placewise.processes.arena import Arena
from placewise.profiling.servers.window import Window, in_turns

SEEN, TURN, DONE = 0, 8, 16
"""Cells of the board, 64 bytes apart: when the reader saw the tensor and had read it, whose turn it is, and answers."""
BOARD = 4096
"""Bytes at the beginning of the arena that hold the board."""
PATIENCE = 10.0
"""Seconds without a sign from the other side."""


class MemoryServer:
    """One core of the machine, with an arena that it shares with the others."""

    def __init__(self, fd: int, size: int) -> None:
        self._arena = Arena(BOARD + size, fd)
        self._marks: Any = self._arena.view(0, (BOARD // 16,), np.float64)
        turns: Any = self._arena.view(BOARD // 2, (BOARD // 16,), np.int64)
        self._turn: Any = memoryview(turns)

    def copies(self, size: int, window: Window) -> tuple[float, ...]:
        """Seconds of copies of `size` bytes, each read and written once, in memory of its own."""
        source, target = np.ones(size // 8), np.zeros(size // 8)
        (times,) = in_turns([lambda: np.copyto(target, source)], window)
        return tuple(times)

    def write(self, size: int, times: int) -> list[tuple[float, float]]:
        """Make a tensor of `size` bytes and hand it over, so many times: seconds until it was seen, and to read it."""
        tensor, found = self._tensor(size), []
        for number in range(1, times + 1):
            tensor[:] = number
            handed = time.perf_counter()
            self._turn[TURN] = number
            self._wait(DONE, number)
            seen, read = float(self._marks[SEEN]), float(self._marks[SEEN + 1])
            found.append((seen - handed, read - seen))
        self._turn[TURN] = self._turn[DONE] = 0
        return found

    def read(self, size: int, times: int) -> None:
        """The other side of `write`: wait for the tensor and copy it."""
        tensor, own = self._tensor(size), np.zeros(size // 8)
        for number in range(1, times + 1):
            self._wait(TURN, number)
            seen = time.perf_counter()
            np.copyto(own, tensor)
            self._marks[SEEN], self._marks[SEEN + 1] = seen, time.perf_counter()
            self._turn[DONE] = number

    def _tensor(self, size: int) -> Any:
        return self._arena.view(BOARD, (size // 8,), np.float64)

    def _wait(self, cell: int, number: int) -> None:
        turn, begin = self._turn, time.monotonic()
        while turn[cell] != number:
            if time.monotonic() - begin > PATIENCE:
                raise RunError("the other core does not answer")
