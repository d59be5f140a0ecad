"""The arena of ONNX Runtime: regions that are taken from the system and handed out in chunks, best fit first.

A chunk is cut in two only where it is twice as large as what is asked, or 128 MiB larger; else all of it is in use.
Neighbours that are free become one. As in onnxruntime/core/framework/bfc_arena.cc, after TensorFlow's allocator.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from placewise.runtimes.onnxruntime.memory.buffers import Span

_ALIGNED = 256
_WASTE = 128 << 20
_FIRST_REGION = 1 << 20
_APART = 1 << 48


class Arena(NamedTuple):
    """The most bytes that are in use at once, those that were ever used, and those that were taken from the system."""

    in_use: int
    touched: int
    held: int


def arena_of(spans: Sequence[Span], *, doubling: bool = True) -> Arena:
    """The arena that serves these buffers, in their order.

    Regions double in size from 1 MiB on, as ONNX Runtime's own arena does; else each is as large as what is asked.
    """
    chunks = _Chunks(doubling)
    at: dict[int, int] = {}
    freed: dict[int, list[int]] = {}
    number = -1
    for row, span in enumerate(spans):
        while number + 1 < span.first:
            number += 1
            for other in freed.pop(number, ()):
                chunks.give_back(at.pop(other))
        if span.nbytes:
            at[row] = chunks.take(span.nbytes)
            freed.setdefault(span.last, []).append(row)
    return Arena(chunks.most, sum(chunks.reached), chunks.held)


class _Chunks:
    """Chunks by address; regions are far apart, so that no two chunks of different ones are neighbours."""

    def __init__(self, doubling: bool) -> None:
        self._doubling, self._region = doubling, _FIRST_REGION
        self.reached: list[int] = []  # of each region, how many bytes from its beginning on were ever used
        self._size: dict[int, int] = {}
        self._before: dict[int, int] = {}  # by the address at which a chunk ends: where it begins
        self._free: list[tuple[int, int]] = []  # sorted: size, address
        self._in_use = self.most = self.held = 0

    def take(self, nbytes: int) -> int:
        wanted = -(-nbytes // _ALIGNED) * _ALIGNED
        row = bisect_left(self._free, (wanted, -1))
        if row == len(self._free):
            self._grow(wanted)
            row = bisect_left(self._free, (wanted, -1))
        size, address = self._free.pop(row)
        if size >= 2 * wanted or size - wanted >= _WASTE:
            self._put(address, wanted)
            self._put(address + wanted, size - wanted)
            insort(self._free, (size - wanted, address + wanted))
        region, offset = divmod(address, _APART)
        self.reached[region] = max(self.reached[region], offset + wanted)
        self._in_use += self._size[address]
        self.most = max(self.most, self._in_use)
        return address

    def give_back(self, address: int) -> None:
        size = self._size[address]
        self._in_use -= size
        after = address + size
        if self._is_free(after):
            size += self._drop(after)
        before = self._before.get(address, -1)
        if self._is_free(before):
            size += self._drop(before)
            address = before
        self._put(address, size)
        insort(self._free, (size, address))

    def _grow(self, wanted: int) -> None:
        size = wanted
        if self._doubling:
            fits = wanted <= self._region
            while self._region < wanted:
                self._region *= 2
            size = self._region
            self._region *= 1 + fits
        self.held += size
        address = len(self.reached) * _APART
        self.reached.append(0)
        self._put(address, size)
        insort(self._free, (size, address))

    def _put(self, address: int, size: int) -> None:
        self._size[address] = size
        self._before[address + size] = address

    def _is_free(self, address: int) -> bool:
        pair = (self._size.get(address, 0), address)
        row = bisect_left(self._free, pair)
        return row < len(self._free) and self._free[row] == pair

    def _drop(self, address: int) -> int:
        """Forget a free chunk; its size."""
        size = self._size.pop(address)
        self._free.remove((size, address))
        del self._before[address + size]
        return size
