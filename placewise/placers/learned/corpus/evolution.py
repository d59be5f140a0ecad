"""Several ways of scoring at once: those of many that together serve best, each problem by the one that suits it.

One setting of a few numbers cannot suit every graph. A portfolio can: a problem takes the best of what its members say,
so that a new member is worth what it saves where the others are bad (as in algorithm portfolios: Xu et al. 2010, Hydra,
whose greedy choice this is). No gradient is needed, and the best of discrete favourites has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Floats

Ways = Mapping[str, npt.NDArray[np.float32]]
"""Rows of parameters by name [W, …]: row k of all of them is one way."""
FINER = 3
"""Children vary by the whole spread, by half of it, by a quarter, and so on: so many kinds."""
KEPT = 0.5
"""The share of numbers that a child has from its parent as they are."""
CROSSED = 0.25
"""The share of children that have numbers from two parents."""


def children(ways: Ways, count: int, spread: float, chance: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    """So many new ways: parents at random, numbers of which are otherwise by a share of themselves and by a number."""
    size = len(next(iter(ways.values())))
    first, second = chance.integers(size, size=(2, count))
    crossed = chance.random(count) < CROSSED
    scale = spread * 0.5 ** chance.integers(FINER, size=count)
    found = {}
    for name, rows in ways.items():
        row = (count, *(1 for _ in rows.shape[1:]))
        other = crossed.reshape(row) & (chance.random((count, *rows.shape[1:])) < KEPT)
        parent = np.where(other, rows[second], rows[first])
        noise = chance.standard_normal((2, *parent.shape)) * scale.reshape(row)
        changed = chance.random(parent.shape) >= KEPT
        found[name] = np.where(changed, parent * (1 + noise[0]) + noise[1], parent).astype(np.float32)
    return found


def portfolio(worth: Floats, count: int) -> list[int]:
    """The `count` ways whose best is least on the mean over problems, of what each is worth there [problems, W].

    The first is the best alone, each next one what helps those before most; members are exchanged while that helps.
    """
    chosen: list[int] = []
    best = np.full(len(worth), np.inf)
    for _ in range(min(count, worth.shape[1])):
        means = np.minimum(best[:, None], worth).mean(axis=0)
        means[chosen] = np.inf
        chosen.append(int(means.argmin()))
        best = np.minimum(best, worth[:, chosen[-1]])
    while _exchanged(worth, chosen):
        pass
    return chosen


def _exchanged(worth: Floats, chosen: list[int]) -> bool:
    """Exchange members but the first, one after the other, for what helps the others most; whether any was."""
    changed = False
    for place in range(1, len(chosen)):
        others = worth[:, chosen[:place] + chosen[place + 1 :]].min(axis=1)
        means = np.minimum(others[:, None], worth).mean(axis=0)
        better = int(means.argmin())
        if means[better] < means[chosen[place]] - 1e-9:
            chosen[place], changed = better, True
    return changed
