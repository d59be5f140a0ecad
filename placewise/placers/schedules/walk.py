"""One chain of moves: try a move, price it from the first moment that it touches, keep it or take it back."""

from __future__ import annotations

import numpy as np

from placewise.placers.schedules.desk import (
    AWAITS,
    BEST,
    FROM,
    HEAT,
    MOVED,
    OFFERED,
    TRIED,
    VALUE,
    WORK,
)
from placewise.placers.schedules.events import checkpoint_before, run
from placewise.placers.schedules.peaks import peaks_fit
from placewise.placers.schedules.shifts import put, take_back, untouched
from placewise.placers.schedules.steps import find_path, learn, step
from placewise.placers.search.chance import share
from placewise.simulate.kernels import lean_kernel, spliced

DROP, KEEP, AFRESH = range(3)
GOOD, SAME, BAD = 1.0, 0.2, 0.0
"""What a move is worth to those who choose the next: better, no worse, or neither."""


@spliced
def _fits(x, capacity):
    over = 0
    for d in range(len(capacity)):
        over += x.used[d] > capacity[d]
    return over == 0


@spliced
def _settle(a, x, g):
    """The placement as it is becomes that of the chain."""
    x.tally[MOVED] = 0
    x.flat[VALUE] = run(a, g, x, x.tally[FROM], np.inf, np.bool_(True))
    find_path(a, x)
    if x.flat[VALUE] < x.flat[BEST]:
        x.flat[BEST] = x.flat[VALUE]
        for block in range(len(x.home)):
            x.best[block] = x.home[block]


@spliced
def _begin(a, g, m, x):
    for block in range(len(x.home)):
        if x.home[block] != x.fresh[block]:
            put(a, g, m, x, np.int64(block), np.int64(x.fresh[block]))
    x.tally[FROM] = -1
    _settle(a, x, g)


@lean_kernel
def walk(a, g, m, levels, x, moves, until, verdict):
    """Up to so many moves, or until so many ops are simulated; True if a placement waits for a verdict on its shape.

    `verdict` is what became of the one that waited: KEEP or DROP; or AFRESH: the chain begins anew from `x.fresh`.
    """
    if verdict == AFRESH:
        x.tally[AWAITS] = 0
        _begin(a, g, m, x)
    if x.tally[AWAITS]:
        x.tally[AWAITS] = 0
        if verdict == KEEP:
            learn(x, GOOD if x.flat[OFFERED] < x.flat[VALUE] else SAME)
            _settle(a, x, g)
        else:
            learn(x, BAD)
            take_back(a, g, m, x)
    for d in range(len(x.work)):
        x.work[d] = 0.0
    for op in range(len(x.op)):
        x.work[x.op[op].device] += x.op[op].seconds
    while x.tally[TRIED] < moves and x.tally[WORK] < until:
        x.tally[TRIED] += 1
        step(a, g, m, levels, x)
        if x.tally[MOVED] == 0 or not _fits(x, m.capacity):
            take_back(a, g, m, x)
            learn(x, BAD)
            continue
        luck = -np.log1p(-share(x.rng))
        limit = x.flat[VALUE] + x.flat[HEAT] * luck
        x.tally[FROM] = checkpoint_before(x, untouched(a, g, x))
        offered = run(a, g, x, x.tally[FROM], limit, np.bool_(False))
        x.flat[OFFERED] = offered
        if not offered <= limit or (g.live and not peaks_fit(a, g, x, x.trial_start, x.trial_sequence, m.capacity)):
            take_back(a, g, m, x)
            learn(x, BAD)
        elif g.shaped:
            x.tally[AWAITS] = 1
            return True
        else:
            learn(x, GOOD if offered < x.flat[VALUE] else SAME if offered == x.flat[VALUE] else BAD)
            _settle(a, x, g)
    return False
