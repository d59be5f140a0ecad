"""Anonymous memory that several processes share; it has no name in any file system, so nothing is left behind."""

from __future__ import annotations

import math
import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes of a cache line, which also suits vector units."""


class SharedMemory:
    """`size` bytes, shared with every process that inherits `fd`; views of them are numpy arrays.

    The creating process passes no `fd`; the others pass the descriptor that they inherited. The memory is released when
    the last process that has it open ends, in whatever way.
    """

    def __init__(self, size: int, fd: int | None = None) -> None:
        self.size = max(size, ALIGNMENT)
        self.fd = _open_anonymous_file() if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, self.size)
        self._map = mmap.mmap(self.fd, self.size)

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """The array of `shape` that starts at byte `offset`, without a copy."""
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)

    def close(self) -> None:
        """Close the descriptor; existing views keep the memory alive."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def align_up(size: int) -> int:
    """Round `size` bytes up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _open_anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("placewise")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
