"""Parallel tempering: several searches at different temperatures that exchange their placements.

Swendsen and Wang, Phys. Rev. Lett. 57 (1986); Geyer 1991. Each round moves every search once and prices all moves
as one batch. There is no cooling schedule, so the search may stop at any moment or go on for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints

COLDEST, HOTTEST = 3e-4, 1e-2
"""Temperatures as shares of the best value known."""

CHECK = 20
"""The work of one rule check, in placements priced."""

Price = Callable[[Ints], Floats]
"""Assignments of blocks [K, n_blocks] → seconds [K], inf or NaN where one cannot run."""

KeepsRules = Callable[[Ints], bool]
"""Whether an assignment of blocks [n_blocks] keeps the rules that moves do not take into account."""


@dataclass(frozen=True, slots=True)
class TemperingState:
    """The best so far: devices of blocks [n_blocks], seconds, and the work done, in placements priced."""

    assignment: Ints
    value: float
    work: int


def temper(
    space: _native.MoveSpace,
    starts: Ints,
    values: Floats,
    price: Price,
    keeps_rules: KeepsRules | None,
    *,
    searches: int,
    seed: int,
) -> Iterator[TemperingState]:
    """Yield the state after each round, without end. `starts` [S, n_blocks] are valid and have finite values."""
    rng = np.random.default_rng(seed)
    proposer = _native.MoveProposer(space, rng.integers(0, 1 << 63, searches).astype(np.uint64))
    order = np.argsort(values, kind="stable")
    pick = order[np.arange(searches) % len(order)]
    assignments, current = starts[pick].astype(np.int32), values[pick].copy()
    best, value, work = assignments[0].copy(), float(current[0]), 0
    shares = np.geomspace(COLDEST, HOTTEST, searches)
    while True:
        candidates = proposer.propose(assignments)
        prices = price(candidates)
        work += searches
        temperatures = np.maximum(shares * value, 1e-300)
        accepted = prices - current <= temperatures * rng.exponential(size=searches)
        if keeps_rules is not None:
            unchecked = np.flatnonzero(accepted & (candidates != assignments).any(axis=1))
            accepted[unchecked] = [keeps_rules(candidates[k]) for k in unchecked.tolist()]
            work += CHECK * len(unchecked)
        assignments[accepted], current[accepted] = candidates[accepted], prices[accepted]
        if current.min() < value:
            best, value = assignments[int(current.argmin())].copy(), float(current.min())
        for cold, warm in exchanges(current, temperatures, rng):
            assignments[[cold, warm]] = assignments[[warm, cold]]
            current[[cold, warm]] = current[[warm, cold]]
        yield TemperingState(best, value, work)


def exchanges(values: Floats, temperatures: Floats, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Neighbouring temperatures whose searches exchange places, by the rule of Metropolis for both moves at once."""
    for cold in range(int(rng.integers(2)), len(values) - 1, 2):
        gain = (values[cold] - values[cold + 1]) * (1 / temperatures[cold] - 1 / temperatures[cold + 1])
        if gain >= -rng.exponential():
            yield cold, cold + 1
