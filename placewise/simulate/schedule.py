"""`operator` latency: every device runs one op at a time (or its streams), transfers overlap compute.

The rules, which the plain twin in the tests follows word by word:
a tensor leaves when its producer finishes, one queue per ordered pair of locations (links that share a wire
share a queue), first in first out, by (finish, producer, tensor, destination); staged tensors pass host
memory and queue there a second time. Model inputs are in host memory at time 0, model outputs must reach it.
A device that has a free stream starts, of the ops whose inputs are all there, the one with the smallest
priority; it never idles while one is ready. At equal times arrivals come before starts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.simulate.arrays import Arrays
from placewise.simulate.heaps import bitset_add, bitset_levels, bitset_pop_min, pop, push
from placewise.simulate.hops import NO_LOG, logged_timeline, new_log, note
from placewise.simulate.kernels import helper, kernel
from placewise.simulate.ranks import upward_ranks


@helper
def _send(a, tensor, source, target, now, free, log):
    """Queue one hop; when it arrives."""
    queue = a.queue[source, target]
    begin = max(now, free[queue])
    arrival = begin + a.transfer[tensor, a.link_class[source, target]]
    free[queue] = arrival
    note(log, tensor, source, target, begin, arrival)
    return arrival


@helper
def _targets(a, tensor, source, state, mark, stamp, found):
    """The locations other than `source` where `tensor` is needed, ascending, into `found`; their number."""
    host = len(a.location)
    stamp[source] = mark
    count = 0
    first, last = a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]
    for row in range(first, last + (1 if a.output[tensor] else 0)):
        target = host if row == last else state[a.consumers[row]].place
        if stamp[target] != mark:
            stamp[target] = mark
            at = count
            while at > 0 and found[at - 1] > target:
                found[at] = found[at - 1]
                at -= 1
            found[at] = target
            count += 1
    return count


@helper
def _wake(a, tensor, state, arrived, now, ready, levels, waiting, waiting_priority, base, size):
    """Tell the consumers of `tensor` when it `arrived` [location] (−1: not yet); queue those that miss nothing."""
    for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
        op = state[a.consumers[row]]
        there = arrived[op.place]
        if there < 0:
            continue
        if there > op.ready_at:
            op.ready_at = there
        op.missing -= 1
        if op.missing == 0:
            d = op.device
            if op.ready_at <= now:
                bitset_add(ready, d * levels[-1], levels, op.priority)
                size[d, 0] += 1
            else:
                push(waiting, waiting_priority, base[d], size[d, 1], op.ready_at, op.priority)
                size[d, 1] += 1


@helper
def _reset(a, device, priority, state, start, base):
    for op in range(len(device)):
        state[op].ready_at, state[op].missing = 0.0, 0
        state[op].device, state[op].place = device[op], a.location[device[op]]
        state[op].priority, state[op].seconds = priority[op], a.op_seconds[op, device[op]]
        base[device[op] + 1] += 1
        start[op] = np.inf
    for row in range(len(a.consumers)):
        state[a.consumers[row]].missing += 1
    for d in range(len(a.location)):
        base[d + 1] += base[d]


@kernel
def _schedule(a, owner, device, priority, by_priority, state, start, log):
    n_ops, n_devices = len(device), len(a.location)
    host = n_devices
    base, size = np.zeros(n_devices + 1, np.int64), np.zeros((n_devices, 2), np.int64)
    _reset(a, device, priority, state, start, base)
    # Per device: the set of ready ops, and the heap of those whose last input is on its way.
    levels = bitset_levels(n_ops)
    ready, words = np.zeros(n_devices * levels[-1], np.uint64), levels[-1]
    waiting, waiting_priority = np.empty(n_ops), np.empty(n_ops, np.int32)
    slots = a.streams.copy()
    # Events: op v finished, key v + out_offsets[v]; its staged tensor t is in host memory, key v + 1 + t.
    capacity = a.streams.sum() + (len(a.producer) if a.staged else 0) + 1
    event, event_key = np.empty(capacity), np.empty(capacity, np.int64)
    free = np.zeros(a.n_queues)
    stamp, found = np.full(n_devices + 1, -1), np.empty(n_devices + 1, np.int64)
    arrived = np.full(n_devices + 1, -1.0)
    makespan, now, done, events = 0.0, 0.0, 0, 0
    for op in range(n_ops):
        if state[op].missing == 0:
            bitset_add(ready, device[op] * words, levels, priority[op])
            size[device[op], 0] += 1
    for tensor in range(a.out_offsets[0]):
        count = _targets(a, tensor, host, state, 2 * tensor, stamp, found)
        arrived[:] = -1.0
        arrived[host] = 0.0
        for k in range(count):
            arrived[found[k]] = _send(a, tensor, host, found[k], 0.0, free, log)
        _wake(a, tensor, state, arrived, 0.0, ready, levels, waiting, waiting_priority, base, size)
    while now < np.inf:
        while events > 0 and event[0] <= now:
            key = event_key[0]
            pop(event, event_key, 0, events)
            events -= 1
            op = owner[key]
            finished = key == op + a.out_offsets[op]
            if finished:
                slots[device[op]] += 1
                done += 1
            source = a.location[device[op]]
            first = a.out_offsets[op] if finished else key - op - 1
            last = a.out_offsets[op + 1] if finished else key - op
            for tensor in range(first, last):
                count = _targets(a, tensor, source, state, 2 * tensor + finished, stamp, found)
                arrived[:] = -1.0
                home = 0.0
                if not finished:
                    for k in range(count):
                        target = found[k]
                        arrived[target] = now if target == host else _send(a, tensor, host, target, now, free, log)
                elif a.staged and count > 0 and source != host:
                    arrived[source] = now
                    home = _send(a, tensor, source, host, now, free, log)
                    push(event, event_key, 0, events, home, op + 1 + tensor)
                    events += 1
                else:
                    arrived[source] = now
                    for k in range(count):
                        arrived[found[k]] = _send(a, tensor, source, found[k], now, free, log)
                    home = arrived[host]
                if a.output[tensor]:
                    makespan = max(makespan, home)
                _wake(a, tensor, state, arrived, now, ready, levels, waiting, waiting_priority, base, size)
        upcoming = np.inf
        for d in range(n_devices):
            while size[d, 1] > 0 and waiting[base[d]] <= now:
                bitset_add(ready, d * words, levels, waiting_priority[base[d]])
                size[d, 0] += 1
                pop(waiting, waiting_priority, base[d], size[d, 1])
                size[d, 1] -= 1
            while slots[d] > 0 and size[d, 0] > 0:
                op = by_priority[bitset_pop_min(ready, d * words, levels)]
                size[d, 0] -= 1
                slots[d] -= 1
                start[op] = now
                finish = now + state[op].seconds
                makespan = max(makespan, finish)
                push(event, event_key, 0, events, finish, op + a.out_offsets[op])
                events += 1
            if slots[d] > 0 and size[d, 1] > 0:
                upcoming = min(upcoming, waiting[base[d]])
        now = min(upcoming, event[0]) if events > 0 else upcoming
    return makespan if done == n_ops else np.inf


_STATE = np.dtype(
    [("ready_at", "f8"), ("seconds", "f8"), ("priority", "i4"), ("missing", "i4"), ("device", "i4"), ("place", "i4")]
)


class Prepared(NamedTuple):
    """What one problem's schedules share: arrays, the op of every event key, and each op's priority."""

    arrays: Arrays
    owner: Ints
    priority: Ints
    by_priority: Ints


def prepare(problem: Problem, a: Arrays, order: Ints | None = None) -> Prepared:
    """Arrays and priorities; `order` [n_ops] (smaller first) replaces the upward rank, ties by op index."""
    key = -upward_ranks(problem, a) if order is None else order
    by_priority = np.argsort(key, kind="stable")
    priority = np.empty(len(by_priority), np.int32)
    priority[by_priority] = np.arange(len(by_priority), dtype=np.int32)
    owner = np.repeat(np.arange(problem.n_ops), np.diff(a.out_offsets) + 1)
    inputs = np.full(int(a.out_offsets[0]), -1)
    return Prepared(
        a, frozen(np.concatenate((inputs, owner)), np.int32), frozen(priority, np.int32), frozen(by_priority, np.int32)
    )


def makespan(prepared: Prepared, device: Ints) -> float:
    """Seconds of one placement [n_ops]; inf if an op cannot run where it is."""
    return _run(prepared, device, np.empty(len(device)), NO_LOG)


def makespans(prepared: Prepared, placements: Ints, first: int, last: int, values: Floats) -> None:
    """Seconds of placements [K, n_ops], rows first to last, into `values` [K]."""
    start = np.empty(placements.shape[1])
    for k in range(first, last):
        values[k] = _run(prepared, placements[k], start, NO_LOG)


def timeline(prepared: Prepared, device: Ints) -> tuple[float, Timeline]:
    """The makespan of one placement and everything that happened."""
    a, start = prepared.arrays, np.empty(len(device))
    log = new_log(a)
    value = _run(prepared, device, start, log)
    seconds = a.op_seconds[np.arange(len(device)), device]
    return value, logged_timeline(start, start + seconds, log)


def _run(prepared: Prepared, device: Ints, start: Floats, log: Floats) -> float:
    a, owner, priority, by_priority = prepared
    return float(_schedule(a, owner, device, priority, by_priority, np.empty(len(device), _STATE), start, log))
