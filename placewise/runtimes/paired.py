"""Paired measurements: how many times as fast one placement is as another, with an interval that needs no model.

The rounds of a measurement take turns, so that a slow phase of the machine meets all placements of a round alike. The
ratio of each round is therefore known better than either of its times, and the ratios of all rounds give the median
and, by the sign test, an interval around it: whatever the distribution, half of all ratios lie above their median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

LEVEL = 0.95
"""How often, at least, the median lies in the interval."""


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The median of the ratios of paired rounds, and the interval of the sign test around it.

    `low` is 0 and `high` inf where there are too few rounds for an interval.
    """

    ratio: float
    low: float = 0.0
    high: float = float("inf")

    @property
    def bounded(self) -> bool:
        """Whether there were enough rounds for an interval."""
        return self.low > 0

    @property
    def error(self) -> float:
        """Half the width of the interval, as a share of the ratio: 1 at most, and where too few rounds gave none."""
        return min((self.high - self.low) / 2 / self.ratio, 1.0) if self.bounded else 1.0


def least_rounds() -> int:
    """The fewest rounds that give an interval: 6 for 95 %."""
    return next(rounds for rounds in range(1, 1000) if 1 - 2 * 0.5**rounds >= LEVEL)


def compare_rounds(slow: Sequence[float], fast: Sequence[float]) -> PairedRatio:
    """How many times as fast as `slow` the rounds of `fast` were: seconds of the same rounds, pair by pair.

    >>> compare_rounds([2.0] * 6, [1.0] * 6)
    PairedRatio(ratio=2.0, low=2.0, high=2.0)
    >>> compare_rounds([2.0] * 5, [1.0] * 5).bounded
    False
    """
    return summarize_ratios([one / other for one, other in zip(slow, fast, strict=False)])


def summarize_ratios(ratios: Sequence[float]) -> PairedRatio:
    """The median of the ratios of some rounds, and its interval."""
    ranked = sorted(ratios)
    middle, cut = float(np.median(ranked)), _outside(len(ranked))
    return PairedRatio(middle) if cut < 0 else PairedRatio(middle, ranked[cut], ranked[-1 - cut])


def _outside(count: int) -> int:
    """How many of the sorted ratios lie below the interval, and as many above it; −1 if there are too few."""
    tail, cut = 0.0, -1
    while tail + comb(count, cut + 1) * 0.5**count <= (1 - LEVEL) / 2:
        cut += 1
        tail += comb(count, cut) * 0.5**count
    return cut
