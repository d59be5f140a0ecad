"""`subgraph` latency (Tarnawski et al. 2020): an accelerator runs each contiguous piece as one call.

A call waits for all its inputs and for the previous call of its device, receives its inputs one after
another, computes, and sends its outputs; only then are they visible. Ops on host devices run as soon as
their inputs are there, any number at a time. A tensor is received once per call: what passes between two
calls of one accelerator is sent to host memory and received again. Staged: a call sends each tensor once.
Direct: once per destination call, and once to the host, at that link's speed. Which ops form a call is the
placement's word, else the fewest calls by alternation depth: an op's call number is the number of times
that a path to it has entered its device. If calls wait for each other in a circle, nothing runs.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.result import Timeline
from placewise.simulate.arrays import Arrays
from placewise.simulate.hops import NO_LOG, logged_timeline, new_log, note
from placewise.simulate.kernels import helper, kernel

_TOGETHER = 8
"""So many devices are followed through the graph at once."""


@kernel
def _alternation_depth(a, device, call):
    """Fill `call` [n_ops] with the number of each accelerator op's call on its device, from 0; −1 on hosts."""
    host = len(a.location)
    entered = np.empty((len(device), _TOGETHER), np.int32)
    call[:] = -1
    for first in range(0, host, _TOGETHER):
        entered[:] = 0
        for op in range(len(device)):
            here = device[op] - first
            if 0 <= here < _TOGETHER and a.location[device[op]] < host:
                entered[op, here] = max(entered[op, here], 1)
                call[op] = entered[op, here] - 1
            for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
                for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                    reader = a.consumers[row]
                    for k in range(_TOGETHER):
                        entered[reader, k] = max(entered[reader, k], entered[op, k])
                    there = device[reader] - first
                    if 0 <= there < _TOGETHER and there != here:
                        entered[reader, there] = max(entered[reader, there], entered[op, there] + 1)


def cut_calls(a: Arrays, device: Ints) -> Ints:
    """The published rule: the call number of each op [n_ops] on its accelerator, −1 for ops on host devices."""
    call = np.empty(len(device), np.int32)
    _alternation_depth(a, device, call)
    return call


@helper
def _hop(a, tensor, source, target, clock, call, log):
    """Move the clock of a call's receiving or sending [n_calls] by one hop."""
    sent = clock[call]
    clock[call] += a.transfer[tensor, a.link_class[source, target]]
    note(log, tensor, source, target, sent, clock[call])


@kernel
def _cross(a, node, call_device, receiving, sending, log):
    """Move the clocks [n_calls] by every hop of every tensor; how many tensors each node waits for."""
    host, n_calls = len(a.location), len(call_device)
    missing = np.zeros(n_calls + len(node), np.int32)
    stamp = np.full(len(missing), -1)
    for tensor in range(len(a.producer)):
        maker = a.producer[tensor]
        origin = -1 if maker < 0 else node[maker]
        source = call_device[origin] if 0 <= origin < n_calls else host
        leaves = a.output[tensor]
        for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
            target = node[a.consumers[row]]
            if target == origin or stamp[target] == tensor:
                continue
            stamp[target] = tensor
            missing[target] += 1 if maker >= 0 else 0
            if target >= n_calls:
                leaves = True
                continue
            there = call_device[target]
            via = host if a.staged or source == there else source
            _hop(a, tensor, via, there, receiving, target, log)
            leaves = leaves or a.staged
            if not a.staged and source != host:
                _hop(a, tensor, source, host if source == there else there, sending, origin, log)
        if leaves and source != host:
            _hop(a, tensor, source, host, sending, origin, log)
    return missing


@helper
def _members(node, n_nodes):
    """The ops of every node, ascending: ``ops[first[n]:first[n + 1]]``."""
    first, ops = np.zeros(n_nodes + 1, np.int64), np.empty(len(node), np.int64)
    for op in range(len(node)):
        first[node[op] + 1] += 1
    for n in range(n_nodes):
        first[n + 1] += first[n]
    cursor = first.copy()
    for op in range(len(node)):
        ops[cursor[node[op]]] = op
        cursor[node[op]] += 1
    return first, ops


@helper
def _hear(target, moment, begin, missing, queue, tail):
    """One thing that node `target` waits for is done; the new tail of the queue of nodes that can begin."""
    begin[target] = max(begin[target], moment)
    missing[target] -= 1
    if missing[target] == 0:
        queue[tail] = target
        tail += 1
    return tail


