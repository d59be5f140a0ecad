"""Ideals (sets of components closed under predecessors) of an acyclic graph, as a graph of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Ints, Longs, frozen
from placewise.simulate.contract import Contraction
from placewise.simulate.kernels import helper, kernel

MOST_BYTES = 1 << 29
"""The memory that the sets themselves may take."""
GROWTH = 8
"""How much more room the next try has, which takes about as much longer."""


class Ideals(NamedTuple):
    """Every ideal once, by size: the empty one is first, the full one last.

    Ideal i holds component c if bit ``c % 64`` of ``words[i, c // 64]`` is set; adding component
    ``added[e]`` to it gives ideal ``target[e]``, for e in ``offsets[i]:offsets[i + 1]``.
    """

    words: Longs  # [n_ideals, ceil(n / 64)]
    offsets: Longs  # [n_ideals + 1]
    added: Ints
    target: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def members(self, ideal: int, n: int) -> npt.NDArray[np.bool_]:
        """A mask [n] of the components of one ideal."""
        bits = np.unpackbits(self.words[ideal].view(np.uint8), bitorder="little")
        return bits[:n].astype(np.bool_)


def all_ideals(graph: Contraction, most: int, left: Callable[[], float] = lambda: math.inf) -> Ideals | int:
    """Every ideal of the graph, or how many there are at least, where they are too many.

    Too many are more than `most`, and those that would not fit in memory with the steps between them. `left` says
    how many seconds there are; where more room would take longer, the number is how many were counted until then (the
    first try, in which kernels may have to be loaded, tells nothing about that).
    """
    width = max(1, (graph.n + 63) // 64)
    most = min(most, MOST_BYTES // (16 * width))
    hashes = np.random.default_rng(0).integers(1, 2**63 - 1, graph.n)
    room, tried = 2048, 0
    while True:
        begun = time.monotonic()
        words, ready = np.zeros((room, width), np.int64), np.zeros((room, width), np.int64)
        keys, offsets = np.zeros(room, np.int64), np.zeros(room + 1, np.int64)
        added, target = np.zeros(12 * room, np.int32), np.zeros(12 * room, np.int32)
        count = _enumerate(
            graph.predecessor_offsets, graph.predecessors, graph.successor_offsets, graph.successors, hashes,
            np.full(1 << (3 * room).bit_length(), -1, np.int32), words, ready, keys, offsets, added, target,
        )  # fmt: skip
        if 0 <= count <= most:
            break
        more = min(GROWTH * room, most)
        longer = (time.monotonic() - begun) * more / room if tried else 0.0
        if room >= most or left() <= longer:
            return abs(int(count))
        room, tried = more, tried + 1
    return Ideals(
        frozen(words[:count], np.int64),
        frozen(offsets[: count + 1], np.int64),
        frozen(added[: offsets[count]], np.int32),
        frozen(target[: offsets[count]], np.int32),
    )


def prefixes(n: int) -> Ideals:
    """The ideals of a path of n components."""
    member = np.zeros((n + 1, 64 * max(1, (n + 63) // 64)), np.uint8)
    member[:, :n] = np.tri(n + 1, n, -1, dtype=np.uint8)
    words = np.packbits(member, axis=1, bitorder="little").view(np.int64)
    offsets = np.minimum(np.arange(n + 2), n)
    return Ideals(
        frozen(words, np.int64), frozen(offsets, np.int64), frozen(np.arange(n), np.int32),
        frozen(np.arange(1, n + 1), np.int32),
    )  # fmt: skip


@helper
def lowest_bit(word):
    """The index of the lowest bit that is set in a word that is not 0."""
    index = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word & ((1 << step) - 1) == 0:
            word >>= step
            index += step
    return index


@kernel
def _enumerate(pred_offsets, preds, succ_offsets, succs, hashes, table, words, ready, keys, offsets, added, target):
    """Fill the empty arrays breadth first from the empty set; the number of ideals, or minus how many there
    are at least if there is no room.

    `table` finds sets by their keys; its length is a power of two. `ready` holds what can be added to each.
    """
    width, mask = words.shape[1], len(table) - 1
    for c in range(len(hashes)):
        if pred_offsets[c] == pred_offsets[c + 1]:
            ready[0, c >> 6] |= 1 << (c & 63)
    table[0] = 0
    count, n_edges, at = 1, 0, 0
    while at < count:
        offsets[at] = n_edges
        for w in range(width):
            left = ready[at, w]
            while left != 0:
                bit = left & -left
                left ^= bit
                c = 64 * w + lowest_bit(bit)
                key = keys[at] ^ hashes[c]
                slot = key & mask
                while table[slot] >= 0:
                    other = table[slot]
                    same = keys[other] == key
                    v = 0
                    while same and v < width:
                        same = words[other, v] == (words[at, v] | bit if v == w else words[at, v])
                        v += 1
                    if same:
                        break
                    slot = (slot + 1) & mask
                if table[slot] < 0:
                    if count == len(keys):
                        return -count - 1
                    table[slot], keys[count] = count, key
                    for v in range(width):
                        words[count, v], ready[count, v] = words[at, v], ready[at, v]
                    words[count, w] |= bit
                    ready[count, w] ^= bit
                    for row in range(succ_offsets[c], succ_offsets[c + 1]):
                        d = succs[row]
                        free = True
                        for before in range(pred_offsets[d], pred_offsets[d + 1]):
                            p = preds[before]
                            free &= (words[count, p >> 6] >> (p & 63)) & 1 == 1
                        if free:
                            ready[count, d >> 6] |= 1 << (d & 63)
                    count += 1
                if n_edges == len(added):
                    return -count
                added[n_edges], target[n_edges] = c, table[slot]
                n_edges += 1
        at += 1
    offsets[count] = n_edges
    return count
