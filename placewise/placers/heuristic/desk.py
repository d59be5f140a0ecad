"""What list schedulers share: the homes of blocks and the memory they take, and when inputs can be where.

A transfer takes the first gap on its link's queue that is long enough (edge scheduling: Sinnen and Sousa, IEEE TPDS
16 (2005)): bookings come in the order of the readers, and the judge sends a tensor when its maker finishes. A gap that
is not among the latest `MOST_GAPS` of its queue, or the `LOOK` first that end late enough, is not seen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.common.holdings import holdings, may_run
from placewise.simulate.arrays import Arrays
from placewise.simulate.kernels import lean_helper

LOOK = 64
MOST_GAPS = 1024
GAP_BUDGET = 1 << 22
"""Gaps of all queues together."""


class Blocks(NamedTuple):
    """Colocation groups: the block of each op, where it may run, and what it needs there.

    `plan` is a placement of the blocks that fits: what is reserved for a block is free for others as soon as it has
    gone elsewhere, and `own` is what it then leaves. −1: nothing is reserved.
    """

    of: Ints  # [n_ops]
    allowed: Bools  # [n_blocks, n_devices]
    plan: Ints  # [n_blocks] device, −1: none
    state: Longs  # [n_blocks] bytes
    own: Longs  # [n_blocks] bytes of state and of storages that no other block uses
    storage_offsets: Longs  # [n_blocks + 1]
    storages: Ints
    storage_bytes: Longs
    room: Longs  # [n_devices] bytes


class Gaps(NamedTuple):
    """When resources (queues, or streams of devices) are idle: gaps in the order of time, and all from `tail` on."""

    start: Floats  # [n, most]
    end: Floats  # [n, most]
    number: Longs  # [n]
    tail: Floats  # [n]


class Homes(NamedTuple):
    """Where blocks are, and what room that leaves."""

    home: Ints  # [n_blocks] device, −1: open
    stored: Bools  # [n_storages, n_devices]
    room: Longs  # [n_devices] bytes that are neither used nor reserved


class Desk(NamedTuple):
    """What is decided so far: `Homes`, and times."""

    home: Ints
    stored: Bools
    room: Longs
    finish: Floats  # [n_ops]
    arrival: Floats  # [n_tensors, n_devices + 1] at each location, −1: not sent there
    queues: Gaps  # [n_queues]


def blocks_of(problem: Problem, capacity: Floats, plan: Ints | None = None) -> Blocks:
    """The blocks, what they need, and room of `capacity` [n_devices]; `plan` [n_blocks] must fit into it."""
    return groups_of(problem, problem.block, problem.n_blocks, capacity, plan)


def groups_of(problem: Problem, group: Ints, n: int, capacity: Floats, plan: Ints | None = None) -> Blocks:
    """The same for any groups of ops [n_ops] → 0…n − 1."""
    held = holdings(problem, group, n)
    users = np.bincount(held.storage, minlength=len(held.stored))
    alone = users[held.storage] == 1
    own = held.state.copy()
    np.add.at(own, held.group[alone], held.stored[held.storage[alone]])
    return Blocks(
        of=group,
        allowed=frozen(may_run(problem, group, n), np.bool_),
        plan=frozen(np.full(n, -1) if plan is None else plan, np.int32),
        state=frozen(held.state, np.int64),
        own=frozen(own, np.int64),
        storage_offsets=frozen(offsets_of(held.group, n), np.int64),
        storages=frozen(held.storage, np.int32),
        storage_bytes=frozen(held.stored, np.int64),
        room=frozen(np.floor(np.minimum(capacity, 2.0**62)), np.int64),
    )


def homes(b: Blocks) -> Homes:
    """No block anywhere; only the places of the plan are reserved."""
    stored = np.zeros((len(b.storage_bytes), len(b.room)), np.bool_)
    room, planned = b.room.copy(), np.flatnonzero(b.plan >= 0)
    np.subtract.at(room, b.plan[planned], b.state[planned])
    block = np.repeat(np.arange(len(b.state)), np.diff(b.storage_offsets))
    kept = b.plan[block] >= 0
    stored[b.storages[kept], b.plan[block[kept]]] = True
    room -= np.array([b.storage_bytes[there].sum() for there in stored.T], np.int64)
    return Homes(np.full(len(b.state), -1, np.int32), stored, room)


def desk(a: Arrays, b: Blocks) -> Desk:
    """An empty desk."""
    arrival = np.full((len(a.producer), len(b.room) + 1), -1.0)
    return Desk(*homes(b), finish=np.zeros(len(b.of)), arrival=arrival, queues=gaps(a.n_queues))


def gaps(n: int) -> Gaps:
    """Resources that are idle from 0 on."""
    most = max(min(MOST_GAPS, GAP_BUDGET // max(n, 1)), 8)
    return Gaps(np.zeros((n, most)), np.zeros((n, most)), np.zeros(n, np.int64), np.zeros(n))


@lean_helper
def fits(b, x, block, d):
    """Whether a block that is nowhere yet may go to device d: a place is reserved for it there, or there is room."""
    return b.allowed[block, d] and (b.plan[block] == d or needed(b, x, block, d) <= x.room[d])


@lean_helper
def needed(b, x, block, d):
    """The bytes that `block` still needs on device d, where some storages may be already."""
    total = b.state[block]
    for row in range(b.storage_offsets[block], b.storage_offsets[block + 1]):
        if not x.stored[b.storages[row], d]:
            total += b.storage_bytes[b.storages[row]]
    return total


@lean_helper
def settle(b, x, block, d):
    """Give `block` a home, and the place that was reserved for it elsewhere to others."""
    x.home[block] = d
    if b.plan[block] == d:
        return
    x.room[d] -= needed(b, x, block, d)
    for row in range(b.storage_offsets[block], b.storage_offsets[block + 1]):
        x.stored[b.storages[row], d] = True
    if b.plan[block] >= 0:
        x.room[b.plan[block]] += b.own[block]


@lean_helper
def inputs_at(a, inputs, x, op, target, device, commit):
    """When everything that `op` reads is at location `target`; `commit` books the transfers."""
    host, latest = len(a.location), 0.0
    for row in range(inputs[0][op], inputs[0][op + 1]):
        tensor = inputs[1][row]
        maker = a.producer[tensor]
        source = host if maker < 0 else a.location[device[maker]]
        there = 0.0 if maker < 0 else x.finish[maker]
        if source != target and a.staged and source != host and target != host:
            there = _hop(a, x, tensor, source, host, there, commit)
            source = host
        if source != target:
            there = _hop(a, x, tensor, source, target, there, commit)
        latest = max(latest, there)
    return latest


@lean_helper
def _hop(a, x, tensor, source, target, ready, commit):
    """When `tensor`, ready at `source`, is at `target`: at once if it is there, else by its link's queue."""
    if x.arrival[tensor, target] >= 0:
        return x.arrival[tensor, target]
    queue, seconds = a.queue[source, target], a.transfer[tensor, a.link_class[source, target]]
    begin = first_gap(x.queues, queue, ready, seconds)
    if commit:
        book(x.queues, queue, begin, seconds)
        x.arrival[tensor, target] = begin + seconds
    return begin + seconds


