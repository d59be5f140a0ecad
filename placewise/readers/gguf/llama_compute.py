"""The size of llama.cpp's compute buffer on one device: its graph, run through the rules of ggml's allocator.

ggml (ggml-alloc.c) walks the graph of a micro-batch once. A result takes the smallest hole that holds it, else the end
of the buffer; some operations take over the memory of their argument; an argument is freed after its last use. The
buffer is as large as the end ever was, so that holes count. What is written here is the order of the results in a layer
(llama-graph.cpp, models/llama.cpp), with their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 32
"""Of results, in bytes."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result: its bytes, the results that it reads, and whether it may take over the memory of the first."""

    name: str
    nbytes: int
    reads: tuple[str, ...] = ()
    in_place: bool = False


def size_buffer(results: Sequence[Result]) -> int:
    """The bytes that a buffer needs for results in this order.

    Examples
    --------
    >>> size_buffer([Result("a", 64), Result("b", 64, ("a",)), Result("c", 64, ("b",))])
    128

    """
    left: dict[str, int] = {}
    for result in results:
        for name in result.reads:
            left[name] = left.get(name, 0) + 1
    places: dict[str, tuple[int, int]] = {}
    holes: list[tuple[int, int]] = []
    end = most = 0
    for result in results:
        size = -(-result.nbytes // ALIGNMENT) * ALIGNMENT
        source = result.reads[0] if result.reads else ""
        if result.in_place and left[source] == 1 and source in places and places[source][1] == size:
            places[result.name] = places.pop(source)
        else:
            fitting = [hole for hole in holes if hole[1] >= size]
            if fitting:
                start, room = min(fitting, key=lambda hole: hole[1])
                holes.remove((start, room))
                if room > size:
                    holes.append((start + size, room - size))
            else:
                start, end = end, end + size
                most = max(most, end)
            places[result.name] = start, size
        for name in result.reads:
            left[name] -= 1
            if not left[name] and name in places:
                end = _free(holes, places.pop(name), end)
    return most


def _free(holes: list[tuple[int, int]], freed: tuple[int, int], end: int) -> int:
    """Add a hole, joined with those beside it; the new end of the buffer, where a hole at the end disappears."""
    start, stop = freed[0], sum(freed)
    for hole in [hole for hole in holes if hole[0] == stop or sum(hole) == start]:
        holes.remove(hole)
        start, stop = min(start, hole[0]), max(stop, sum(hole))
    if stop == end:
        return start
    holes.append((start, stop - start))
    return end
