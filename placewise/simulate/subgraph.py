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
from placewise.simulate.kernels import helper, kernel
from placewise.simulate.schedule import logged_timeline


@kernel
def _alternation_depth(a, device, call):
    """Fill `call` [n_ops] with the number of each accelerator op's call on its device, from 0; −1 on hosts."""
    host = len(a.location)
    call[:] = -1
    for d in range(host):
        if a.location[d] == host:
            continue
        entered = np.zeros(len(device), np.int32)
        for op in range(len(device)):
            if device[op] == d:
                entered[op] = max(entered[op], 1)
                call[op] = entered[op] - 1
            outside = 0 if device[op] == d else 1
            for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
                for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                    reader = a.consumers[row]
                    depth = entered[op] + (outside if device[reader] == d else 0)
                    entered[reader] = max(entered[reader], depth)


def cut_calls(a: Arrays, device: Ints) -> Ints:
    """The published rule: the call number of each op [n_ops] on its accelerator, −1 for ops on host devices."""
    call = np.empty(len(device), np.int32)
    _alternation_depth(a, device, call)
    return call


@helper
def _hop(a, tensor, source, target):
    return a.transfer[tensor, a.link_class[source, target]]


@helper
def _crossings(a, tensor, node, call_device, n_calls, stamp, receive, send, missing):
    """Charge one tensor to the calls that send and receive it; count it for every node that waits for it."""
    host = len(a.location)
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
        if a.staged or source == there:
            receive[target] += _hop(a, tensor, host, there)
            leaves = leaves or a.staged
            if source == there and not a.staged:
                send[origin] += _hop(a, tensor, source, host)
        else:
            receive[target] += _hop(a, tensor, source, there)
            if source != host:
                send[origin] += _hop(a, tensor, source, there)
    if leaves and source != host:
        send[origin] += _hop(a, tensor, source, host)


@helper
def _finish_node(a, ops, first, last, origin, end, node, stamp, mark, ready_at, missing, queue, tail):
    """Node `origin` is done at `end`: everything that waits for its ops hears of it; the queue's new tail."""
    for k in range(first, last):
        op = ops[k]
        for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
            for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                target = node[a.consumers[row]]
                if target == origin or stamp[target] == mark + tensor:
                    continue
                stamp[target] = mark + tensor
                ready_at[target] = max(ready_at[target], end)
                missing[target] -= 1
                if missing[target] == 0:
                    queue[tail] = target
                    tail += 1
    return tail


@kernel
def _run_calls(a, device, node, call_device, start, finish, begin, spent):
    """Makespan, inf in a circle; op times, and per call when it began and its (receive, compute, send)."""
    n_ops, n_calls = len(device), len(call_device)
    n_nodes, n_tensors = n_calls + n_ops, len(a.producer)
    receive, send, compute = np.zeros(n_calls), np.zeros(n_calls), np.zeros(n_calls)
    missing, stamp = np.zeros(n_nodes, np.int32), np.full(n_nodes, -1)
    for tensor in range(n_tensors):
        _crossings(a, tensor, node, call_device, n_calls, stamp, receive, send, missing)
    first = np.zeros(n_calls + 1, np.int64)
    for op in range(n_ops):
        if node[op] < n_calls:
            first[node[op] + 1] += 1
            compute[node[op]] += a.op_seconds[op, device[op]]
    for c in range(n_calls):
        first[c + 1] += first[c]
    ops, cursor = np.empty(n_ops, np.int64), first.copy()
    for op in range(n_ops):
        if node[op] < n_calls:
            ops[cursor[node[op]]] = op
            cursor[node[op]] += 1
    queue, tail, seen = np.empty(n_nodes, np.int64), 0, 0
    for c in range(n_calls):
        if c > 0 and call_device[c] == call_device[c - 1]:
            missing[c] += 1
        if missing[c] == 0:
            queue[tail] = c
            tail += 1
    for op in range(n_ops):
        if node[op] >= n_calls and missing[node[op]] == 0:
            queue[tail] = node[op]
            tail += 1
    ready_at, makespan, alone, done = np.zeros(n_nodes), 0.0, np.empty(1, np.int64), 0
    while seen < tail:
        origin = queue[seen]
        seen += 1
        now = ready_at[origin]
        if origin < n_calls:
            begin[origin] = now
            spent[origin, 0], spent[origin, 1], spent[origin, 2] = receive[origin], compute[origin], send[origin]
            clock = now + a.call_overhead[call_device[origin]] + receive[origin]
            for k in range(first[origin], first[origin + 1]):
                start[ops[k]] = clock
                clock += a.op_seconds[ops[k], device[ops[k]]]
                finish[ops[k]] = clock
            end = clock + send[origin]
            done += first[origin + 1] - first[origin]
            if origin + 1 < n_calls and call_device[origin + 1] == call_device[origin]:
                ready_at[origin + 1] = max(ready_at[origin + 1], end)
                missing[origin + 1] -= 1
                if missing[origin + 1] == 0:
                    queue[tail] = origin + 1
                    tail += 1
            low, high = first[origin], first[origin + 1]
            tail = _finish_node(a, ops, low, high, origin, end, node, stamp, n_tensors, ready_at, missing, queue, tail)
        else:
            op = origin - n_calls
            start[op], end = now, now + a.op_seconds[op, device[op]]
            finish[op] = end
            done += 1
            alone[0] = op
            tail = _finish_node(a, alone, 0, 1, origin, end, node, stamp, n_tensors, ready_at, missing, queue, tail)
        makespan = max(makespan, end)
    return makespan if done == n_ops else np.inf


