"""Random moves of blocks between devices that keep support and resident bytes.

A move takes a connected set of blocks that share a device, or a stretch of the line of ops, to another device:
most often to that of a neighbour, so that less is transferred; sometimes the neighbour's blocks come back in
exchange, so that full devices can trade. Where probabilities are known, every so often they say what moves, and where.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs, distinct, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.common.holdings import holdings, may_run
from placewise.placers.common.probabilities import nothing
from placewise.placers.search.chance import below, share
from placewise.placers.search.leaning import TOLD_EVERY, device_at, doubtful, elsewhere, rather
from placewise.simulate.kernels import helper, kernel

_TRIES = 8


class Movable(NamedTuple):
    """The blocks of a problem, what they need and who their neighbours are: read-only arrays for kernels."""

    allowed: Bools  # [n_blocks, n_devices]
    choices: Ints  # the devices worth choosing from
    capacity: Floats  # [n_devices]
    state: Longs  # [n_blocks]
    user_offsets: Longs  # [n_storages + 1]
    users: Ints  # the blocks that use each storage
    storage_bytes: Longs  # [n_storages]
    neighbour_offsets: Longs  # [n_blocks + 1]
    neighbours: Ints
    likely: Floats  # [n_blocks, n_devices] probabilities, [0, n_devices] if nobody told any


def movable(problem: Problem, likely: Floats | None = None) -> Movable:
    """Blocks as kernels see them, and the probabilities of their devices if there are any.

    Where hosts run everything at once and are not limited, any of them does; only the first is offered, if all may
    run the same.
    """
    n, graph = problem.n_blocks, problem.graph
    held, allowed = holdings(problem, problem.block, n), may_run(problem, problem.block, n)
    by_storage = np.argsort(held.storage, kind="stable")
    tail = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    made = tail >= 0
    one, other = problem.block[tail[made]].astype(np.int64), problem.block[graph.consumers[made]].astype(np.int64)
    pairs = distinct(np.concatenate((one * n + other, other * n + one))[np.concatenate((one != other, other != one))])
    return Movable(
        frozen(allowed, np.bool_),
        frozen(choices(problem, allowed), np.int32),
        problem.capacity,
        frozen(held.state, np.int64),
        frozen(offsets_of(held.storage[by_storage], len(held.stored)), np.int64),
        frozen(held.group[by_storage], np.int32),
        frozen(held.stored, np.int64),
        frozen(offsets_of(pairs // max(n, 1), n), np.int64),
        frozen(pairs % max(n, 1), np.int32),
        nothing(problem.n_devices) if likely is None else likely,
    )


def choices(problem: Problem, allowed: Bools) -> Ints:
    """The devices worth choosing from; see `movable`."""
    hosts = np.flatnonzero(problem.cluster.is_host)
    devices: Ints = np.arange(problem.n_devices, dtype=np.int32)
    if problem.objective.execution != "subgraph" or not len(hosts) or np.isfinite(problem.capacity[hosts]).any():
        return devices
    seconds = problem.costs.op_seconds[:, hosts]
    same = (seconds == seconds[:, :1]).all() and (allowed[:, hosts] == allowed[:, hosts[:1]]).all()
    return devices[~np.isin(devices, hosts[1:])] if same and not problem.constraints.shaped else devices


@helper
def _draw(state, k, n):
    """A random integer below n from the k-th of several generators (splitmix64, Steele et al. 2014)."""
    state[k] += np.uint64(0x9E3779B97F4A7C15)
    z = state[k]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(33)) % n


@helper
def _grow(m, home, seed, most, state, k, chosen, member):
    """A connected set of at most `most` blocks on the device of `seed`, into `chosen`; how many."""
    count, looked = 1, 0
    chosen[0] = seed
    member[seed] = True
    while looked < count and count < most:
        block = chosen[looked]
        looked += 1
        first, last = m.neighbour_offsets[block], m.neighbour_offsets[block + 1]
        turn = _draw(state, k, max(last - first, 1))
        for i in range(last - first):
            other = m.neighbours[first + (i + turn) % (last - first)]
            if home[other] == home[seed] and not member[other] and count < most:
                member[other] = True
                chosen[count] = other
                count += 1
    for i in range(count):
        member[chosen[i]] = False
    return count


@helper
def _size(state, k, n):
    """How many blocks to move: one half of the time, else up to any power of two."""
    most = 1
    while most < n and _draw(state, k, 2) == 0:
        most *= 2
    return 1 + _draw(state, k, most)


@helper
def _target(m, home, seed, state, k):
    """A device for `seed`: a neighbour's most often, else any; and the neighbour, −1 for none."""
    first, last = m.neighbour_offsets[seed], m.neighbour_offsets[seed + 1]
    if first < last and _draw(state, k, 3) > 0:
        other = m.neighbours[first + _draw(state, k, last - first)]
        if home[other] != home[seed]:
            return home[other], other
    return m.choices[_draw(state, k, len(m.choices))], -1


