"""Measure the memory of a machine: copies by one core and by all cores, and tensors passed from core to core."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from placewise.errors import RunError
from placewise.processes.shared_memory import SharedMemory
from placewise.profiling.servers.window import TimeWindow, time_in_turns

SEEN, SENT, READ = 0, 8, 16
"""Cells of the board, 64 bytes apart: when the reader saw the tensor and had read it, the number of the tensor that the
writer has sent, and the number of the tensor that the reader has read."""
BOARD = 4096
"""Bytes at the start of the shared memory that hold the board."""
PATIENCE = 10.0
"""Seconds to wait for the other core."""


class MemoryServer:
    """One core of the machine, with memory that it shares with the others."""

    def __init__(self, fd: int, size: int) -> None:
        self._memory = SharedMemory(BOARD + size, fd)
        self._times: Any = self._memory.view(0, (BOARD // 16,), np.float64)
        numbers: Any = self._memory.view(BOARD // 2, (BOARD // 16,), np.int64)
        self._numbers: Any = memoryview(numbers)

    def copies(self, size: int, window: TimeWindow) -> tuple[float, ...]:
        """Seconds of copies of `size` bytes in the memory of this process; each byte is read and written once."""
        source, target = np.ones(size // 8), np.zeros(size // 8)
        (times,) = time_in_turns([lambda: np.copyto(target, source)], window)
        return tuple(times)

    def write(self, size: int, count: int) -> list[tuple[float, float]]:
        """Write and pass `count` tensors of `size` bytes: the seconds until each was seen, and to read it."""
        tensor, seconds = self._tensor(size), []
        for number in range(1, count + 1):
            tensor[:] = number
            sent = time.perf_counter()
            self._numbers[SENT] = number
            self._wait(READ, number)
            seen, read = float(self._times[SEEN]), float(self._times[SEEN + 1])
            seconds.append((seen - sent, read - seen))
        self._numbers[SENT] = self._numbers[READ] = 0
        return seconds

    def read(self, size: int, count: int) -> None:
        """The other side of `write`: wait for each tensor and copy it."""
        tensor, own = self._tensor(size), np.zeros(size // 8)
        for number in range(1, count + 1):
            self._wait(SENT, number)
            seen = time.perf_counter()
            np.copyto(own, tensor)
            self._times[SEEN], self._times[SEEN + 1] = seen, time.perf_counter()
            self._numbers[READ] = number

    def _tensor(self, size: int) -> Any:
        return self._memory.view(BOARD, (size // 8,), np.float64)

    def _wait(self, cell: int, number: int) -> None:
        numbers, begin = self._numbers, time.monotonic()
        while numbers[cell] != number:
            if time.monotonic() - begin > PATIENCE:
                raise RunError("the other core does not answer")
