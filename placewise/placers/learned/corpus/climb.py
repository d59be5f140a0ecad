"""A few steps uphill from a policy's own placement: what it should have done, as near as possible to what it did.

A placement of another search is often as good, and looks otherwise; a policy that imitates several such answers ends
between them. Expert iteration (Anthony, Tian and Barber, NeurIPS 2017) imitates what a search makes of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Floats, Ints, Longs, offsets_of
from placewise.placers.learned.view import View

AT_ONCE = 8
"""Moves that are tried from one placement before the best of them is made."""
SINGLE, NEAR = 0.4, 0.4
"""How many moves take one unit, and one with what is next to it there; the others take a stretch of units."""
STRETCH = 16
"""A stretch is at most so many times shorter than all units."""

Price = Callable[[Ints], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """The units next to unit u, either way: ``of[offsets[u]:offsets[u + 1]]``."""

    offsets: Longs
    of: Longs


def neighbours(view: View) -> Neighbours:
    """Those of every unit."""
    here = np.concatenate((view.tail, view.head)).astype(np.int64)
    there = np.concatenate((view.head, view.tail)).astype(np.int64)
    order = np.argsort(here, kind="stable")
    return Neighbours(offsets_of(here[order], view.n), there[order])


def climb(view: View, near: Neighbours, start: Ints, price: Price, tries: int, chance: np.random.Generator) -> Ints:
    """The devices [n_units] that so many tried moves lead to from `start` [n_units], by a price of placements."""
    here = start.astype(np.int32)
    value = float(price(view.placements(here[None]))[0])
    for _ in range(max(tries // AT_ONCE, 1)):
        rows = np.stack([moved(view, near, here, chance) for _ in range(AT_ONCE)])
        seconds = np.where(np.isfinite(found := price(view.placements(rows))), found, np.inf)
        best = int(seconds.argmin())
        if seconds[best] < value or not np.isfinite(value):
            here, value = rows[best], float(seconds[best])
    return here


def moved(view: View, near: Neighbours, here: Ints, chance: np.random.Generator) -> Ints:
    """Another placement [n_units]: a unit, or several of one device that lie together, on some other device."""
    unit, draw = int(chance.integers(view.n)), chance.random()
    others = np.flatnonzero(view.allowed[unit] & (np.arange(view.n_devices) != here[unit]))
    if not len(others):
        return here
    device = int(others[chance.integers(len(others))])
    if draw < SINGLE:
        group = np.array([unit])
    elif draw < SINGLE + NEAR:
        group = np.append(near.of[near.offsets[unit] : near.offsets[unit + 1]], unit)
    else:
        group = np.arange(unit, min(unit + 2 + int(chance.integers(max(view.n // STRETCH, 1))), view.n))
    group = group[(here[group] == here[unit]) & view.allowed[group, device]]
    found = here.copy()
    found[group] = device
    return found
