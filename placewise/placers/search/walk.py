"""Annealing of groups over devices: the least max-load, by random moves, in slices that a caller can time.

The energy is a power mean of the loads of devices and wires, close to their maximum but with a slope for those below
it. Memory that is missing weighs more than any load: it never grows, and once nothing is missing no move may change
that. The best placement is not copied when it is met: a journal of the moves since then leads back to it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints, Longs, frozen
from placewise.placers.common.probabilities import nothing
from placewise.placers.search.chance import share
from placewise.placers.search.clusters import Clusters
from placewise.placers.search.costs import Costs
from placewise.placers.search.moves import Mover, mover, propose, take_back
from placewise.placers.search.state import (
    State,
    charge,
    load,
    missing,
    renew,
    settle,
    short_of,
    state_of,
    value_of,
    wires,
)
from placewise.simulate.kernels import inlined
from placewise.simulate.kernels import lean_kernel as kernel

NO_PAIRS = frozen(np.zeros((0, 2)), np.int32)
_VALUE, _SHORT, _LENGTH, _KEPT, _EVALUATED = range(5)


class Walk(NamedTuple):
    """A search under way: where it is, and the best that it met.

    `figures`: the best value and its missing bytes, the length of the journal, whether the journal leads back to the
    best, and how many moves were evaluated.
    """

    state: State
    mover: Mover
    best: Ints  # [n]
    figures: Longs  # [5]
    journal: Ints  # [2, room] groups and where they were


def walk_from(
    c: Costs,
    home: Ints,
    seed: int,
    *,
    order: Ints | None = None,
    pairs: Ints = NO_PAIRS,
    likely: Floats | None = None,
) -> Walk:
    """A search that stands at a placement [n]; `order` [n_devices] is the place of each device in a chain.

    `likely` [n, n_devices] are probabilities of the groups' devices, if there are any.
    """
    state = state_of(c, home)
    along = np.arange(len(c.capacity), dtype=np.int32) if order is None else order
    figures = np.array([value_of(c, state), short_of(c, state), 0, 0, 0])
    room = max(len(home) // 2, 64)
    told = nothing(len(c.capacity)) if likely is None else likely
    return Walk(state, mover(c, seed, along, pairs, told), state.home.copy(), figures, np.zeros((2, room), np.int32))


def go(c: Costs, g: Clusters, walk: Walk, steps: int, hot: float, cold: float) -> None:
    """`steps` moves while temperatures, as shares of the max-load, fall from `hot` to `cold`."""
    if len(walk.best) and len(c.capacity) > 1:
        _go(c, walk.state, g, walk.mover, walk.best, walk.figures, walk.journal, steps, hot, cold)


def evaluated(walk: Walk) -> int:
    """How many moves were evaluated so far."""
    return int(walk.figures[_EVALUATED])


def quality(walk: Walk) -> tuple[int, int]:
    """Bytes that are missing, and the max-load in the costs' units, of the best: smaller is better."""
    return int(walk.figures[_SHORT]), int(walk.figures[_VALUE])


@inlined
def _measure(c, sums, unit):
    """The energy, as the 32nd power of a share of `unit`, and the value."""
    inverse, value, first, energy = 1.0 / unit, np.int64(0), 0.0, 0.0
    for phase in range(c.n_phases):
        total, worst = 0.0, np.int64(0)
        for device in range(len(c.capacity)):
            here = load(c, sums, phase, device)
            worst = max(worst, here)
            total += _power(here * inverse)
        for wire in range(wires(c, phase), wires(c, phase) + c.n_wires):
            worst = max(worst, sums[wire])
            total += _power(sums[wire] * inverse)
        value += worst
        if c.n_phases == 1:
            return total, value
        if phase == 0:
            first = total
        energy = _power(first ** (1 / 32) + total ** (1 / 32))
    return energy, value


@inlined
def _power(base):
    """The 32nd power."""
    base *= base
    base *= base
    base *= base
    base *= base
    return base * base


@kernel
def _go(c, s, g, w, best, figures, journal, steps, hot, cold):
    least, best_short = figures[0], figures[1]
    short = missing(c, s.sums)
    unit = max(float(_measure(c, s.sums, 1.0)[1]), 1.0)
    now, value = _measure(c, s.sums, unit)
    cooling, heat = (cold / hot) ** (1.0 / max(steps, 1)), hot
    for _ in range(steps):
        heat *= cooling
        done = propose(c, s, g, w)
        if done == 0:
            continue
        figures[4] += 1
        for i in range(done - 1, -1, -1):
            w.goal[i] = s.home[w.moved[i]]
            s.home[w.moved[i]] = w.origin[i]
        for i in range(done):
            charge(c, s, w.moved[i], w.goal[i])
            if done > 1:
                settle(c, s, w.moved[i], w.goal[i])
        lacking = missing(c, s.trial)
        after, value = _measure(c, s.trial, unit)
        if lacking > short or (lacking == short and not _taken(after, now, heat, w.rng)):
            if done > 1:
                for i in range(done - 1, -1, -1):
                    settle(c, s, w.moved[i], w.origin[i])
            take_back(w)
            renew(s.sums, s.trial)
            continue
        if done == 1:
            settle(c, s, w.moved[0], w.goal[0])
        renew(s.trial, s.sums)
        now, short = after, lacking
        if short < best_short or (short == best_short and value < least):
            least, best_short = value, short
            figures[2], figures[3] = 0, 1
            if value < 0.5 * unit or short > 0:
                unit = max(float(value), 1.0)
                now = _measure(c, s.sums, unit)[0]
        elif figures[3]:
            _note(s, w, best, figures, journal, done)
    figures[0], figures[1] = least, best_short
    if figures[3]:
        _lead_back(s, best, figures, journal)


@inlined
def _taken(after, now, heat, rng):
    """Whether a move that changes the energy so is accepted at this temperature."""
    return after <= now or after < now * _power(1.0 - heat * np.log(1.0 - share(rng)))


@inlined
def _note(s, w, best, figures, journal, done):
    """Write the moves just made into the journal; where it is full, copy the best first."""
    length = figures[2]
    if length + done > journal.shape[1]:
        for i in range(done - 1, -1, -1):
            s.home[w.moved[i]], w.origin[i] = w.origin[i], s.home[w.moved[i]]
        _lead_back(s, best, figures, journal)
        for i in range(done):
            s.home[w.moved[i]], w.origin[i] = w.origin[i], s.home[w.moved[i]]
        figures[3] = 0
        return
    for i in range(done):
        journal[0, length + i], journal[1, length + i] = w.moved[i], w.origin[i]
    figures[2] = length + done


@inlined
def _lead_back(s, best, figures, journal):
    """Where the journal begins, into `best`."""
    for i in range(len(best)):
        best[i] = s.home[i]
    for i in range(figures[2] - 1, -1, -1):
        best[journal[0, i]] = journal[1, i]