@lean_helper
def first_gap(g, r, ready, seconds):
    """The earliest time from `ready` on at which resource r is idle for so many seconds."""
    if ready >= g.tail[r]:
        return ready
    first = _ending_after(g, r, ready)
    for at in range(first, min(g.number[r], first + LOOK)):
        begin = max(ready, g.start[r, at])
        if begin + seconds <= g.end[r, at]:
            return begin
    return g.tail[r]


@lean_helper
def book(g, r, begin, seconds):
    """Take the time from `begin` on, which `first_gap` found."""
    until, tail = begin + seconds, g.tail[r]
    if seconds <= 0:
        return
    if begin >= tail:
        if begin > tail:
            _insert(g, r, g.number[r], tail, begin)
        g.tail[r] = until
        return
    at = _ending_after(g, r, begin)
    if at == g.number[r]:
        return
    start, end = g.start[r, at], g.end[r, at]
    if until < end:
        g.start[r, at] = until
        if start < begin:
            _insert(g, r, at, start, begin)
    elif start < begin:
        g.end[r, at] = begin
    else:
        for later in range(at + 1, g.number[r]):
            g.start[r, later - 1], g.end[r, later - 1] = g.start[r, later], g.end[r, later]
        g.number[r] -= 1


@lean_helper
def _ending_after(g, r, moment):
    """The first gap that ends after a moment."""
    low, high = 0, g.number[r]
    while low < high:
        middle = (low + high) >> 1
        if g.end[r, middle] <= moment:
            low = middle + 1
        else:
            high = middle
    return low


@lean_helper
def _insert(g, r, at, start, end):
    """One more gap, before gap `at`; where there are too many the first one is forgotten."""
    if g.number[r] < g.start.shape[1]:
        for later in range(g.number[r], at, -1):
            g.start[r, later], g.end[r, later] = g.start[r, later - 1], g.end[r, later - 1]
        g.number[r] += 1
    else:
        at -= 1
        for earlier in range(at):
            g.start[r, earlier], g.end[r, earlier] = g.start[r, earlier + 1], g.end[r, earlier + 1]
        if at < 0:
            return
    g.start[r, at], g.end[r, at] = start, end
