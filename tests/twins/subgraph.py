"""`subgraph` latency: calls of accelerators and single ops on hosts, resolved by recursion over what each waits for."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from placewise.model.problem import Problem
from twins.plain import Plain, Run, Transfer

Node = tuple[int, int]
"""(accelerator, call number), or (host location, op) for an op on a host device."""


def alternation_depth(plain: Plain, device: list[int]) -> list[int]:
    """How often a path to each op has entered the op's device, less one; −1 on hosts."""
    before: list[list[int]] = [[] for _ in range(plain.n_ops)]
    for tensor, readers in enumerate(plain.readers):
        if plain.maker[tensor] >= 0:
            for op in readers:
                before[op].append(plain.maker[tensor])
    numbers = []
    entered: dict[int, list[int]] = {}
    for d in sorted(set(device)):
        count = entered[d] = [0] * plain.n_ops
        for op in range(plain.n_ops):
            inside = device[op] == d
            entries = [count[p] + (inside and device[p] != d) for p in before[op]]
            count[op] = max([int(inside), *entries])
    for op, d in enumerate(device):
        numbers.append(-1 if plain.location[d] == plain.host else entered[d][op] - 1)
    return numbers


def subgraph_makespan(problem: Problem, device: list[int], call: list[int] | None = None) -> Run:
    """The makespan of one placement, when each op starts, and every hop of a tensor; inf in a circle."""
    plain = Plain(problem)
    numbers = alternation_depth(plain, device) if call is None else call
    node: list[Node] = [
        (plain.host, op) if plain.location[d] == plain.host else (d, numbers[op]) for op, d in enumerate(device)
    ]
    ops: dict[Node, list[int]] = {}
    for op in range(plain.n_ops):
        ops.setdefault(node[op], []).append(op)
    needs: dict[Node, set[Node]] = {name: set() for name in ops}
    receives: dict[Node, list[tuple[int, int, int]]] = {name: [] for name in ops}
    sends: dict[Node, list[tuple[int, int, int]]] = {name: [] for name in ops}
    for tensor, readers in enumerate(plain.readers):
        maker = plain.maker[tensor]
        origin = node[maker] if maker >= 0 else None
        source = origin[0] if origin is not None else plain.host
        homewards = (tensor, source, plain.host)
        leaves = plain.output[tensor] and source != plain.host
        for target in dict.fromkeys(node[op] for op in readers):
            if target == origin:
                continue
            if origin is not None:
                needs[target].add(origin)
            there = target[0]
            through_host = plain.staged or source == there
            if there != plain.host:
                receives[target].append((tensor, plain.host if through_host else source, there))
            if origin is None or source == plain.host:
                continue
            if plain.staged or there == plain.host:
                leaves = True
            else:
                sends[origin].append(homewards if source == there else (tensor, source, there))
        if leaves and origin is not None:
            sends[origin].append(homewards)
    calls = sorted(name for name in ops if name[0] != plain.host)
    for earlier, later in pairwise(calls):
        if earlier[0] == later[0]:
            needs[later].add(earlier)

    start, transfers = [inf] * plain.n_ops, list[Transfer]()
    end: dict[Node, float] = {}

    def run(name: Node) -> float:
        clock = max((end[before] for before in needs[name]), default=0.0)
        accelerator = name[0] != plain.host
        if accelerator:
            clock += plain.overhead[name[0]]
        for hop in receives[name]:
            transfers.append((*hop, clock, clock + plain.hop(*hop)))
            clock += plain.hop(*hop)
        for op in ops[name]:
            start[op] = clock
            clock += plain.seconds[op][device[op]]
        for hop in sends[name]:
            transfers.append((*hop, clock, clock + plain.hop(*hop)))
            clock += plain.hop(*hop)
        return clock

    waiting = set(ops)
    while waiting:
        free = [name for name in waiting if not needs[name] & waiting]
        if not free:
            return Run(inf, [], [])
        for name in free:
            end[name] = run(name)
        waiting.difference_update(free)
    return Run(max(end.values(), default=0.0), start, transfers)
