"""Blocks moved between devices until their bytes fit: eviction, then a local search over shifts and exchanges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.simulate.kernels import helper, kernel

WORK = 40_000_000
"""Blocks that the local search may look at: some tenths of a second."""
STEP = 2_000
"""What a step costs at least, so that there are not too many of them where blocks are few."""
_UNLIMITED = 1 << 60


class Cargo(NamedTuple):
    """What blocks weigh and where they may be, as kernels read it; bytes are whole.

    A storage that several blocks use is held once per device.
    """

    own: Longs  # [n_blocks] state, and weights that no other block uses
    offsets: Longs  # [n_blocks + 1] into `storage`
    storage: Ints  # shared storages of each block
    stored: Longs  # [n_storages] bytes
    runs: Bools  # [n_blocks, n_devices]
    damage: Floats  # [n_blocks, n_devices] seconds of each block
    near: Longs  # [n_blocks + 1] into `other`
    other: Ints  # blocks that exchange a tensor with each block
    pull: Floats  # seconds of that tensor


def settle(cargo: Cargo, home: Ints, room: Floats, *, seed: int = 0, work: int = WORK) -> bool:
    """Move blocks [n_blocks], in place, until every device's bytes stay within `room` [n_devices]; whether they do."""
    limit = np.where(np.isfinite(room), np.minimum(room, _UNLIMITED), _UNLIMITED).astype(np.int64)
    uses = np.zeros((len(limit), len(cargo.stored) if len(cargo.storage) else 0), np.int32)
    load = np.zeros(len(limit), np.int64)
    _admit(cargo, home, limit, load, uses)
    while (over := np.flatnonzero(load > limit)).size:
        before = int(np.maximum(load - limit, 0).sum())
        for d in over[np.argsort(limit[over] - load[over])].tolist():
            _evict(cargo, home, limit, load, uses, d)
        if int(np.maximum(load - limit, 0).sum()) >= before:
            break
    if (load <= limit).all():
        return True
    if int(cargo.own.sum()) > sum(limit.tolist()):
        return False
    order = np.argsort(-cargo.own, kind="stable")
    return bool(_squeeze(cargo, home, limit, load, uses, order, np.random.default_rng(seed), work))


def fill(cargo: Cargo, room: Floats, *, even: bool) -> Ints:
    """The device [n_blocks] of every block, largest first: where most room is left if `even`, else the least enough.

    Where none has room, the one that has most.
    """
    limit = np.where(np.isfinite(room), np.minimum(room, _UNLIMITED), _UNLIMITED).astype(np.int64)
    size = cargo.own.copy()
    np.add.at(size, np.repeat(np.arange(len(size)), np.diff(cargo.offsets)), cargo.stored[cargo.storage])
    choices = cargo.runs.sum(axis=1)
    home = np.full(len(size), -1, np.int32)
    uses = np.zeros((len(limit), len(cargo.stored) if len(cargo.storage) else 0), np.int32)
    _fill(cargo, home, limit, uses, np.lexsort((choices, -size)), even)
    return home


@helper
def _gain(own: Longs, offsets: Longs, storage: Ints, stored: Longs, uses: Ints, block: int, d: int) -> int:
    """Bytes that device d would need for a block that is not there."""
    total: int = own[block]
    for row in range(offsets[block], offsets[block + 1]):
        if uses[d, storage[row]] == 0:
            total += stored[storage[row]]
    return total


@helper
def _relief(own: Longs, offsets: Longs, storage: Ints, stored: Longs, uses: Ints, block: int, d: int) -> int:
    """Bytes that device d would be rid of without a block that is there."""
    total: int = own[block]
    for row in range(offsets[block], offsets[block + 1]):
        if uses[d, storage[row]] == 1:
            total += stored[storage[row]]
    return total


@helper
def _put(own: Longs, offsets: Longs, storage: Ints, stored: Longs, uses: Ints, load: Longs, block: int, d: int) -> None:
    load[d] += own[block]
    for row in range(offsets[block], offsets[block + 1]):
        if uses[d, storage[row]] == 0:
            load[d] += stored[storage[row]]
        uses[d, storage[row]] += 1