def _nodes(a: Arrays, device: Ints, call: Ints | None) -> tuple[Ints, Ints]:
    """The node of each op [n_ops] (its dense call, or n_calls + op on a host) and each call's device [n_calls]."""
    number = cut_calls(a, device) if call is None else call
    on_accelerator = a.location[device] < len(a.location)
    lowest = int(number.min(initial=0))
    span = int(number.max(initial=0)) - lowest + 1
    key = device.astype(np.int64) * span + number - lowest
    calls, dense = np.unique(key[on_accelerator], return_inverse=True)
    node = np.empty(len(device), np.int32)
    node[on_accelerator] = dense
    hosted = np.flatnonzero(~on_accelerator)
    node[hosted] = len(calls) + hosted
    return node, (calls // span).astype(np.int32)


def makespan(a: Arrays, device: Ints, call: Ints | None = None) -> float:
    """Seconds of one placement [n_ops]; inf if its calls wait for each other in a circle."""
    return _makespan(a, device, call)[0]


def _makespan(a: Arrays, device: Ints, call: Ints | None) -> tuple[float, Floats, Floats, Ints, Ints, Floats, Floats]:
    node, call_device = _nodes(a, device, call)
    start, finish = np.full(len(device), np.inf), np.full(len(device), np.inf)
    begin, spent = np.full(len(call_device), np.inf), np.zeros((len(call_device), 3))
    value = float(_run_calls(a, device, node, call_device, start, finish, begin, spent))
    return value, start, finish, node, call_device, begin, spent


def makespans(a: Arrays, placements: Ints, first: int, last: int, values: Floats) -> None:
    """Seconds of placements [K, n_ops], rows first to last, into `values` [K]; calls by the published rule."""
    for k in range(first, last):
        values[k] = makespan(a, placements[k])


def timeline(a: Arrays, device: Ints, call: Ints | None = None) -> tuple[float, Timeline]:
    """The makespan of one placement, when each op ran, and each call's transfers, one after another."""
    value, start, finish, node, call_device, begin, spent = _makespan(a, device, call)
    log = np.zeros((2 * (len(a.consumers) + len(a.producer)) + 1, 5))
    if np.isfinite(value):
        _log_transfers(a, node, call_device, begin, spent, log)
    return value, logged_timeline(start, finish, log)


@helper
def _note(log, cursor, which, tensor, source, target, seconds):
    row = int(log[0, 0]) + 1
    log[0, 0] = row
    log[row, 0], log[row, 1], log[row, 2] = tensor, source, target
    log[row, 3], log[row, 4] = cursor[which], cursor[which] + seconds
    cursor[which] += seconds


@kernel
def _log_transfers(a, node, call_device, begin, spent, log):
    n_calls, host = len(call_device), len(a.location)
    receiving, sending = np.zeros(n_calls), np.zeros(n_calls)
    for c in range(n_calls):
        receiving[c] = begin[c] + a.call_overhead[call_device[c]]
        sending[c] = receiving[c] + spent[c, 0] + spent[c, 1]
    stamp = np.full(n_calls + len(node), -1)
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
            if target >= n_calls:
                leaves = True
                continue
            there = call_device[target]
            via = host if a.staged or source == there else source
            _note(log, receiving, target, tensor, via, there, _hop(a, tensor, via, there))
            leaves = leaves or a.staged
            if not a.staged and source != host:
                onward = host if source == there else there
                _note(log, sending, origin, tensor, source, onward, _hop(a, tensor, source, onward))
        if leaves and source != host:
            _note(log, sending, origin, tensor, source, host, _hop(a, tensor, source, host))
