"""Queues for kernels: a binary heap of (time, item), and a set of small integers with its minimum."""

from __future__ import annotations

import numpy as np

from placewise.simulate.kernels import helper

_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)
_FIRST_BIT = np.zeros(64, np.int64)
for _bit in range(64):
    _FIRST_BIT[((int(_DEBRUIJN) << _bit) & (2**64 - 1)) >> 58] = _bit


@helper
def first_bit(word):
    """The number of the lowest bit of a word that is not zero."""
    return _FIRST_BIT[((word & (~word + np.uint64(1))) * _DEBRUIJN) >> np.uint64(58)]


@helper
def push(time, item, base, size, t, i):
    """Add (t, i) to the heap of `size` entries that starts at `base`; ordered by time, then item."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if time[base + up] < t or (time[base + up] == t and item[base + up] < i):
            break
        time[base + at], item[base + at] = time[base + up], item[base + up]
        at = up
    time[base + at], item[base + at] = t, i


@helper
def pop(time, item, base, size):
    """Drop the first of `size` entries; the caller has read it."""
    size -= 1
    t, i = time[base + size], item[base + size]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        right = down + 1
        if right < size and (
            time[base + right] < time[base + down]
            or (time[base + right] == time[base + down] and item[base + right] < item[base + down])
        ):
            down = right
        if t < time[base + down] or (t == time[base + down] and i < item[base + down]):
            break
        time[base + at], item[base + at] = time[base + down], item[base + down]
        at = down
    time[base + at], item[base + at] = t, i


@helper
def bitset_levels(count):
    """Where each level of a set over range(count) starts among its words; one more entry for their number."""
    starts = np.zeros(12, np.int64)
    levels = 0
    while True:
        count = (count + 63) >> 6
        starts[levels + 1] = starts[levels] + count
        levels += 1
        if count <= 1:
            return starts[: levels + 1]


@helper
def bitset_add(words, base, levels, item):
    """Add `item` to the set whose words start at `base`: a bit, and above each word that was empty a summary bit."""
    for level in range(len(levels) - 1):
        at = base + levels[level] + (item >> 6)
        before = words[at]
        words[at] = before | (np.uint64(1) << np.uint64(item & 63))
        if before != 0:
            return
        item >>= 6


@helper
def bitset_pop_min(words, base, levels):
    """Remove and return the smallest item of a set that is not empty."""
    smallest = 0
    for level in range(len(levels) - 2, -1, -1):
        smallest = (smallest << 6) + first_bit(words[base + levels[level] + smallest])
    item = smallest
    for level in range(len(levels) - 1):
        at = base + levels[level] + (item >> 6)
        words[at] &= ~(np.uint64(1) << np.uint64(item & 63))
        if words[at] != 0:
            break
        item >>= 6
    return smallest