@kernel
def _run_nodes(a, device, node, call_device, receive, send, missing, begin, start, finish):
    """The makespan, inf in a circle: every node begins when it misses nothing; calls of a device go in turn."""
    n_calls, n_nodes = len(call_device), len(missing)
    first, ops = _members(node, n_nodes)
    queue, tail, seen = np.empty(n_nodes, np.int64), 0, 0
    for c in range(1, n_calls):
        missing[c] += 1 if call_device[c] == call_device[c - 1] else 0
    for n in range(n_nodes):
        if first[n] < first[n + 1] and missing[n] == 0:
            queue[tail] = n
            tail += 1
    stamp, makespan, done = np.full(n_nodes, -1), 0.0, 0
    while seen < tail:
        origin = queue[seen]
        seen += 1
        clock = begin[origin]
        if origin < n_calls:
            clock += a.call_overhead[call_device[origin]] + receive[origin]
        for k in range(first[origin], first[origin + 1]):
            start[ops[k]] = clock
            clock += a.op_seconds[ops[k], device[ops[k]]]
            finish[ops[k]] = clock
            done += 1
        if origin < n_calls:
            clock += send[origin]
            if origin + 1 < n_calls and call_device[origin + 1] == call_device[origin]:
                tail = _hear(origin + 1, clock, begin, missing, queue, tail)
        makespan = max(makespan, clock)
        for k in range(first[origin], first[origin + 1]):
            for tensor in range(a.out_offsets[ops[k]], a.out_offsets[ops[k] + 1]):
                for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                    target = node[a.consumers[row]]
                    if target != origin and stamp[target] != tensor:
                        stamp[target] = tensor
                        tail = _hear(target, clock, begin, missing, queue, tail)
    return makespan if done == len(device) else np.inf


@kernel
def _nodes(a, device, number):
    """The node of each op [n_ops] (its call, or n_calls + op on a host) and each call's device [n_calls].

    `number` [n_ops] counts the calls of each accelerator from 0 without gaps; calls are sorted by device.
    """
    host = len(a.location)
    first = np.zeros(host + 1, np.int64)
    for op in range(len(device)):
        if a.location[device[op]] < host:
            first[device[op] + 1] = max(first[device[op] + 1], number[op] + 1)
    for d in range(host):
        first[d + 1] += first[d]
    call_device = np.empty(first[host], np.int32)
    for d in range(host):
        call_device[first[d] : first[d + 1]] = d
    node = np.empty(len(device), np.int32)
    for op in range(len(device)):
        node[op] = first[device[op]] + number[op] if a.location[device[op]] < host else first[host] + op
    return node, call_device


def _without_gaps(device: Ints, call: Ints) -> Ints:
    """Any numbers of calls [n_ops], counted from 0 on every device in the same order."""
    lowest = int(call.min(initial=0))
    span = int(call.max(initial=0)) - lowest + 1
    calls, dense = np.unique(device.astype(np.int64) * span + call - lowest, return_inverse=True)
    first = np.searchsorted(calls, device.astype(np.int64) * span)
    numbers: Ints = (dense - first).astype(np.int32)
    return numbers


def makespan(a: Arrays, device: Ints, call: Ints | None = None) -> float:
    """Seconds of one placement [n_ops]; inf if its calls wait for each other in a circle."""
    return _run(a, device, call, NO_LOG)[0]


def makespans(a: Arrays, placements: Ints, first: int, last: int, values: Floats) -> None:
    """Seconds of placements [K, n_ops], rows first to last, into `values` [K]; calls by the published rule."""
    for k in range(first, last):
        values[k] = makespan(a, placements[k])


def timeline(a: Arrays, device: Ints, call: Ints | None = None) -> tuple[float, Timeline]:
    """The makespan of one placement, when each op ran, and each call's transfers, one after another."""
    log = new_log(a)
    value, start, finish = _run(a, device, call, log)
    return value, logged_timeline(start, finish, log)


def _run(a: Arrays, device: Ints, call: Ints | None, log: Floats) -> tuple[float, Floats, Floats]:
    """The makespan, and when ops start and finish [n_ops]; the hops go into `log`."""
    node, call_device = _nodes(a, device, cut_calls(a, device) if call is None else _without_gaps(device, call))
    receive, send = np.zeros(len(call_device)), np.zeros(len(call_device))
    missing = _cross(a, node, call_device, receive, send, NO_LOG)
    start, finish = np.full(len(device), np.inf), np.full(len(device), np.inf)
    begin = np.zeros(len(missing))
    value = float(_run_nodes(a, device, node, call_device, receive, send, missing, begin, start, finish))
    if len(log) and np.isfinite(value):
        called = node < len(call_device)
        sending = np.zeros(len(call_device))
        np.maximum.at(sending, node[called], finish[called])
        receiving = begin[: len(call_device)] + a.call_overhead[call_device]
        _cross(a, node, call_device, receiving, sending, log)
    return value, start, finish
