"""The kernel of list scheduling with memory: always the ready op and device that come first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.simulate.arrays import Arrays
from placewise.simulate.heaps import pop, push
from placewise.simulate.kernels import lean_helper, lean_kernel


class Blocks(NamedTuple):
    """Colocation groups: the block of each op, where it may run, and what it needs there."""

    of: Ints  # [n_ops]
    allowed: Bools  # [n_blocks, n_devices]
    state: Longs  # [n_blocks] bytes
    storage_offsets: Longs  # [n_blocks + 1]
    storages: Ints
    storage_bytes: Longs
    room: Longs  # [n_devices] bytes


class Desk(NamedTuple):
    """Room to work in: what is decided so far, and two heaps of ready ops per device."""

    home: Ints  # [n_blocks] device, −1: open
    finish: Floats  # [n_ops]
    missing: Ints  # [n_ops] inputs that are not made yet
    ready_at: Floats  # [n_ops, n_devices] when all inputs can be there
    arrival: Floats  # [n_tensors, n_devices + 1] at each location, −1: not sent there
    free: Floats  # [n_queues] when each link's queue is empty
    stored: Ints  # [n_storages, n_devices]
    room: Longs  # [n_devices] bytes
    stream: Floats  # [n_devices, most streams] when each is idle, inf where there is none
    idle: Floats  # [n_devices] when the first stream is
    key: Floats  # [2, n_devices · n_ops] heaps: 0, inputs arrive later; 1, could start at once
    item: Ints  # [2, n_devices · n_ops] priorities
    size: Longs  # [2, n_devices]
    fresh: Ints  # [n_ops] ops that became ready


def desk(a: Arrays, b: Blocks) -> Desk:
    """An empty desk for `list_schedule`."""
    n_ops, n_devices = a.op_seconds.shape
    lanes = np.arange(int(a.streams.max())) < a.streams[:, None]
    return Desk(
        home=np.full(len(b.state), -1, np.int32),
        finish=np.zeros(n_ops),
        missing=np.zeros(n_ops, np.int32),
        ready_at=np.zeros((n_ops, n_devices)),
        arrival=np.full((len(a.producer), n_devices + 1), -1.0),
        free=np.zeros(a.n_queues),
        stored=np.zeros((len(b.storage_bytes), n_devices), np.int32),
        room=b.room.copy(),
        stream=np.where(lanes, 0.0, np.inf),
        idle=np.zeros(n_devices),
        key=np.zeros((2, n_devices * n_ops)),
        item=np.zeros((2, n_devices * n_ops), np.int32),
        size=np.zeros((2, n_devices), np.int64),
        fresh=np.zeros(n_ops, np.int32),
    )


@lean_kernel
def list_schedule(a, b, inputs, by_priority, priority, weight, x, device, estimate, book):
    """Fill `device` [n_ops]; returns how many ops found one, fewer than all if memory ran out.

    `inputs` are the offsets and tensors of the edges by op; `x` is an empty desk; `estimate` is False and
    `book` True. Of ops that could start at once on a device the one with the least weight · seconds is
    first, of those whose inputs arrive later the one with the least arrival + weight · seconds; ties go to
    the higher priority.
    """
    n_ops, n_devices, n_fresh = len(device), len(a.location), 0
    for row in range(a.consumer_offsets[a.out_offsets[0]], len(a.consumers)):
        x.missing[a.consumers[row]] += 1
    for op in range(n_ops):
        if x.missing[op] == 0:
            x.fresh[n_fresh] = op
            n_fresh += 1
    for count in range(n_ops):
        for i in range(n_fresh):
            _offer(a, b, inputs, x, x.fresh[i], priority, weight, device, estimate)
        n_fresh = 0
        best, first, d = np.inf, n_ops, n_devices
        for e in range(n_devices):
            _tidy(a, b, x, e, by_priority, weight, device)
            for heap in range(2):
                if x.size[heap, e] > 0:
                    key = x.key[heap, e * n_ops] + (x.idle[e] if heap == 1 else 0.0)
                    item = x.item[heap, e * n_ops]
                    if key < best or (key == best and item < first):
                        best, first, d = key, item, e
        if d == n_devices:
            return count
        op = by_priority[first]
        block = b.of[op]
        if x.home[block] < 0:
            x.room[d] -= _needed(b, x, block, d)
            x.home[block] = d
            for row in range(b.storage_offsets[block], b.storage_offsets[block + 1]):
                x.stored[b.storages[row], d] = 1
        there = _inputs_at(a, inputs, x, op, np.int64(a.location[d]), device, book)
        lane = 0
        for other in range(x.stream.shape[1]):
            lane = other if x.stream[d, other] < x.stream[d, lane] else lane
        device[op] = d
        x.finish[op] = x.stream[d, lane] = max(x.stream[d, lane], there) + a.op_seconds[op, d]
        x.idle[d] = x.stream[d, 0]
        for other in range(x.stream.shape[1]):
            x.idle[d] = min(x.idle[d], x.stream[d, other])
        for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
            for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                reader = a.consumers[row]
                x.missing[reader] -= 1
                if x.missing[reader] == 0:
                    x.fresh[n_fresh] = reader
                    n_fresh += 1
    return n_ops


@lean_helper
def _offer(a, b, inputs, x, op, priority, weight, device, estimate):
    """Put a ready op on the heap of every device that its block may use."""
    home = x.home[b.of[op]]
    for d in range(len(a.location)):
        if b.allowed[b.of[op], d] and (home < 0 or home == d):
            x.ready_at[op, d] = _inputs_at(a, inputs, x, op, np.int64(a.location[d]), device, estimate)
            key = x.ready_at[op, d] + weight * a.op_seconds[op, d]
            push(x.key[0], x.item[0], d * len(device), x.size[0, d], key, priority[op])
            x.size[0, d] += 1


@lean_helper
def _tidy(a, b, x, d, by_priority, weight, device):
    """Make the heads of a device's heaps true: drop what went elsewhere or does not fit, move what has arrived."""
    base = d * len(device)
    for heap in range(2):
        while x.size[heap, d] > 0:
            op = by_priority[x.item[heap, base]]
            home = x.home[b.of[op]]
            gone = device[op] >= 0 or (home >= 0 and home != d)
            gone = gone or (home < 0 and _needed(b, x, b.of[op], d) > x.room[d])
            if not gone and (heap == 1 or x.ready_at[op, d] > x.idle[d]):
                break
            item = x.item[heap, base]
            pop(x.key[heap], x.item[heap], base, x.size[heap, d])
            x.size[heap, d] -= 1
            if not gone:
                push(x.key[1], x.item[1], base, x.size[1, d], weight * a.op_seconds[op, d], item)
                x.size[1, d] += 1


@lean_helper
def _needed(b, x, block, d):
    """The bytes that `block` still needs on device d, where some storages may be already."""
    needed = b.state[block]
    for row in range(b.storage_offsets[block], b.storage_offsets[block + 1]):
        if x.stored[b.storages[row], d] == 0:
            needed += b.storage_bytes[b.storages[row]]
    return needed


@lean_helper
def _inputs_at(a, inputs, x, op, target, device, commit):
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
    """When `tensor`, ready at `source`, is at `target`: at once if it is there, else behind its link's queue."""
    if x.arrival[tensor, target] >= 0:
        return x.arrival[tensor, target]
    queue = a.queue[source, target]
    there = max(ready, x.free[queue]) + a.transfer[tensor, a.link_class[source, target]]
    if commit:
        x.free[queue] = x.arrival[tensor, target] = there
    return there