@helper
def _send(m, home, chosen, count, target):
    """Move the chosen blocks that may run on `target`."""
    for i in range(count):
        if m.allowed[chosen[i], target]:
            home[chosen[i]] = target


@helper
def _stretch(m, home, seed, most, target, same):
    """Move the blocks from `seed` on along the line, all or those on the seed's device."""
    origin = home[seed]
    for block in range(seed, min(seed + most, len(home))):
        if m.allowed[block, target] and (home[block] == origin or not same):
            home[block] = target


@helper
def fits(m, home):
    """Whether resident bytes stay within every device."""
    used = np.zeros(m.allowed.shape[1])
    for block in range(len(home)):
        used[home[block]] += m.state[block]
    stamp = np.full(len(used), -1)
    for s in range(len(m.storage_bytes)):
        for row in range(m.user_offsets[s], m.user_offsets[s + 1]):
            d = home[m.users[row]]
            if stamp[d] != s:
                stamp[d] = s
                used[d] += m.storage_bytes[s]
    return not np.any(used > m.capacity)


@helper
def _move(m, home, state, k, chosen, returned, member):
    """Send a stretch of the line, or a connected set, for which another one may come back."""
    n = len(home)
    seed = _draw(state, k, n)
    target, other = _target(m, home, seed, state, k)
    origin, kind = home[seed], _draw(state, k, 4)
    if kind == 0:
        _stretch(m, home, seed, _size(state, k, n), target, _draw(state, k, 2) == 0)
        return
    count = _grow(m, home, seed, _size(state, k, n), state, k, chosen, member)
    back = 0
    if kind == 1 and other >= 0:
        back = _grow(m, home, other, _size(state, k, n), state, k, returned, member)
    _send(m, home, chosen, count, target)
    _send(m, home, returned, back, origin)


@helper
def _told(m, home, state, k, chosen, member):
    """Send a connected set where the probabilities would have it: all to one device, or each to its own."""
    rng = state[k : k + 1]
    seed = doubtful(m.likely, home, rng)
    origin, mark, together = home[seed], share(rng), below(rng, 2) == 0
    count = _grow(m, home, seed, _size(state, k, len(home)), state, k, chosen, member)
    target = elsewhere(m.likely, seed, origin, mark)
    for i in range(count):
        block = chosen[i]
        if not together:
            home[block] = device_at(m.likely, block, mark)
        elif m.allowed[block, target] and (i == 0 or rather(m.likely, block, origin, target, share(rng))):
            home[block] = target


@kernel
def propose_moves(m, homes, state, candidates):
    """A neighbour of each row of `homes` [K, n_blocks] into `candidates`; `state` [K] are random generators.

    The row itself comes back where a few tries found nothing that fits.
    """
    n = homes.shape[1]
    chosen, returned, member = np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(n, np.bool_)
    for k in range(len(homes)):
        for _ in range(_TRIES):
            home = candidates[k]
            home[:] = homes[k]
            if len(m.likely) > 0 and _draw(state, k, TOLD_EVERY) == 0:
                _told(m, home, state, k, chosen, member)
            else:
                _move(m, home, state, k, chosen, returned, member)
            if np.any(home != homes[k]) and fits(m, home):
                break
            home[:] = homes[k]
