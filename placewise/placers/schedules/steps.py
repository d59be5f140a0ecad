"""Moves of a chain, most of them from the critical path of its schedule; which kinds and sizes pay is learned."""

from __future__ import annotations

import numpy as np

from placewise.placers.schedules.desk import ARM, ARMS, CRITICAL, LAST, SIZES
from placewise.placers.schedules.shifts import shift
from placewise.placers.search.chance import below, share
from placewise.placers.search.leaning import LOOKS, device_at, elsewhere, rather
from placewise.simulate.kernels import lean_helper

GROUP, PATH, PART, SPELL, STRETCH, TRADE = range(ARMS)
"""A connected set, a stretch of the critical path, a part of the model, a spell of time, a stretch of the line of
ops, and two sets that change places."""
TOLD = ARMS
"""A connected set, where probabilities would have it: only where some are known."""

LEARNING, LEAST = 0.03, 0.04


@lean_helper
def find_path(a, x):
    """The critical path of the schedule into `x.path`, from its end to its beginning.

    An op waited for its last input, or for the op before it on its device; a tensor for its maker, or in a queue for
    the tensor before it.
    """
    op, n = x.tally[LAST], 0
    while op >= 0 and n < len(x.op):
        x.path[n] = op
        n += 1
        cause = np.int64(x.cause[op])
        if cause >= 0:
            waited = x.behind[cause]
            maker = np.int64(a.producer[cause])
            if waited >= 0 and a.producer[waited] >= 0 and maker >= 0 and x.ended[a.producer[waited]] <= x.ended[maker]:
                if n < len(x.op) and a.producer[waited] != maker:
                    x.path[n] = maker
                    n += 1
                maker = np.int64(a.producer[waited])
            op = maker
        else:
            op = -2 - cause if cause < -1 else -1
    x.tally[CRITICAL] = n


@lean_helper
def _arm(x):
    """Draw a kind and a size by what they were worth."""
    total = 0.0
    for i in range(len(x.merit)):
        total += x.merit[i] + LEAST
    mark = share(x.rng) * total
    for i in range(len(x.merit)):
        mark -= x.merit[i] + LEAST
        if mark < 0:
            return i
    return len(x.merit) - 1


@lean_helper
def learn(x, worth):
    """The last move was worth so much, 0 to 1."""
    x.merit[x.tally[ARM]] += LEARNING * (worth - x.merit[x.tally[ARM]])


@lean_helper
def _most(x, size, n):
    """How many blocks at most, of class `size`: 1, to 4, to 16, to 64, to 512, to all."""
    low, high = 1, 1
    if size == 1:
        low, high = 2, 4
    elif size == 2:
        low, high = 5, 16
    elif size == 3:
        low, high = 17, 64
    elif size == 4:
        low, high = 65, 512
    elif size == 5:
        low, high = 513, n
    if low > n:
        return 0
    return low + below(x.rng, max(min(high, n) - low + 1, 1))


@lean_helper
def _target(g, m, x, at, seed):
    """Where to: the device of what is near on the critical path or in the graph, any, or one with less work."""
    home, way = x.home[seed], below(x.rng, 8)
    if way < 3 and at >= 0:
        step = 1 if below(x.rng, 2) == 0 else -1
        i = at + step
        while 0 <= i < x.tally[CRITICAL]:
            there = x.home[g.block[x.path[i]]]
            if there != home:
                return there
            i += step
    first, last = m.neighbour_offsets[seed], m.neighbour_offsets[seed + 1]
    if way < 5 and first < last:
        there = x.home[m.neighbours[first + below(x.rng, last - first)]]
        if there != home:
            return there
    one = m.choices[below(x.rng, len(m.choices))]
    if way < 7:
        other = m.choices[below(x.rng, len(m.choices))]
        if other != home and (one == home or x.work[other] < x.work[one]):
            return other
    return one


@lean_helper
def step(a, g, m, levels, x):
    """Try one move: the blocks are shifted at once, `x.tally[MOVED]` says how many."""
    n = len(x.home)
    arm = _arm(x)
    x.tally[ARM] = arm
    kind, size = arm // SIZES, arm % SIZES
    if kind == TOLD:
        _told(a, g, m, x, _most(x, size, n))
        return
    at = -1
    if x.tally[CRITICAL] > 0 and below(x.rng, 8) > 2:
        at = below(x.rng, x.tally[CRITICAL])
    seed = np.int64(g.block[x.path[at]]) if at >= 0 else below(x.rng, n)
    home, target = np.int64(x.home[seed]), np.int64(_target(g, m, x, at, seed))
    if kind == PART:
        if len(levels.group) == 0:
            return
        _part(a, g, m, levels, x, seed, home, target)
        return
    most = _most(x, size, n)
    if most == 0 or (target == home and kind != TRADE):
        return
    if kind == GROUP:
        for i in range(_grow(m, x, seed, most, x.chosen)):
            shift(a, g, m, x, x.chosen[i], target)
    elif kind == PATH:
        i = max(at, 0)
        for _ in range(most):
            if i >= x.tally[CRITICAL]:
                break
            block = np.int64(g.block[x.path[i]])
            if x.home[block] == home:
                shift(a, g, m, x, block, target)
            elif block != seed and x.home[block] != target:
                break
            i += 1
    elif kind == SPELL:
        _spell(a, g, m, x, seed, most, home, target)
    elif kind == STRETCH:
        same = below(x.rng, 2) == 0
        first = seed - below(x.rng, most)
        for other in range(max(first, 0), min(first + most, n)):
            if not same or x.home[other] == home:
                shift(a, g, m, x, other, target)
    else:
        _trade(a, g, m, x, seed, most, home)


