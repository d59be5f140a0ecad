"""Two sequences that should be alike, aligned with the fewest left out: Myers' greedy algorithm.

E. W. Myers, An O(ND) Difference Algorithm and Its Variations, Algorithmica 1986.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_DIFFERENCES = 1_000


def align_sequences(
    n: int, m: int, equal: Callable[[int, int], bool], *, most: int = MOST_DIFFERENCES
) -> list[tuple[int, int]] | None:
    """Pairs (i, j), both ascending, with ``equal(i, j)``, as many as there can be; None if more than `most` differ."""
    reach, history = {1: 0}, list[dict[int, int]]()
    for differences in range(min(n + m, most) + 1):
        history.append(dict(reach))
        for diagonal in range(-differences, differences + 1, 2):
            down = diagonal == -differences or (
                diagonal != differences and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
            )
            i = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            j = i - diagonal
            while i < n and j < m and equal(i, j):
                i, j = i + 1, j + 1
            reach[diagonal] = i
            if i >= n and j >= m:
                return _trace_back(n, m, history)
    return None


def _trace_back(n: int, m: int, history: list[dict[int, int]]) -> list[tuple[int, int]]:
    pairs, i, j = [], n, m
    for differences in range(len(history) - 1, -1, -1):
        reach, diagonal = history[differences], i - j
        down = diagonal == -differences or (
            diagonal != differences and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        start = reach.get(before, 0)
        stop = start if down else start + 1
        while i > max(stop, 0) and j > 0 and i - 1 >= stop:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        if differences:
            i, j = start, start - before
    return pairs[::-1]
