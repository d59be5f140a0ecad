"""`sequential` latency (OpenVINO HETERO, one request): one piece at a time over all devices.

A piece is what one device runs without interruption: an op's piece is numbered by how often the paths to
it change device, so that pieces never wait for each other in a circle. Pieces run by number, then by
device; before a piece, the tensors that it needs and that its device has never had are moved, one after
another. The value is Σ ops + Σ transfers + overhead per piece; model outputs are brought home at the end.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.result import Timeline
from placewise.simulate.arrays import Arrays
from placewise.simulate.hops import NO_LOG, logged_timeline, new_log, note
from placewise.simulate.kernels import helper, kernel


@helper
def _move(transfer, link_class, tensor, source, target, held, clock, log):
    """One hop; when it has arrived. `held` [n_tensors, n_devices + 1] remembers where a tensor has been."""
    arrived = clock + transfer[tensor, link_class[source, target]]
    note(log, tensor, source, target, clock, arrived)
    held[tensor, target] = True
    return arrived


@helper
def _fetch(transfer, link_class, staged, tensor, source, target, held, clock, log):
    """Bring `tensor` to a location that has never had it, from `source` or, staged, through host memory."""
    host = len(link_class) - 1
    if staged and target != host and not held[tensor, host]:
        clock = _move(transfer, link_class, tensor, source, host, held, clock, log)
    return _move(transfer, link_class, tensor, host if staged and target != host else source, target, held, clock, log)


@kernel
def _piece_numbers(a, device, number):
    number[:] = 0
    for op in range(len(device)):
        for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
            for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                reader = a.consumers[row]
                number[reader] = max(number[reader], number[op] + (1 if device[reader] != device[op] else 0))


@kernel
def _run_pieces(a, device, number, order, in_offsets, in_tensors, start, finish, log):
    host, clock, first = len(a.location), 0.0, 0
    held = np.zeros((len(a.producer), host + 1), np.bool_)
    for tensor in range(len(a.producer)):
        maker = a.producer[tensor]
        held[tensor, host if maker < 0 else a.location[device[maker]]] = True
    while first < len(order):
        d, last = device[order[first]], first
        while last < len(order) and device[order[last]] == d and number[order[last]] == number[order[first]]:
            op = order[last]
            for row in range(in_offsets[op], in_offsets[op + 1]):
                tensor = in_tensors[row]
                maker = a.producer[tensor]
                if not held[tensor, a.location[d]]:
                    source = host if maker < 0 else a.location[device[maker]]
                    clock = _fetch(a.transfer, a.link_class, a.staged, tensor, source, a.location[d], held, clock, log)
            last += 1
        clock += a.call_overhead[d]
        for k in range(first, last):
            start[order[k]] = clock
            clock += a.op_seconds[order[k], d]
            finish[order[k]] = clock
        first = last
    for tensor in range(len(a.producer)):
        if a.output[tensor] and not held[tensor, host]:
            source = a.location[device[a.producer[tensor]]]
            clock = _fetch(a.transfer, a.link_class, a.staged, tensor, source, host, held, clock, log)
    return clock


@kernel
def _sorted_by(order, column, count):
    """The ops of `order` by `column` [n_ops], whose values are below `count`; equal ones stay as they are."""
    start, result = np.zeros(count + 1, np.int64), np.empty_like(order)
    for op in range(len(column)):
        start[column[op] + 1] += 1
    for value in range(count):
        start[value + 1] += start[value]
    for op in order:
        result[start[column[op]]] = op
        start[column[op]] += 1
    return result


def cut_pieces(a: Arrays, device: Ints) -> Ints:
    """The number of each op's piece [n_ops]; ops of one number and one device form a piece."""
    number = np.empty(len(device), np.int32)
    _piece_numbers(a, device, number)
    return number


def makespan(a: Arrays, device: Ints, in_offsets: Longs, in_tensors: Ints) -> float:
    """Seconds of one placement [n_ops]; the last two columns are the graph's edges by consumer."""
    start, finish = np.empty(len(device)), np.empty(len(device))
    return _run(a, device, in_offsets, in_tensors, start, finish, NO_LOG)


def makespans(a: Arrays, placements: Ints, edges: tuple[Longs, Ints], first: int, last: int, values: Floats) -> None:
    """Seconds of placements [K, n_ops], rows first to last, into `values` [K]."""
    for k in range(first, last):
        values[k] = makespan(a, placements[k], *edges)


def timeline(a: Arrays, device: Ints, in_offsets: Longs, in_tensors: Ints) -> tuple[float, Timeline]:
    """The makespan of one placement and everything that happened."""
    start, finish = np.empty(len(device)), np.empty(len(device))
    log = new_log(a)
    value = _run(a, device, in_offsets, in_tensors, start, finish, log)
    return value, logged_timeline(start, finish, log)


def _run(
    a: Arrays, device: Ints, in_offsets: Longs, in_tensors: Ints, start: Floats, finish: Floats, log: Floats
) -> float:
    number = cut_pieces(a, device)
    by_device = _sorted_by(np.arange(len(device)), device, len(a.location))
    order = _sorted_by(by_device, number, len(device))
    return float(_run_pieces(a, device, number, order, in_offsets, in_tensors, start, finish, log))
