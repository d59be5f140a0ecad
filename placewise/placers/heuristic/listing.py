"""The kernel of etf and sct: always the ready op and device that come first, as time goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints, Longs, frozen
from placewise.model.problem import Problem
from placewise.placers.common.devices import checked
from placewise.placers.heuristic.desk import Blocks, blocks_of, desk, fits, inputs_at, settle
from placewise.placers.heuristic.lists import ranked
from placewise.simulate.arrays import Arrays, arrays_of
from placewise.simulate.heaps import pop, push
from placewise.simulate.kernels import lean_helper, lean_kernel
from placewise.simulate.ranks import upward_ranks

By = Literal["finish", "start"]


@dataclass(frozen=True, slots=True)
class PairOptions:
    """`by`: take the pair that finishes first, or, as published, the one that starts first.

    `devices`: only the best so many, as far as ops and memory allow; 0: all. Raises PlacerError.
    """

    by: By = "finish"
    devices: int = 0

    def __post_init__(self) -> None:
        checked(self.devices)
        if self.by not in get_args(By):
            raise PlacerError(
                f"list scheduling cannot go by {self.by!r}", remedy=f"choose from {', '.join(get_args(By))}"
            )


class Queues(NamedTuple):
    """Ready ops per device, in two heaps: 0, inputs arrive later; 1, could start at once.

    Where favourite children count there are two more, 2 and 3, the same by the time at which an op is urgent.
    """

    missing: Ints  # [n_ops] inputs that are not made yet
    ready_at: Floats  # [n_ops, n_devices] when all inputs can be there
    urgent_at: Floats  # [n_ops] when they can be anywhere; empty without favourites
    stream: Floats  # [n_devices, most streams] when each is idle, inf where there is none
    idle: Floats  # [n_devices] when the first stream is
    awaited: Ints  # [n_devices] the favourite child that a device is reserved for, −1: none
    key: Floats  # [2 or 4, n_devices · n_ops] heaps
    item: Ints  # [2 or 4, n_devices · n_ops] priorities
    size: Longs  # [2 or 4, n_devices]
    fresh: Ints  # [n_ops] ops that became ready


def queues(a: Arrays, b: Blocks, *, favourites: bool) -> Queues:
    """Empty queues. Pages of the heaps that no ready op ever reaches take no memory."""
    n_ops, n_devices = a.op_seconds.shape
    lanes, heaps = np.arange(int(a.streams.max())) < a.streams[:, None], 4 if favourites else 2
    return Queues(
        missing=np.zeros(n_ops, np.int32),
        ready_at=np.zeros((n_ops, n_devices)),
        urgent_at=np.zeros(n_ops if favourites else 0),
        stream=np.where(lanes, 0.0, np.inf),
        idle=np.zeros(n_devices),
        awaited=np.full(n_devices, -1, np.int32),
        key=np.zeros((heaps, n_devices * n_ops)),
        item=np.zeros((heaps, n_devices * n_ops), np.int32),
        size=np.zeros((heaps, n_devices), np.int64),
        fresh=np.zeros(n_ops, np.int32),
    )


def first_pairs(
    problem: Problem, capacity: Floats, plan: Ints | None, *, by: By, child: Ints | None = None
) -> tuple[Ints, int]:
    """One list schedule within `capacity` [n_devices]: the devices [n_ops] and how many ops have one.

    `child` [n_ops] is the favourite child of each op, −1 for none; without it no device is reserved. See `Schedule`.
    """
    a, blocks = arrays_of(problem), blocks_of(problem, capacity, plan)
    device = np.full(problem.n_ops, -1, np.int32)
    inputs = problem.graph.in_offsets, problem.graph.edges.value
    favourite = frozen(np.full(problem.n_ops, -1) if child is None else child, np.int32)
    empty = desk(a, blocks), queues(a, blocks, favourites=child is not None)
    weight = 1.0 if by == "finish" else 0.0
    placed = list_schedule(
        a, blocks, inputs, *ranked(upward_ranks(problem, a)), favourite, weight, *empty, device, False, True
    )
    return device, placed


@lean_kernel
def list_schedule(a, b, inputs, by_priority, priority, child, weight, x, q, device, estimate, book):
    """Fill `device` [n_ops]; returns how many ops found one, fewer than all if memory ran out.

    `inputs` are the offsets and tensors of the edges by op; `x` is an empty desk and `q` are empty queues; `estimate`
    is False and `book` True. Of ops that could start at once on a device the one with the least weight · seconds is
    first, of those whose inputs arrive later the one with the least arrival + weight · seconds; ties go to
    the higher priority. `child` [n_ops] is the favourite child of each op, −1 for none: a device of one stream whose
    last op has one that is open is reserved for it, and others count there from when they are urgent. At equal
    times the favourite goes first.
    """
    n_ops, n_devices, n_fresh = len(device), len(a.location), 0
    for row in range(a.consumer_offsets[a.out_offsets[0]], len(a.consumers)):
        q.missing[a.consumers[row]] += 1
    for op in range(n_ops):
        if q.missing[op] == 0:
            q.fresh[n_fresh] = op
            n_fresh += 1
    for count in range(n_ops):
        for i in range(n_fresh):
            _offer(a, b, inputs, x, q, q.fresh[i], priority, weight, device, estimate)
        n_fresh = 0
        best, first, d, op = np.inf, n_ops, n_devices, -1
        for e in range(n_devices):
            heaps = 0
            favourite = q.awaited[e]
            if favourite >= 0:
                if not _may_come(b, x, favourite, e, device):
                    q.awaited[e] = -1
                else:
                    heaps = 2
                    if q.missing[favourite] == 0:
                        key = max(q.ready_at[favourite, e], q.idle[e]) + weight * a.op_seconds[favourite, e]
                        if key <= best:
                            best, first, d, op = key, -1, e, favourite
            _tidy(a, b, x, q, heaps, e, by_priority, weight, device)
            for heap in range(heaps, heaps + 2):
                if q.size[heap, e] > 0:
                    key = q.key[heap, e * n_ops] + (q.idle[e] if heap == heaps + 1 else 0.0)
                    item = q.item[heap, e * n_ops]
                    if key < best or (key == best and item < first):
                        best, first, d, op = key, item, e, by_priority[item]
        if d == n_devices:
            return count
        if x.home[b.of[op]] < 0:
            settle(b, x, b.of[op], d)
        there = inputs_at(a, inputs, x, op, np.int64(a.location[d]), device, book)
        lane = 0
        for other in range(q.stream.shape[1]):
            lane = other if q.stream[d, other] < q.stream[d, lane] else lane
        device[op] = d
        x.finish[op] = q.stream[d, lane] = max(q.stream[d, lane], there) + a.op_seconds[op, d]
        q.idle[d] = q.stream[d, 0]
        for other in range(q.stream.shape[1]):
            q.idle[d] = min(q.idle[d], q.stream[d, other])
        q.awaited[d] = child[op] if a.streams[d] == 1 else -1
        for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
            for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                reader = a.consumers[row]
                q.missing[reader] -= 1
                if q.missing[reader] == 0:
                    q.fresh[n_fresh] = reader
                    n_fresh += 1
    return n_ops


@lean_helper
def _may_come(b, x, op, d, device):
    """Whether an op that is open may still go to device d."""
    home = x.home[b.of[op]]
    return device[op] < 0 and (home == d or (home < 0 and fits(b, x, b.of[op], d)))


@lean_helper
def _offer(a, b, inputs, x, q, op, priority, weight, device, estimate):
    """Put a ready op on the heaps of every device that its block may use."""
    home, urgent = x.home[b.of[op]], 0.0
    for d in range(len(a.location)):
        here = b.allowed[b.of[op], d] and (home < 0 or home == d)
        if here or len(q.urgent_at):
            q.ready_at[op, d] = inputs_at(a, inputs, x, op, np.int64(a.location[d]), device, estimate)
            urgent = max(urgent, q.ready_at[op, d])
        if here:
            key = q.ready_at[op, d] + weight * a.op_seconds[op, d]
            push(q.key[0], q.item[0], d * len(device), q.size[0, d], key, priority[op])
            q.size[0, d] += 1
    if len(q.urgent_at):
        q.urgent_at[op] = urgent
        for d in range(len(a.location)):
            if b.allowed[b.of[op], d] and (home < 0 or home == d):
                key = urgent + weight * a.op_seconds[op, d]
                push(q.key[2], q.item[2], d * len(device), q.size[2, d], key, priority[op])
                q.size[2, d] += 1


@lean_helper
def _tidy(a, b, x, q, heaps, d, by_priority, weight, device):
    """Make the heads of a device's heaps true: drop what went elsewhere or does not fit, move what has arrived."""
    base = d * len(device)
    for heap in range(heaps, heaps + 2):
        while q.size[heap, d] > 0:
            op = by_priority[q.item[heap, base]]
            kept = _may_come(b, x, op, d, device)
            since = q.ready_at[op, d] if heaps == 0 else q.urgent_at[op]
            if kept and (heap == heaps + 1 or since > q.idle[d]):
                break
            item = q.item[heap, base]
            pop(q.key[heap], q.item[heap], base, q.size[heap, d])
            q.size[heap, d] -= 1
            if kept:
                push(
                    q.key[heaps + 1], q.item[heaps + 1], base, q.size[heaps + 1, d], weight * a.op_seconds[op, d], item
                )
                q.size[heaps + 1, d] += 1
