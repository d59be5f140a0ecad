"""The arena of ONNX Runtime: regions of system memory that are allocated in chunks, best fit first.

A chunk is split only if it is twice as large as requested, or 128 MiB larger; else all of it is in use. Free neighbours
are merged. As in onnxruntime/core/framework/bfc_arena.cc, after TensorFlow's allocator.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from placewise.runtimes.onnxruntime.memory.buffers import Span

_ALIGNED = 256
_WASTE = 128 << 20
_FIRST_REGION = 1 << 20
_REGION_DISTANCE = 1 << 48


class ArenaUsage(NamedTuple):
    """The most bytes in use at once, the bytes that were ever used, and the bytes taken from the system."""

    in_use: int
    touched: int
    held: int


def simulate_arena(spans: Sequence[Span], *, doubling: bool = True) -> ArenaUsage:
    """The usage of an arena that allocates these buffers in their order.

    With `doubling`, regions double in size from 1 MiB on, as by default; else each is as large as requested.
    """
    chunks = _ChunkAllocator(doubling)
    at: dict[int, int] = {}
    freed: dict[int, list[int]] = {}
    number = -1
    for row, span in enumerate(spans):
        while number + 1 < span.first:
            number += 1
            for other in freed.pop(number, ()):
                chunks.release(at.pop(other))
        if span.nbytes:
            at[row] = chunks.allocate(span.nbytes)
            freed.setdefault(span.last, []).append(row)
    return ArenaUsage(chunks.peak, sum(chunks.reached), chunks.held)


class _ChunkAllocator:
    """Chunks by address; regions are far apart, so that chunks of different regions are no neighbours."""

    def __init__(self, doubling: bool) -> None:
        self._doubling, self._region = doubling, _FIRST_REGION
        self.reached: list[int] = []  # bytes from the start of each region that were ever used
        self._size: dict[int, int] = {}
        self._start: dict[int, int] = {}  # the start of each chunk by its end
        self._free: list[tuple[int, int]] = []  # sorted: size, address
        self._in_use = self.peak = self.held = 0

    def allocate(self, nbytes: int) -> int:
        requested = -(-nbytes // _ALIGNED) * _ALIGNED
        row = bisect_left(self._free, (requested, -1))
        if row == len(self._free):
            self._grow(requested)
            row = bisect_left(self._free, (requested, -1))
        size, address = self._free.pop(row)
        if size >= 2 * requested or size - requested >= _WASTE:
            self._put(address, requested)
            self._put(address + requested, size - requested)
            insort(self._free, (size - requested, address + requested))
        region, offset = divmod(address, _REGION_DISTANCE)
        self.reached[region] = max(self.reached[region], offset + requested)
        self._in_use += self._size[address]
        self.peak = max(self.peak, self._in_use)
        return address

    def release(self, address: int) -> None:
        size = self._size[address]
        self._in_use -= size
        following = address + size
        if self._is_free(following):
            size += self._drop(following)
        previous = self._start.get(address, -1)
        if self._is_free(previous):
            size += self._drop(previous)
            address = previous
        self._put(address, size)
        insort(self._free, (size, address))

    def _grow(self, requested: int) -> None:
        size = requested
        if self._doubling:
            fits = requested <= self._region
            while self._region < requested:
                self._region *= 2
            size = self._region
            self._region *= 1 + fits
        self.held += size
        address = len(self.reached) * _REGION_DISTANCE
        self.reached.append(0)
        self._put(address, size)
        insort(self._free, (size, address))

    def _put(self, address: int, size: int) -> None:
        self._size[address] = size
        self._start[address + size] = address

    def _is_free(self, address: int) -> bool:
        pair = (self._size.get(address, 0), address)
        row = bisect_left(self._free, pair)
        return row < len(self._free) and self._free[row] == pair

    def _drop(self, address: int) -> int:
        """Remove a free chunk and return its size."""
        size = self._size.pop(address)
        self._free.remove((size, address))
        del self._start[address + size]
        return size
