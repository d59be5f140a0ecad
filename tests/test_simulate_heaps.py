"""The two queues of the schedule kernel against Python's own."""

from __future__ import annotations

import heapq

import numba
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placewise.simulate import heaps

push, pop = numba.njit(heaps.push.py_func), numba.njit(heaps.pop.py_func)
bitset_levels = numba.njit(heaps.bitset_levels.py_func)
bitset_add, bitset_pop_min = numba.njit(heaps.bitset_add.py_func), numba.njit(heaps.bitset_pop_min.py_func)

entries = st.tuples(st.integers(0, 5).map(float), st.integers(0, 30))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.none() | entries, max_size=60), st.integers(0, 3))
def test_heap(steps, base):
    """Pushes and pops (None) in any order, at any place of the columns, as heapq does them."""
    time, item = np.full(80, -1.0), np.full(80, -1)
    known: list[tuple[float, int]] = []
    for step in steps:
        if step is None and known:
            assert (time[base], item[base]) == heapq.heappop(known)
            pop(time, item, base, len(known) + 1)
        elif step is not None:
            push(time, item, base, len(known), *step)
            heapq.heappush(known, step)
    assert (time[:base] == -1).all()


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([1, 2, 63, 64, 65, 4096, 4097, 300_000]), st.integers(0, 2), st.data())
def test_bitset(count, base, data):
    """Items come out smallest first, whatever was added in between, and only the set's own words are touched."""
    levels = bitset_levels(count)
    words = np.zeros(base + int(levels[-1]) + 1, np.uint64)
    known: set[int] = set()
    for item in data.draw(st.lists(st.none() | st.integers(0, count - 1), max_size=40)):
        if item is None and known:
            assert bitset_pop_min(words, base, levels) == min(known)
            known.remove(min(known))
        elif item is not None and item not in known:
            bitset_add(words, base, levels, item)
            known.add(item)
        assert not words[:base].any()
        assert not words[base + levels[-1] :].any()
    for item in sorted(known):
        assert bitset_pop_min(words, base, levels) == item
    assert not words.any()
