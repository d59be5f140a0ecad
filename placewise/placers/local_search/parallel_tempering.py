"""Parallel tempering: several searches at different temperatures that trade places.

Swendsen and Wang, Phys. Rev. Lett. 57 (1986); Geyer 1991. Each round moves every search once and prices all moves
as one batch. There is no cooling schedule, so that a search may be stopped at any moment or go on for ever.
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
"""Asking whether a placement keeps the rules counts as so many pricings."""

Price = Callable[[Ints], Floats]
"""Homes of blocks [K, n_blocks] → seconds [K], inf or NaN where one cannot run."""

Keeps = Callable[[Ints], bool]
"""Whether the homes of blocks [n_blocks] keep the rules that moves know nothing of."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best so far: devices of blocks [n_blocks], seconds, and the work done, in placements priced."""

    home: Ints
    value: float
    work: int


def temper(
    space: _native.MoveSpace,
    starts: Ints,
    values: Floats,
    price: Price,
    keeps: Keeps | None,
    *,
    searches: int,
    seed: int,
) -> Iterator[Found]:
    """One `Found` per round, for as long as it is asked. `starts` [S, n_blocks] are valid and have finite values."""
    rng = np.random.default_rng(seed)
    proposer = _native.MoveProposer(space, rng.integers(0, 1 << 63, searches).astype(np.uint64))
    order = np.argsort(values, kind="stable")
    pick = order[np.arange(searches) % len(order)]
    homes, current = starts[pick].astype(np.int32), values[pick].copy()
    best, value, done = homes[0].copy(), float(current[0]), 0
    warmth = np.geomspace(COLDEST, HOTTEST, searches)
    while True:
        candidates = proposer.propose(homes)
        offered = price(candidates)
        done += searches
        heat = np.maximum(warmth * value, 1e-300)
        taken = offered - current <= heat * rng.exponential(size=searches)
        if keeps is not None:
            asked = np.flatnonzero(taken & (candidates != homes).any(axis=1))
            taken[asked] = [keeps(candidates[k]) for k in asked.tolist()]
            done += CHECK * len(asked)
        homes[taken], current[taken] = candidates[taken], offered[taken]
        if current.min() < value:
            best, value = homes[int(current.argmin())].copy(), float(current.min())
        _trade(homes, current, heat, rng)
        yield Found(best, value, done)


def _trade(homes: Ints, current: Floats, heat: Floats, rng: np.random.Generator) -> None:
    """Neighbouring temperatures exchange their placements, as if both moves were one."""
    odd = int(rng.integers(2))
    for cold in range(odd, len(current) - 1, 2):
        gain = (current[cold] - current[cold + 1]) * (1 / heat[cold] - 1 / heat[cold + 1])
        if gain >= -rng.exponential():
            homes[[cold, cold + 1]] = homes[[cold + 1, cold]]
            current[[cold, cold + 1]] = current[[cold + 1, cold]]
