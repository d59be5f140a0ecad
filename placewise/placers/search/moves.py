"""Random moves of groups between devices: what a search proposes.

- *shift*: one group goes where a neighbour is; *swap*: another one comes back.
- *follow*: neighbours on the same device go too, a connected set of any size.
- *cluster*, *exchange of clusters*: sets that dear tensors hold together, in several sizes.
- *border*: several groups on the border between two devices cross it.
- *path*, *stretch*: groups that read from each other, one after the other, or that stand side by side in the graph.
- *exchange*: two unequal devices trade all that they have.

Where stages form a chain, `order` says where each device stands in it. A group that moves later takes with it what
must not be earlier, and the other way round, so that every move leads from chain to chain.

Where probabilities are known, they say of some of the moves which group goes, and where; the kinds are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Floats, Ints, Longs
from placewise.placers.chains.stages import NEVER
from placewise.placers.search.chance import below, share
from placewise.placers.search.costs import Costs
from placewise.placers.search.leaning import TOLD_EVERY, doubtful, elsewhere
from placewise.simulate.kernels import inlined

_LOOKS = 16
"""Groups looked at, at most, for one that has a neighbour elsewhere."""
_TRIES = 12
"""Draws for a group that is on a given device."""


class Mover(NamedTuple):
    """Room for one move, and what moves need: `pairs` are devices whose exchange is worth a try."""

    rng: npt.NDArray[np.uint64]  # [1]
    moved: Ints  # [2 n + 2]
    origin: Ints  # [2 n + 2] where each was
    goal: Ints  # [2 n + 2] where each goes
    cursor: Longs  # [1] where the search for borders goes on
    order: Ints  # [n_devices] the position of each device in the chain
    pairs: Ints  # [k, 2]
    traded: Longs  # [1] which pair has just changed places, −1 for none
    likely: Floats  # [n, n_devices] probabilities, [0, n_devices] if nobody told any


def mover(c: Costs, seed: int, order: Ints, pairs: Ints, likely: Floats) -> Mover:
    """Room for moves of these groups."""
    n = len(c.size)
    return Mover(
        np.array([seed], np.uint64),
        np.zeros(2 * n + 2, np.int32),
        np.zeros(2 * n + 2, np.int32),
        np.zeros(2 * n + 2, np.int32),
        np.array([seed % max(n, 1)]),
        np.array(order, np.int32),
        pairs,
        np.full(1, -1),
        likely,
    )


@inlined
def propose(c, s, g, w):
    """Make a random move in `home` alone: how many groups moved, one after the other, 0 for none."""
    n, rng = len(s.home), w.rng
    w.traded[0] = -1
    if len(w.pairs) > 0 and below(rng, 64 + 4 * n) == 0:
        return _exchange(c, s, w)
    group, friend = _seed(c, s, w)
    here = s.home[group]
    there = s.home[friend] if friend >= 0 else here
    if len(w.likely) > 0 and below(rng, TOLD_EVERY) == 0:
        group = doubtful(w.likely, s.home, rng)
        here = s.home[group]
        there = elsewhere(w.likely, group, here, share(rng))
    elif there == here or below(rng, 10) == 0:
        if friend >= 0 and below(rng, 2) == 0:
            return 0
        there = below(rng, len(c.capacity))
    if there == here or not able(c, group, there):
        return 0
    if c.shaped and not c.ordered and s.filled[there] == 0:
        _place_empty(w, here, there)
    kind = below(rng, 32)
    if kind < 9 and not _needs_more(c, s, w, group, there):
        w.moved[0], w.origin[0], s.home[group] = group, here, there
        return 1
    if kind < 15:
        return _swap(c, s, w, group, here, there)
    if kind < 20:
        return _follow(c, s, w, group, here, there)
    if kind < 24:
        return _together(c, s, w, g, g.of[below(rng, len(g.of)), group], here, there, 0)
    if kind < 27:
        return _trade(c, s, w, g, group, here, there)
    if kind < 29:
        return _border(c, s, w, group, here, there)
    if kind < 30:
        return _path(c, s, w, group, here, there)
    return _stretch(c, s, w, group, here, there)


@inlined
def able(c, group, device):
    """Whether a group may run on a device."""
    return c.seconds[group, c.kind[device]] < NEVER


@inlined
def take_back(w):
    """Devices that changed places in the chain go back."""
    if w.traded[0] >= 0:
        _change_places(w, w.traded[0])


@inlined
def _undo(s, w, done):
    for i in range(done - 1, -1, -1):
        s.home[w.moved[i]] = w.origin[i]


@inlined
def _neighbour(c, group, rng):
    """A random group that shares a tensor with this one, or −1."""
    first_use, first_make = c.use_offsets[group], c.make_offsets[group]
    n_uses = c.use_offsets[group + 1] - first_use
    n_makes = c.make_offsets[group + 1] - first_make
    if n_uses + n_makes == 0:
        return -1
    pick = below(rng, n_uses + n_makes)
    if pick < n_uses:
        tensor = c.uses[first_use + pick]
        if c.producer[tensor] >= 0 and below(rng, 10) < 7:
            return c.producer[tensor]
    else:
        tensor = c.makes[first_make + pick - n_uses]
    first, last = c.consumer_offsets[tensor], c.consumer_offsets[tensor + 1]
    return c.consumers[first + below(rng, last - first)] if last > first else -1


@inlined
def _seed(c, s, w):
    """A group and a neighbour: half of the time the next of those found to have one elsewhere."""
    n = len(s.home)
    group = below(w.rng, n)
    friend = _neighbour(c, group, w.rng)
    if below(w.rng, 2) == 0:
        return group, friend
    for _ in range(_LOOKS):
        if friend >= 0 and s.home[friend] != s.home[group]:
            break
        w.cursor[0] += 1
        if w.cursor[0] >= n:
            w.cursor[0] = 0
        group = w.cursor[0]
        friend = _neighbour(c, group, w.rng)
    return group, friend


@inlined
def _many(rng, most):
    """How many: few most often, but twice as many are never much less likely."""
    top = 1
    while top < most and below(rng, 4) > 0:
        top *= 2
    return min(most, top - below(rng, (top + 1) // 2))


@inlined
def _resident(s, w, device):
    """A random group on a device, or −1 if a few draws find none."""
    for _ in range(_TRIES):
        group = below(w.rng, len(s.home))
        if s.home[group] == device:
            return group
    return -1


@inlined
def _needs_more(c, s, w, group, there):
    """Whether other groups must move with this one, so that the stages remain a chain."""
    if not c.shaped:
        return False
    here, target = w.order[s.home[group]], w.order[there]
    if here < target:
        for row in range(c.after_offsets[group], c.after_offsets[group + 1]):
            if w.order[s.home[c.after[row]]] < target:
                return True
    else:
        for row in range(c.before_offsets[group], c.before_offsets[group + 1]):
            if w.order[s.home[c.before[row]]] > target:
                return True
    return False


@inlined
def _send(c, s, w, group, there, done):
    """Move a group; the number of moves so far, −1 (and all undone) if what must follow cannot."""
    at = done
    w.moved[done], w.origin[done] = group, s.home[group]
    s.home[group] = there
    done += 1
    if not c.shaped:
        return done
    target, most = w.order[there], min(2 << below(w.rng, 9), len(s.home))
    later = w.order[w.origin[at]] < target
    offsets, others = (c.after_offsets, c.after) if later else (c.before_offsets, c.before)
    begun = at
    while at < done:
        mover = w.moved[at]
        at += 1
        for row in range(offsets[mover], offsets[mover + 1]):
            other = others[row]
            position = w.order[s.home[other]]
            if position == target or (position < target) != later:
                continue
            if done - begun >= most or done >= len(w.moved) - 1 or not able(c, other, there):
                _undo(s, w, done)
                return -1
            w.moved[done], w.origin[done] = other, s.home[other]
            s.home[other] = there
            done += 1
    return done


@inlined
def _swap(c, s, w, group, here, there):
    done = _send(c, s, w, group, there, 0)
    other = _resident(s, w, there)
    if done < 0:
        return 0
    target = here if below(w.rng, 10) < 7 else below(w.rng, len(c.capacity))
    if other >= 0 and other != group and target != there and able(c, other, target):
        done = _send(c, s, w, other, target, done)
    return max(done, 0)


@inlined
def _follow(c, s, w, group, here, there):
    done = _send(c, s, w, group, there, 0)
    wanted = _many(w.rng, 128)
    for _ in range(2 * wanted):
        if done < 0 or done >= min(wanted, len(s.home)):
            break
        friend = _neighbour(c, w.moved[below(w.rng, done)], w.rng)
        if friend >= 0 and s.home[friend] == here and able(c, friend, there):
            done = _send(c, s, w, friend, there, done)
    return max(done, 0)


@inlined
def _together(c, s, w, g, cluster, here, there, done):
    """All groups of a cluster that are `here` and may run there go there; `done` moves were made before."""
    for row in range(g.offsets[cluster], g.offsets[cluster + 1]):
        group = g.members[row]
        if s.home[group] == here and able(c, group, there) and done >= 0 and done < len(w.moved) - 1:
            done = _send(c, s, w, group, there, done)
    return max(done, 0)


@inlined
def _trade(c, s, w, g, group, here, there):
    """A cluster goes there, and another of its size comes back."""
    level = below(w.rng, len(g.of))
    other = _resident(s, w, there)
    done = _together(c, s, w, g, g.of[level, group], here, there, 0)
    if done > 0 and other >= 0 and g.of[level, other] != g.of[level, group]:
        done = _together(c, s, w, g, g.of[level, other], there, here, done)
    return done


@inlined
def _border(c, s, w, group, here, there):
    done = _send(c, s, w, group, there, 0)
    wanted, at = _many(w.rng, 32), group
    for _ in range(4 * wanted):
        if done < 0 or done >= min(wanted, len(s.home)):
            break
        at = at + 1 if at + 1 < len(s.home) else 0
        if s.home[at] != here or not able(c, at, there):
            continue
        friend = _neighbour(c, at, w.rng)
        if friend >= 0 and s.home[friend] == there:
            done = _send(c, s, w, at, there, done)
    return max(done, 0)


@inlined
def _path(c, s, w, group, here, there):
    done, at = _send(c, s, w, group, there, 0), group
    for _ in range(_many(w.rng, 64)):
        first, last = c.make_offsets[at], c.make_offsets[at + 1]
        if done < 0 or first == last:
            break
        tensor = c.makes[first + below(w.rng, last - first)]
        first, last = c.consumer_offsets[tensor], c.consumer_offsets[tensor + 1]
        if first == last:
            break
        at = c.consumers[first + below(w.rng, last - first)]
        if s.home[at] == here and able(c, at, there) and done < len(w.moved) - 1:
            done = _send(c, s, w, at, there, done)
    return max(done, 0)


@inlined
def _stretch(c, s, w, group, here, there):
    done = _send(c, s, w, group, there, 0)
    for at in range(group + 1, min(group + _many(w.rng, 256), len(s.home))):
        if done >= 0 and s.home[at] == here and able(c, at, there):
            done = _send(c, s, w, at, there, done)
    return max(done, 0)


@inlined
def _exchange(c, s, w):
    """Two devices trade all groups, and their positions in the chain."""
    pair = below(w.rng, len(w.pairs))
    one, other, done = w.pairs[pair, 0], w.pairs[pair, 1], 0
    for group in range(len(s.home)):
        if s.home[group] == one or s.home[group] == other:
            there = other if s.home[group] == one else one
            if not able(c, group, there):
                _undo(s, w, done)
                return 0
            w.moved[done], w.origin[done] = group, s.home[group]
            s.home[group] = there
            done += 1
    _change_places(w, pair)
    return done


@inlined
def _change_places(w, pair):
    one, other = w.pairs[pair, 0], w.pairs[pair, 1]
    place = w.order[one]
    w.order[one] = w.order[other]
    w.order[other] = place
    w.traded[0] = pair


@inlined
def _place_empty(w, here, there):
    """An empty device takes the place right before or behind `here`, at random."""
    old, new = w.order[there], w.order[here]
    if old < new and below(w.rng, 2) == 0:
        new -= 1
    elif old > new and below(w.rng, 2) == 0:
        new += 1
    for d in range(len(w.order)):
        if old < w.order[d] <= new:
            w.order[d] -= 1
        elif new <= w.order[d] < old:
            w.order[d] += 1
    w.order[there] = new
