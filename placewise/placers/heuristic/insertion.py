"""The kernel of heft and critical_path: ops by priority, each where it finishes first, in the first gap that fits."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.problem import Problem
from placewise.placers.heuristic.desk import blocks_of, book, desk, first_gap, fits, gaps, inputs_at, settle
from placewise.placers.heuristic.lists import ranked
from placewise.simulate.arrays import arrays_of
from placewise.simulate.heaps import pop, push
from placewise.simulate.kernels import lean_helper, lean_kernel


def inserted(problem: Problem, priority: Floats, wanted: Ints, capacity: Floats, plan: Ints | None) -> tuple[Ints, int]:
    """One insertion schedule within `capacity` [n_devices]: the devices [n_ops] and how many ops have one.

    Of ready ops the one of the highest `priority` [n_ops] is next; it goes to the device `wanted` [n_ops] if
    its group may, else (−1, or no room) to where it finishes first. See `Schedule`.
    """
    a, blocks = arrays_of(problem), blocks_of(problem, capacity, plan)
    device = np.full(problem.n_ops, -1, np.int32)
    inputs = problem.graph.in_offsets, problem.graph.edges.value
    streams = gaps(problem.n_devices * int(a.streams.max()))
    waiting = np.zeros(problem.n_ops, np.int32), (np.zeros(problem.n_ops), np.zeros(problem.n_ops, np.int32))
    placed = insertion_schedule(
        a, blocks, inputs, *ranked(priority), frozen(wanted, np.int32), desk(a, blocks), streams, *waiting, device,
        False, True,
    )  # fmt: skip
    return device, placed


@lean_kernel
def insertion_schedule(
    a, b, inputs, by_priority, priority, wanted, x, streams, missing, heap, device, estimate, commit
):
    """Fill `device` [n_ops]; returns how many ops found one, fewer than all if memory ran out.

    Of the ready ops the one of the highest priority is next. `wanted` [n_ops] is the device that an op goes to if
    its block may, −1 for the one on which it finishes first. `x` is an empty desk, `streams` are the gaps of
    the streams, those of device d from row d · most streams on; `missing` [n_ops] zeros; `heap` a pair of empty columns
    [n_ops]; `estimate` is False and `commit` True.
    """
    n_ops, n_devices, size = len(device), len(a.location), 0
    most = len(streams.tail) // n_devices
    for row in range(a.consumer_offsets[a.out_offsets[0]], len(a.consumers)):
        missing[a.consumers[row]] += 1
    for op in range(n_ops):
        if missing[op] == 0:
            push(heap[0], heap[1], 0, size, 0.0, priority[op])
            size += 1
    for count in range(n_ops):
        op = by_priority[heap[1][0]]
        pop(heap[0], heap[1], 0, size)
        size -= 1
        block, home, d = b.of[op], x.home[b.of[op]], wanted[op]
        if home >= 0:
            d = home
        elif d < 0 or not fits(b, x, block, d):
            best, d = np.inf, -1
            for e in range(n_devices):
                if fits(b, x, block, e):
                    ready = inputs_at(a, inputs, x, op, np.int64(a.location[e]), device, estimate)
                    _, begin = _stream(a, streams, most, e, ready, a.op_seconds[op, e])
                    if begin + a.op_seconds[op, e] < best:
                        best, d = begin + a.op_seconds[op, e], e
        if d < 0:
            return count
        if home < 0:
            settle(b, x, block, d)
        ready = inputs_at(a, inputs, x, op, np.int64(a.location[d]), device, commit)
        lane, begin = _stream(a, streams, most, d, ready, a.op_seconds[op, d])
        book(streams, lane, begin, a.op_seconds[op, d])
        device[op], x.finish[op] = d, begin + a.op_seconds[op, d]
        for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
            for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                reader = a.consumers[row]
                missing[reader] -= 1
                if missing[reader] == 0:
                    push(heap[0], heap[1], 0, size, 0.0, priority[reader])
                    size += 1
    return n_ops


@lean_helper
def _stream(a, streams, most, d, ready, seconds):
    """The stream of device d that is the first to have time, and when."""
    lane, best = d * most, np.inf
    for row in range(d * most, d * most + a.streams[d]):
        begin = first_gap(streams, row, ready, seconds)
        if begin < best:
            lane, best = row, begin
    return lane, best
