"""The sizes of llama.cpp's compute buffers: its graph, run through the rules of ggml's scheduler and allocator.

The scheduler (ggml-backend.cpp) gives every result a device: that of the weights or the cache it uses, else that of its
neighbours. Where the device changes, a split begins, and what it reads from elsewhere is copied to it. With pipeline
parallelism, inputs and copies exist several times, and are kept.

The allocator (ggml-alloc.c) walks the splits once. A result takes the smallest hole that holds it, else the end of its
device's buffer; some operations take over the memory of an argument; an argument is freed after its last use. A buffer
is as large as its end ever was, so that holes count. The order of the results in a layer is in `llama_graph`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ALIGNMENT = 32
"""Of results, in bytes."""


@dataclass(frozen=True, slots=True)
class ComputeResult:
    """A result: its bytes, the results that it reads, and whether it may take over the memory of one of them.

    One that reads nothing is an input of the graph. `home` is the device that has to compute it ("": any). What is
    `stored` is in memory already, a "weight", a "cache" or a "view" of a result, and counts where it is copied to
    another device.
    """

    name: str
    nbytes: int
    reads: tuple[str, ...] = ()
    in_place: bool = False
    home: str = ""
    stored: str = ""


@dataclass(slots=True)
class _Split:
    """Results in a row on one device, and what is copied to it before they start."""

    device: str
    results: list[ComputeResult] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)


def size_buffers(results: Sequence[ComputeResult], devices: Sequence[str] = ("",), copies: int = 1) -> dict[str, int]:
    """The bytes that the buffer of every device needs for results in this order.

    The last of `devices` is the host. With several `copies` there is pipeline parallelism.

    Examples
    --------
    >>> chain = [Result("a", 64), Result("b", 64, ("a",)), Result("c", 64, ("b",))]
    >>> size_buffers(chain)
    {'': 128}
    >>> size_buffers([*chain[:2], Result("c", 64, ("b",), home="GPU")], ["GPU", "CPU"])
    {'GPU': 128, 'CPU': 64}

    """
    homes = assign_homes(results, devices)
    splits = split_results(results, homes)
    memory = _Memory({device: _Heap() for device in devices}, copies > 1)
    for result in results:
        if not result.reads and not result.stored:
            memory.add_input(result.name, homes[result.name], result.nbytes, copies)
    sizes = {result.name: result.nbytes for result in results}
    if copies > 1:
        for split in splits:
            for name in split.copied:
                memory.add_input(_name_copy(name, split.device), split.device, sizes[name], copies)
    for split in splits:
        memory.left.update(split.copied)
        for result in split.results:
            memory.left.update(_list_reads(result, split.device, homes))
    for split in splits:
        for name in split.copied:
            memory.read(name)
            if copies == 1:
                memory.add(_name_copy(name, split.device), split.device, sizes[name])
        for result in split.results:
            memory.compute(result, split.device, _list_reads(result, split.device, homes))
    return {device: heap.most for device, heap in memory.heaps.items()}


def assign_homes(results: Sequence[ComputeResult], devices: Sequence[str]) -> dict[str, str]:
    """The device of every result: where none has to be, that of the results before it, else of those after it.

    Inputs are on the host, the last of `devices`, and the host's neighbours come last.
    """
    host = devices[-1]
    homes = {one.name: one.home or ("" if one.reads else host) for one in results}
    computed = [one.name for one in results if one.reads]
    for with_host in (False, True):
        for names in (computed, computed[::-1]):
            near = ""
            for name in names:
                if homes[name]:
                    near = homes[name] if with_host or homes[name] != host else ""
                else:
                    homes[name] = near
    return homes


def split_results(results: Sequence[ComputeResult], homes: dict[str, str]) -> list[_Split]:
    """The splits of a graph, in order. A weight that is copied begins a split, so that others may be freed before."""
    splits: list[_Split] = []
    weights = {one.name for one in results if one.stored == "weight"}
    known: set[tuple[str, str]] = set()
    for result in results:
        if not result.reads:
            continue
        device = homes[result.name]
        foreign = [name for name in result.reads if homes[name] != device]
        if not splits or splits[-1].device != device or (splits[-1].copied and weights.intersection(foreign)):
            splits.append(_Split(device))
        splits[-1].results.append(result)
        for name in foreign:
            if (name, device) not in known:
                known.add((name, device))
                splits[-1].copied.append(name)
    return splits


def _name_copy(name: str, device: str) -> str:
    return f"{name}@{device}"


def _list_reads(result: ComputeResult, device: str, homes: dict[str, str]) -> list[str]:
    """What a result reads, under the names of the copies where it is elsewhere."""
    return [name if homes[name] == device else _name_copy(name, device) for name in result.reads]


@dataclass(slots=True)
class _Heap:
    """The buffer of a device: its holes (start, bytes), its end, and the largest end so far."""

    holes: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    most: int = 0

    def take(self, size: int) -> int:
        """The start of that many bytes."""
        fitting = [hole for hole in self.holes if hole[1] >= size]
        if not fitting:
            start, self.end = self.end, self.end + size
            self.most = max(self.most, self.end)
            return start
        start, room = min(fitting, key=lambda hole: (hole[1], -hole[0]))
        self.holes.remove((start, room))
        if room > size:
            self.holes.append((start + size, room - size))
        return start

    def free(self, start: int, size: int) -> None:
        """Make a hole, joined with those beside it; one at the end disappears."""
        stop = start + size
        for hole in [hole for hole in self.holes if hole[0] == stop or sum(hole) == start]:
            self.holes.remove(hole)
            start, stop = min(start, hole[0]), max(stop, sum(hole))
        if stop == self.end:
            self.end = start
        else:
            self.holes.append((start, stop - start))


@dataclass(slots=True)
class _Memory:
    """The heaps of all devices; where each result is: device, start and bytes; and how many uses of it are left.

    Inputs are kept if `keeps` says so.
    """

    heaps: dict[str, _Heap]
    keeps: bool
    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, device: str, nbytes: int) -> None:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.places[name] = device, self.heaps[device].take(size), size

    def add_input(self, name: str, device: str, nbytes: int, copies: int) -> None:
        for _ in range(copies):
            self.add(name, device, nbytes)
        if self.keeps:
            del self.places[name]

    def compute(self, result: ComputeResult, device: str, reads: Iterable[str]) -> None:
        size = -(-result.nbytes // ALIGNMENT) * ALIGNMENT
        own = next((name for name in reads if self.left[name] == 1 and self._holds(name, size)), "")
        if result.in_place and own:
            self.places[result.name] = self.places.pop(own)
        else:
            self.add(result.name, device, result.nbytes)
        for name in reads:
            self.read(name)

    def read(self, name: str) -> None:
        """One use less; after the last one the memory is free."""
        self.left[name] -= 1
        if not self.left[name] and name in self.places:
            device, start, size = self.places.pop(name)
            self.heaps[device].free(start, size)

    def _holds(self, name: str, size: int) -> bool:
        return name in self.places and self.places[name][2] == size
