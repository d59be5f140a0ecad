"""An arena: memory that several processes see, without a name in any file system: nothing can be left behind."""

from __future__ import annotations

import math
import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes: a cache line, and what vector units like best."""


class Arena:
    """`size` bytes, shared with every process that is handed `fd`; views of it are numpy arrays.

    The one that makes it gives no `fd`, the others the number that they inherited. It ends with the last process that
    has it open, however that ends.
    """

    def __init__(self, size: int, fd: int | None = None) -> None:
        self.size = max(size, ALIGNMENT)
        self.fd = _anonymous() if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, self.size)
        self._map = mmap.mmap(self.fd, self.size)

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """The array of `shape` that begins at byte `offset`; no copy."""
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)

    def close(self) -> None:
        """Let it go here; views that are still about keep the memory until they go too."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def aligned(size: int) -> int:
    """`size` bytes, rounded up so that what follows is aligned as well."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("placewise")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
