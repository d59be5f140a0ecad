"""Annealing of blocks over machines: the least max-load, by shifting blocks, pairs and connected groups.

The energy is a power mean of the loads, close to their maximum but with a slope for the machines below it.
Memory that is missing weighs more than any load, and once nothing is missing no move may change that.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.placers.chains.stages import NEVER
from placewise.placers.cover.clusters import clusters
from placewise.placers.cover.state import Machines, load, missing, shift, state_of
from placewise.simulate.kernels import helper, kernel

HOT, COLD = 0.02, 2e-5
"""Temperatures, as shares of the max-load."""


def anneal(m: Machines, start: Ints, steps: int, seed: int, *, hot: float = HOT, cold: float = COLD) -> Ints:
    """The best placement [n] met on a walk of `steps` moves from `start`: nothing missing if that was met."""
    state = state_of(m, start)
    best = state.home.copy()
    if len(best) and len(m.capacity) > 1:
        _anneal(m, state, clusters(m), best, steps, np.random.default_rng(seed), hot, cold)
    return best


@helper
def _worst(m, s):
    worst = np.int64(0)
    for machine in range(len(m.capacity)):
        worst = max(worst, load(m, s, machine))
    return worst


@helper
def _energy(m, s, unit):
    total = 0.0
    for machine in range(len(m.capacity)):
        share = load(m, s, machine) / unit
        for _ in range(5):
            share *= share
        total += share
    return total ** (1 / 32)


@helper
def _partner(m, block, rng):
    """A random block that shares a tensor with `block`, or −1."""
    n_uses = m.use_offsets[block + 1] - m.use_offsets[block]
    n_makes = m.make_offsets[block + 1] - m.make_offsets[block]
    if n_uses + n_makes == 0:
        return -1
    pick = rng.integers(0, n_uses + n_makes)
    if pick < n_uses:
        tensor = m.uses[m.use_offsets[block] + pick]
        if m.producer[tensor] >= 0 and rng.random() < 0.7:
            return m.producer[tensor]
    else:
        tensor = m.makes[m.make_offsets[block] + pick - n_uses]
    first, last = m.consumer_offsets[tensor], m.consumer_offsets[tensor + 1]
    return m.consumers[rng.integers(first, last)] if last > first else -1


@helper
def _propose(m, s, g, moved, origin, width, rng):
    """Make a random move; the blocks moved and where they were go into `moved` and `origin`. Returns how many."""
    block = rng.integers(0, len(s.home))
    here, friend = s.home[block], _partner(m, block, rng)
    there = s.home[friend] if friend >= 0 else here
    if there == here or rng.random() < 0.1:
        if friend >= 0 and rng.random() < 0.5:
            return 0
        there = rng.integers(0, width)
    if there == here or m.seconds[block, there] >= NEVER:
        return 0
    kind = rng.random()
    if kind < 0.25:
        return _together(m, s, moved, origin, g, g.of[rng.integers(0, len(g.of)), block], there, here, 0)
    if kind < 0.4:
        level = rng.integers(0, len(g.of))
        done = _together(m, s, moved, origin, g, g.of[level, block], there, here, 0)
        for _ in range(10):
            other = rng.integers(0, len(s.home))
            if s.home[other] == there and g.of[level, other] != g.of[level, block]:
                return _together(m, s, moved, origin, g, g.of[level, other], here, there, done)
        return done
    moved[0], origin[0] = block, here
    shift(m, s, block, there)
    done = 1
    if kind < 0.6:
        done = _follow(m, s, moved, origin, here, there, rng)
    elif kind < 0.8:
        other = rng.integers(0, len(s.home))
        tries = 0
        while (s.home[other] != there or other == block) and tries < 20:
            other = rng.integers(0, len(s.home))
            tries += 1
        target = here if rng.random() < 0.7 else rng.integers(0, width)
        if s.home[other] == there and other != block and target != there and m.seconds[other, target] < NEVER:
            moved[1], origin[1] = other, there
            shift(m, s, other, target)
            done = 2
    return done


@helper
def _together(m, s, moved, origin, g, cluster, there, here, done):
    """All blocks of a cluster that are `here` and may run there go there; `done` moves were made before."""
    for row in range(g.offsets[cluster], g.offsets[cluster + 1]):
        block = g.members[row]
        if s.home[block] == here and m.seconds[block, there] < NEVER and done < len(moved):
            moved[done], origin[done] = block, here
            shift(m, s, block, there)
            done += 1
    return done


@helper
def _follow(m, s, moved, origin, here, there, rng):
    """Blocks around those moved go with them, a random number of times."""
    done, wanted = 1, 1 + rng.integers(1, 1 << rng.integers(1, 7))
    for _ in range(2 * wanted):
        if done >= min(wanted, len(moved)):
            break
        friend = _partner(m, moved[rng.integers(0, done)], rng)
        if friend >= 0 and s.home[friend] == here and m.seconds[friend, there] < NEVER:
            moved[done], origin[done] = friend, here
            shift(m, s, friend, there)
            done += 1
    return done


@kernel
def _anneal(m, s, g, best, steps, rng, hot, cold):
    width = len(m.capacity)
    moved, origin = np.empty(len(best), np.int64), np.empty(len(best), np.int64)
    least, short = _worst(m, s), missing(m, s)
    unit = max(float(least), 1.0)
    now, best_short = _energy(m, s, unit), short
    cooling, heat = (cold / hot) ** (1.0 / max(steps, 1)), hot
    for _ in range(steps):
        heat *= cooling
        done = _propose(m, s, g, moved, origin, width, rng)
        if done == 0:
            continue
        lacking = missing(m, s)
        after = _energy(m, s, unit)
        if lacking < short or (lacking == short and after - now < -heat * now * np.log(1.0 - rng.random())):
            now, short = after, lacking
            worst = _worst(m, s)
            if short < best_short or (short == best_short and worst < least):
                least, best_short = worst, short
                best[:] = s.home
        else:
            for i in range(done - 1, -1, -1):
                shift(m, s, moved[i], origin[i])
    return least
