"""Evolution of several sets of parameters (candidates) that together serve a corpus best.

One set of a few numbers cannot suit every graph, but a portfolio can: every problem takes the best of what its members
propose, so that a new member is worth what it saves where the others are bad (as in algorithm portfolios: Xu et al.
2010, Hydra, whose greedy choice this is). It needs no gradient, and the best of discrete choices has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Floats

CandidateRows = Mapping[str, npt.NDArray[np.float32]]
"""Rows of parameters by name [C, …]: row k of all of them is one candidate."""
SCALES = 3
"""Children vary by the whole spread, by half of it or by a quarter."""
INHERITED = 0.5
"""The share of numbers that a child inherits unchanged."""
CROSSED = 0.25
"""The share of children with two parents."""


def create_children(
    candidates: CandidateRows, count: int, spread: float, rng: np.random.Generator
) -> dict[str, npt.NDArray[np.float32]]:
    """Create `count` new candidates from random parents. Changed numbers get relative and absolute noise."""
    size = len(next(iter(candidates.values())))
    first, second = rng.integers(size, size=(2, count))
    crossed = rng.random(count) < CROSSED
    scale = spread * 0.5 ** rng.integers(SCALES, size=count)
    children = {}
    for name, rows in candidates.items():
        row = (count, *(1 for _ in rows.shape[1:]))
        other = crossed.reshape(row) & (rng.random((count, *rows.shape[1:])) < INHERITED)
        parent = np.where(other, rows[second], rows[first])
        noise = rng.standard_normal((2, *parent.shape)) * scale.reshape(row)
        changed = rng.random(parent.shape) >= INHERITED
        children[name] = np.where(changed, parent * (1 + noise[0]) + noise[1], parent).astype(np.float32)
    return children


def select_portfolio(scores: Floats, count: int) -> list[int]:
    """Select `count` candidates with a small mean over problems of the least of their `scores` [problems, C].

    The first is the best on its own, and each next one improves those before it most. Then members are exchanged while
    that helps.
    """
    members: list[int] = []
    best = np.full(len(scores), np.inf)
    for _ in range(min(count, scores.shape[1])):
        means = np.minimum(best[:, None], scores).mean(axis=0)
        means[members] = np.inf
        members.append(int(means.argmin()))
        best = np.minimum(best, scores[:, members[-1]])
    while _exchange_members(scores, members):
        pass
    return members


def _exchange_members(scores: Floats, members: list[int]) -> bool:
    """Replace each member but the first by the best complement of the others. Returns whether any was replaced."""
    changed = False
    for place in range(1, len(members)):
        others = scores[:, members[:place] + members[place + 1 :]].min(axis=1)
        means = np.minimum(others[:, None], scores).mean(axis=0)
        better = int(means.argmin())
        if means[better] < means[members[place]] - 1e-9:
            members[place], changed = better, True
    return changed
