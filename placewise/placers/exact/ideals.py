"""Ideals (sets of components closed under predecessors) of an acyclic graph, as a graph of their own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Ints, Longs, frozen
from placewise.simulate.contract import Contraction
from placewise.simulate.kernels import helper, kernel

MOST_BYTES = 1 << 29
"""The memory that the sets themselves may take."""


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


def all_ideals(graph: Contraction, most: int) -> Ideals | None:
    """Every ideal of the graph, or None if there are more than `most` or they would not fit in memory."""
    width = max(1, (graph.n + 63) // 64)
    most = min(most, MOST_BYTES // (16 * width))
    hashes = np.random.default_rng(0).integers(1, 2**63 - 1, graph.n)
    found = _enumerate(
        graph.predecessor_offsets, graph.predecessors, graph.successor_offsets, graph.successors, hashes, most
    )
    count, words, offsets, added, target = found
    if count > most:
        return None
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


@helper
def _grown(array, rows):
    """A copy with room for twice the rows."""
    bigger = np.zeros((2 * rows, array.shape[1]), array.dtype)
    bigger[:rows] = array[:rows]
    return bigger


@helper
def _lookup(table, words, keys, key, source, bit_word, bit):
    """The slot of the set ``words[source]`` plus one bit: it holds that set's number, or −1 if it is new."""
    mask = len(table) - 1
    slot = key & mask
    while table[slot] >= 0:
        other = table[slot]
        if keys[other, 0] == key:
            same = True
            for w in range(words.shape[1]):
                wanted = words[source, w] | bit if w == bit_word else words[source, w]
                if words[other, w] != wanted:
                    same = False
                    break
            if same:
                return slot
        slot = (slot + 1) & mask
    return slot


@kernel
def _enumerate(pred_offsets, preds, succ_offsets, succs, hashes, most):
    """Breadth first from the empty set; stops once it has found more than `most`."""
    n = len(pred_offsets) - 1
    width = max(1, (n + 63) // 64)
    room, edge_room = 1024, 4096
    words, ready = np.zeros((room, width), np.int64), np.zeros((room, width), np.int64)
    keys, offsets = np.zeros((room, 1), np.int64), np.zeros((room, 1), np.int64)
    edges = np.zeros((edge_room, 2), np.int64)
    table = np.full(4 * room, -1, np.int32)
    for c in range(n):
        if pred_offsets[c] == pred_offsets[c + 1]:
            ready[0, c >> 6] |= 1 << (c & 63)
    table[0] = 0
    count, n_edges, at = 1, 0, 0
    while at < count and count <= most:
        if count + n >= room:
            while count + n >= room:
                words, ready, keys = _grown(words, room), _grown(ready, room), _grown(keys, room)
                offsets = _grown(offsets, room)
                room *= 2
            table = np.full(4 * room, -1, np.int32)
            for known in range(count):
                slot = keys[known, 0] & (len(table) - 1)
                while table[slot] >= 0:
                    slot = (slot + 1) & (len(table) - 1)
                table[slot] = known
        while n_edges + n > edge_room:
            edges = _grown(edges, edge_room)
            edge_room *= 2
        offsets[at, 0] = n_edges
        for w in range(width):
            left = ready[at, w]
            while left != 0:
                bit = left & -left
                left ^= bit
                c = 64 * w + lowest_bit(bit)
                key = keys[at, 0] ^ hashes[c]
                slot = _lookup(table, words, keys, key, at, w, bit)
                if table[slot] < 0:
                    table[slot] = count
                    keys[count, 0] = key
                    words[count] = words[at]
                    words[count, w] |= bit
                    ready[count] = ready[at]
                    ready[count, w] ^= bit
                    for row in range(succ_offsets[c], succ_offsets[c + 1]):
                        d = succs[row]
                        free = True
                        for before in range(pred_offsets[d], pred_offsets[d + 1]):
                            p = preds[before]
                            if (words[count, p >> 6] >> (p & 63)) & 1 == 0:
                                free = False
                                break
                        if free:
                            ready[count, d >> 6] |= 1 << (d & 63)
                    count += 1
                edges[n_edges, 0], edges[n_edges, 1] = c, table[slot]
                n_edges += 1
        at += 1
    offsets[min(at, room - 1), 0] = n_edges
    return count, words, offsets[:, 0], edges[:, 0], edges[:, 1]
