"""A few steps uphill from a policy's own placement: which other decisions would have been better there, or worse.

A placement of another search is often as good, and looks otherwise; a policy that imitates such answers ends between
them. Moves from its own placement say what single decisions of it are worth, all others as they are.
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
LARGEST = 4
"""The longest stretch is so many times shorter than all units; short ones are as likely as ones twice as long."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """M moves: placements [M, n_units] before (`here`) and after (`there`), and the share of time that each gained.

    A gain is from −1 (or failure) to 1.
    """

    here: Ints
    there: Ints
    gain: Floats


def climb(view: View, near: Neighbours, start: Ints, price: Price, tries: int, chance: np.random.Generator) -> Tried:
    """So many moves tried from `start` [n_units]; what helps most of some is made before the next are tried."""
    here = start.astype(np.int32)
    value = float(price(view.placements(here[None]))[0])
    before, after, gains = [], [], []
    for _ in range(max(tries // AT_ONCE, 1)):
        rows = np.stack([moved(view, near, here, chance) for _ in range(AT_ONCE)])
        seconds = price(view.placements(rows))
        before.append(np.broadcast_to(here, rows.shape))
        after.append(rows)
        gains.append(gained(value, seconds))
        best = int(gains[-1].argmax())
        if gains[-1][best] > 0:
            here, value = rows[best], float(seconds[best])
    return Tried(np.concatenate(before), np.concatenate(after), np.concatenate(gains))


def gained(before: float, after: Floats) -> Floats:
    """The share of time [M] that is gained from seconds `before` to seconds `after` [M]; NaN is a failure."""
    if not np.isfinite(before):
        return np.where(np.isfinite(after), 1.0, 0.0)
    found: Floats = np.clip((before - np.where(np.isfinite(after), after, np.inf)) / before, -1.0, 1.0)
    return found


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
        length = int(np.exp(chance.random() * np.log(view.n / LARGEST + 1))) + 1
        group = np.arange(unit, min(unit + length, view.n))
    group = group[(here[group] == here[unit]) & view.allowed[group, device]]
    found = here.copy()
    found[group] = device
    return found