@lean_helper
def _grow(m, x, seed, most, chosen):
    """A connected set of at most `most` blocks on the device of `seed`, into `chosen`; how many."""
    count, looked = 1, 0
    chosen[0] = seed
    x.member[seed] = True
    while looked < count and count < most:
        block = chosen[looked]
        looked += 1
        first, last = m.neighbour_offsets[block], m.neighbour_offsets[block + 1]
        turn = below(x.rng, max(last - first, 1))
        for i in range(last - first):
            other = m.neighbours[first + (i + turn) % (last - first)]
            if x.home[other] == x.home[seed] and not x.member[other] and count < most:
                x.member[other] = True
                chosen[count] = other
                count += 1
    for i in range(count):
        x.member[chosen[i]] = False
    return count


@lean_helper
def _told(a, g, m, x, most):
    """A connected set around a block whose device is improbable goes where the probabilities would have it.

    All of it to one device, or each block to its own.
    """
    if most == 0:
        return
    seed = np.int64(0)
    for _ in range(LOOKS):
        seed = below(x.rng, len(x.home))
        if x.tally[CRITICAL] > 0 and below(x.rng, 8) > 2:
            seed = np.int64(g.block[x.path[below(x.rng, x.tally[CRITICAL])]])
        if share(x.rng) >= m.likely[seed, x.home[seed]]:
            break
    home, mark, together = np.int64(x.home[seed]), share(x.rng), below(x.rng, 2) == 0
    target = elsewhere(m.likely, seed, home, mark)
    for i in range(_grow(m, x, seed, most, x.chosen)):
        block = x.chosen[i]
        if not together:
            shift(a, g, m, x, block, np.int64(device_at(m.likely, block, mark)))
        elif i == 0 or rather(m.likely, block, home, target, share(x.rng)):
            shift(a, g, m, x, block, np.int64(target))


@lean_helper
def _part(a, g, m, levels, x, seed, home, target):
    """A part of the model, all of it or what of it is on one device; or two devices trade what they have of it."""
    level = below(x.rng, len(levels.group))
    part = levels.group[level, seed]
    if part < 0 or home == target:
        return
    way = below(x.rng, 3)
    for row in range(levels.offsets[level, part], levels.offsets[level, part + 1]):
        block = np.int64(levels.blocks[level, row])
        if way == 0 or x.home[block] == home:
            shift(a, g, m, x, block, target)
        elif way == 1 and x.home[block] == target:
            shift(a, g, m, x, block, home)


@lean_helper
def _spell(a, g, m, x, seed, most, home, target):
    """What one device starts from a moment on; half of the time another device gives it as much time of its own."""
    op = g.members[g.member_offsets[seed]]
    both = below(x.rng, 2) == 0
    count, i = 0, np.int64(x.turn[op])
    while count < most and i < len(x.sequence):
        block = np.int64(g.block[x.sequence[i]])
        here = x.home[block]
        if not x.member[block]:
            if here == home:
                x.member[block] = True
                x.chosen[count] = block
                count += 1
                shift(a, g, m, x, block, target)
            elif both and here == target:
                x.member[block] = True
                x.chosen[count] = block
                count += 1
                shift(a, g, m, x, block, home)
        i += 1
    for k in range(count):
        x.member[x.chosen[k]] = False


@lean_helper
def _trade(a, g, m, x, seed, most, home):
    """A connected set and one of a neighbour on another device change places."""
    first, last = m.neighbour_offsets[seed], m.neighbour_offsets[seed + 1]
    turn = below(x.rng, max(last - first, 1))
    other = -1
    for i in range(last - first):
        block = m.neighbours[first + (i + turn) % (last - first)]
        if x.home[block] != home:
            other = int(block)
            break
    if other < 0:
        other = below(x.rng, len(x.home))
    target = np.int64(x.home[other])
    if target == home:
        return
    count = _grow(m, x, seed, most, x.chosen)
    back = _grow(m, x, other, most, x.returned)
    for i in range(count):
        shift(a, g, m, x, x.chosen[i], target)
    for i in range(back):
        shift(a, g, m, x, x.returned[i], home)
