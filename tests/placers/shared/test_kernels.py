"""The kernels of the placers against plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from soak import examples
from strategies import problems
from twins.plain import Plain

from placewise.model.problem import Problem
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.list_scheduling.etf import schedule_earliest
from placewise.placers.shared.stages.ideals import Ideals, enumerate_ideals
from placewise.simulate.contiguity import contract
from placewise.simulate.judge.ranks import upward_ranks


@examples(30)
@given(problems(max_ops=8))
def test_ideals_are_all_closed_sets(problem: Problem) -> None:
    """Every set closed under predecessors exactly once, with a way from each to every one that is larger by one."""
    graph = contract(problem)
    tail, head = (ends.tolist() for ends in graph.edges())
    closed = {
        frozenset(c for c in range(graph.n) if bits >> c & 1)
        for bits in range(1 << graph.n)
        if all(bits >> t & 1 or not bits >> h & 1 for t, h in zip(tail, head, strict=True))
    }
    ideals = enumerate_ideals(graph, 1 << graph.n)
    assert isinstance(ideals, Ideals)
    sets = [frozenset(np.flatnonzero(ideals.members(i)).tolist()) for i in range(len(ideals))]
    assert len(sets) == len(closed) and set(sets) == closed
    ways = {(sets[i], sets[target]) for i in range(len(ideals)) for _, target in ideals.steps(i)}
    assert ways == {(small, large) for small in closed for large in closed if small < large and len(large - small) == 1}


def first_gap(busy: list[tuple[float, float]], ready: float, seconds: float) -> float:
    """The earliest time from `ready` on at which nothing is booked for so many seconds."""
    tail = 0.0
    for start, end in sorted(span for span in busy if span[0] < span[1]):
        if start > max(ready, tail) and max(ready, tail) + seconds <= start:
            return max(ready, tail)
        tail = max(tail, end)
    return max(ready, tail)


def list_schedule(problem: Problem, weight: float) -> list[int] | None:
    """List scheduling with memory, every pair of ready op and device looked at in every step."""
    plain, graph = Plain(problem), problem.graph
    rank = upward_ranks(problem)
    priority = np.argsort(np.argsort(-rank, kind="stable"), kind="stable").tolist()
    block, host = problem.block.tolist(), problem.n_devices
    device, finish, home = [-1] * problem.n_ops, [0.0] * problem.n_ops, dict[int, int]()
    room = problem.capacity.tolist()
    stored: list[set[int]] = [set() for _ in problem.cluster]
    lanes = [[0.0] * machine.streams for machine in problem.cluster]
    busy = dict[int, list[tuple[float, float]]]()
    there, ready_at = dict[tuple[int, int], float](), dict[tuple[int, int], float]()
    sizes: dict[int, int] = {}
    for size, storage in zip(graph.weights.bytes.tolist(), graph.weights.storage.tolist(), strict=True):
        sizes[storage] = max(sizes.get(storage, 0), size)

    def hop(tensor: int, source: int, target: int, ready: float, book: bool) -> float:
        if (tensor, target) in there:
            return there[tensor, target]
        queue = busy.setdefault(int(problem.cluster.queue[source, target]), [])
        begin, seconds = first_gap(queue, ready, plain.hop(tensor, source, target)), plain.hop(tensor, source, target)
        if book:
            there[tensor, target] = begin + seconds
            queue.append((begin, begin + seconds))
        return begin + seconds

    def inputs_at(op: int, target: int, book: bool) -> float:
        latest = 0.0
        for tensor in graph.inputs_of(op).tolist():
            maker = int(graph.tensors.producer[tensor])
            source, ready = (host, 0.0) if maker < 0 else (plain.location[device[maker]], finish[maker])
            if plain.staged and host not in (source, target) and source != target:
                ready, source = hop(tensor, source, host, ready, book), host
            if source != target:
                ready = hop(tensor, source, target, ready, book)
            latest = max(latest, ready)
        return latest

    def needs(b: int, d: int) -> int:
        ops = [op for op in range(problem.n_ops) if block[op] == b]
        held = {int(graph.weights.storage[w]) for op in ops for w in graph.weights_of(op)} - stored[d]
        return sum(int(graph.ops.state_bytes[op]) for op in ops) + sum(sizes[s] for s in held)

    def able(b: int, d: int) -> bool:
        if b in home:
            return home[b] == d
        return bool(problem.allowed[problem.block == b, d].all()) and needs(b, d) <= room[d]

    for _ in range(problem.n_ops):
        options = []
        for op in range(problem.n_ops):
            makers = [int(m) for m in graph.tensors.producer[graph.inputs_of(op)] if m >= 0]
            if device[op] >= 0 or any(device[m] < 0 for m in makers):
                continue
            for d in range(problem.n_devices):
                if (op, d) not in ready_at and (block[op] not in home or home[block[op]] == d):
                    ready_at[op, d] = inputs_at(op, plain.location[d], False)
                if able(block[op], d):
                    start = max(min(lanes[d]), ready_at[op, d])
                    options.append((start + weight * plain.seconds[op][d], priority[op], d, op))
        if not options:
            return None
        _, _, d, op = min(options)
        if block[op] not in home:
            room[d] -= needs(block[op], d)
            home[block[op]] = d
            for member in np.flatnonzero(problem.block == block[op]).tolist():
                stored[d] |= {int(graph.weights.storage[w]) for w in graph.weights_of(member)}
        arrival = inputs_at(op, plain.location[d], True)
        lane = lanes[d].index(min(lanes[d]))
        lanes[d][lane] = finish[op] = max(lanes[d][lane], arrival) + plain.seconds[op][d]
        device[op] = d
    return device


@examples(25)
@given(problems(max_ops=8))
def test_list_scheduling_is_the_plain_one(problem: Problem) -> None:
    """The heaps choose what looking at every pair chooses, by finish and by start."""
    for by in ("finish", "start"):
        device, placed = schedule_earliest(problem, problem.capacity, None, watch=Stopwatch(Budget()), by=by)  # type: ignore[arg-type]
        expected = list_schedule(problem, 1.0 if by == "finish" else 0.0)
        assert (device.tolist() if placed == problem.n_ops else None) == expected