@helper
def _take(
    own: Longs, offsets: Longs, storage: Ints, stored: Longs, uses: Ints, load: Longs, block: int, d: int
) -> None:
    load[d] -= own[block]
    for row in range(offsets[block], offsets[block + 1]):
        uses[d, storage[row]] -= 1
        if uses[d, storage[row]] == 0:
            load[d] -= stored[storage[row]]


@helper
def _cost(damage: Floats, near: Longs, other: Ints, pull: Floats, home: Ints, block: int, d: int) -> float:
    """Seconds of a block on device d: its ops, and its tensors to and from elsewhere."""
    seconds: float = damage[block, d]
    for row in range(near[block], near[block + 1]):
        if home[other[row]] != d:
            seconds += pull[row]
    return seconds


@kernel
def _admit(cargo: Cargo, home: Ints, limit: Longs, load: Longs, uses: Ints) -> None:
    """Load every device with its blocks; those that may not be where they are go where there is room, and are quick."""
    own, offsets, storage, stored = cargo.own, cargo.offsets, cargo.storage, cargo.stored
    runs, damage, near, other, pull = cargo.runs, cargo.damage, cargo.near, cargo.other, cargo.pull
    count = len(limit)
    for block in range(len(home)):
        if 0 <= home[block] < count and runs[block, home[block]]:
            _put(own, offsets, storage, stored, uses, load, block, home[block])
        else:
            home[block] = -1
    for block in range(len(home)):
        if home[block] >= 0:
            continue
        best, least, fits = -1, np.inf, False
        for d in range(count):
            if not runs[block, d]:
                continue
            short = load[d] + _gain(own, offsets, storage, stored, uses, block, d) - limit[d]
            cost = _cost(damage, near, other, pull, home, block, d) if short <= 0 else float(short)
            if best < 0 or (short <= 0 and not fits) or ((short <= 0) == fits and cost < least):
                best, least, fits = d, cost, short <= 0
        home[block] = best
        _put(own, offsets, storage, stored, uses, load, block, best)


@kernel
def _fill(cargo: Cargo, home: Ints, limit: Longs, uses: Ints, order: Longs, even: bool) -> None:
    own, offsets, storage, stored, runs = cargo.own, cargo.offsets, cargo.storage, cargo.stored, cargo.runs
    load = np.zeros(len(limit), np.int64)
    for block in order:
        best, most, fits = -1, np.int64(0), False
        for d in range(len(limit)):
            if not runs[block, d]:
                continue
            left = limit[d] - load[d] - _gain(own, offsets, storage, stored, uses, block, d)
            enough = left >= 0
            better = left > most if even or not enough else left < most
            if best < 0 or (enough and not fits) or (enough == fits and better):
                best, most, fits = d, left, enough
        home[block] = best
        _put(own, offsets, storage, stored, uses, load, block, best)


@kernel
def _evict(cargo: Cargo, home: Ints, limit: Longs, load: Longs, uses: Ints, source: int) -> None:
    """Move blocks from a device that is too full to those that have room, cheapest per byte first."""
    own, offsets, storage, stored = cargo.own, cargo.offsets, cargo.storage, cargo.stored
    runs, damage, near, other, pull = cargo.runs, cargo.damage, cargo.near, cargo.other, cargo.pull
    count = len(limit)
    here = np.flatnonzero(home == source)
    price = np.full(len(here), np.inf)
    for row in range(len(here)):
        block = here[row]
        freed = _relief(own, offsets, storage, stored, uses, block, source)
        if freed <= 0 and offsets[block] == offsets[block + 1]:
            continue
        stay = _cost(damage, near, other, pull, home, block, source)
        for d in range(count):
            if d == source or not runs[block, d]:
                continue
            if load[d] + _gain(own, offsets, storage, stored, uses, block, d) <= limit[d]:
                more = (_cost(damage, near, other, pull, home, block, d) - stay) / max(freed, 1)
                price[row] = min(price[row], more)
    for row in np.argsort(price, kind="mergesort"):
        if load[source] <= limit[source] or price[row] == np.inf:
            return
        block = here[row]
        best, least = -1, np.inf
        for d in range(count):
            if d == source or not runs[block, d]:
                continue
            if load[d] + _gain(own, offsets, storage, stored, uses, block, d) <= limit[d]:
                cost = _cost(damage, near, other, pull, home, block, d)
                if cost < least:
                    best, least = d, cost
        if best >= 0:
            _take(own, offsets, storage, stored, uses, load, block, source)
            _put(own, offsets, storage, stored, uses, load, block, best)
            home[block] = best


