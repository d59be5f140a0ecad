"""The largest value that a test refutes, found by doubling steps and bisection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_CLOSE = 5e-4
"""The share of the value at which bisection ends."""


def find_refuted(
    low: float, refutes: Callable[[float], bool], go_on: Callable[[], bool], *, steepest: float = np.inf
) -> float:
    """The largest value above `low` that is refuted, up to a small share of it; 0 if none is.

    No step is larger than `steepest` times the value; the search ends when `go_on` is False.
    """
    high, best, step = np.inf, 0.0, 4 * _CLOSE
    while low > 0 and high - low > _CLOSE * low and step < steepest and go_on():
        middle = low * (1 + step) if np.isinf(high) else (low + high) / 2
        if refutes(middle):
            best = low = middle
            step *= 2
        else:
            high = middle
    return best