@kernel
def _squeeze(
    cargo: Cargo, home: Ints, limit: Longs, load: Longs, uses: Ints, order: Longs, rng: np.random.Generator, work: int
) -> bool:
    """Shift and exchange blocks between pairs of devices until no device has too much; whether that came about.

    `order` [n_blocks] lists blocks by falling size. Of a pair, those two blocks change places whose difference comes
    nearest to what the one must lose and the other can take.
    """
    own, offsets, storage, stored, runs = cargo.own, cargo.offsets, cargo.storage, cargo.stored, cargo.runs
    n, count = len(home), len(limit)
    barred = np.zeros(n, np.int64)
    best_excess, best = _UNLIMITED, home.copy()
    step = 0
    start, listed, fill = np.zeros(count + 1, np.int64), np.empty(n, np.int64), np.empty(count, np.int64)
    while work > 0:
        step += 1
        excess, source, seen = 0, -1, 0
        for d in range(count):
            if load[d] > limit[d]:
                excess += load[d] - limit[d]
                seen += 1
                if rng.integers(0, seen) == 0:
                    source = d
        if excess < best_excess:
            best_excess = excess
            best[:] = home
        if excess == 0:
            return True
        start[:] = 0
        for block in range(n):
            start[home[block] + 1] += 1
        for d in range(count):
            start[d + 1] += start[d]
            fill[d] = start[d]
        for row in range(n):
            block = order[row]
            listed[fill[home[block]]] = block
            fill[home[block]] += 1
        work -= 4 * n + STEP
        chosen, partner, target, least = -1, -1, -1, np.inf
        for t in range(count):
            if t == source:
                continue
            lose, free = load[source] - limit[source], limit[t] - load[t]
            low, high = max(min(lose, free), 1), max(lose, free)
            wish = low + rng.random() * (high - low) if high > low else low
            cursor = start[t]
            for row in range(start[source], start[source + 1]):
                block = listed[row]
                if not runs[block, t] or barred[block] > step:
                    continue
                while cursor < start[t + 1] and own[block] - own[listed[cursor]] < low:
                    cursor += 1
                for place in (cursor - 1, cursor, start[t + 1]):
                    other = -1
                    if start[t] <= place < start[t + 1]:
                        other = listed[place]
                        if not runs[other, source] or barred[other] > step:
                            continue
                    elif place != start[t + 1]:
                        continue
                    moved = own[block] - (own[other] if other >= 0 else 0)
                    if moved == 0 and offsets[block] == offsets[block + 1]:
                        continue
                    miss = max(low - moved, moved - high, 0)
                    rate = miss + 1e-9 * abs(moved - wish)
                    if rate < least:
                        chosen, partner, target, least = block, other, t, rate
            work -= 3 * (start[source + 1] - start[source]) + (start[t + 1] - start[t])
        tenure = 3 + rng.integers(0, 8) + min(n // 8, 20)
        if chosen < 0 or rng.random() < 0.03:
            stray, t = int(rng.integers(0, n)), int(rng.integers(0, count))
            if runs[stray, t] and home[stray] != t:
                _take(own, offsets, storage, stored, uses, load, stray, home[stray])
                _put(own, offsets, storage, stored, uses, load, stray, t)
                home[stray] = t
                barred[stray] = step + tenure
            continue
        _take(own, offsets, storage, stored, uses, load, chosen, source)
        if partner >= 0:
            _take(own, offsets, storage, stored, uses, load, partner, target)
            _put(own, offsets, storage, stored, uses, load, partner, source)
            home[partner] = source
            barred[partner] = step + tenure
        _put(own, offsets, storage, stored, uses, load, chosen, target)
        home[chosen] = target
        barred[chosen] = step + tenure
    home[:] = best
    return False
