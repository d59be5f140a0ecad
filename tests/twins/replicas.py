"""Max-load with replicated stages, by sending samples to every combination of members in turn and taking the mean."""

from __future__ import annotations

from itertools import product

from placewise.model.problem import Problem
from twins.plain import Plain
from twins.throughput import parts_of, worst_of


def replicated_value(problem: Problem, device: list[int], stage: list[int]) -> float:
    """Seconds per sample of the busiest device or wire, where device d repeats the stage of device ``stage[d]``."""
    backward = problem.graph.ops.backward.tolist()
    if problem.objective.schedule != "gpipe":
        return _busiest(problem, device, stage, [True] * len(backward), False, True)
    phases = (False, True) if any(backward) else (False,)
    return sum(
        _busiest(problem, device, stage, [late == phase for late in backward], phase, phase == phases[-1])
        for phase in phases
    )


def _busiest(
    problem: Problem, device: list[int], stage: list[int], counts: list[bool], phase: bool, syncs: bool
) -> float:
    members = {e: [d for d, first in enumerate(stage) if first == e] for e in sorted(set(stage))}
    turns = list(product(*members.values()))
    total: list[list[float]] = []
    for turn in turns:
        home = dict(zip(members, turn, strict=True))
        parts = parts_of(problem, [home[d] for d in device], counts, phase)
        total = [
            [a + b for a, b in zip(*rows, strict=True)] for rows in zip(total or _zeros(parts), parts, strict=True)
        ]
    compute, send, receive, wires = ([seconds / len(turns) for seconds in part] for part in total)
    if syncs and any(problem.graph.ops.backward):
        for e, sharers in members.items():
            _add_sync(problem, [op for op, d in enumerate(device) if d == e], sharers, (compute, send, receive), wires)
    return worst_of(problem.objective.communication, compute, send, receive, wires)


def _zeros(parts: tuple[list[float], ...]) -> list[list[float]]:
    return [[0.0] * len(part) for part in parts]


def _add_sync(
    problem: Problem, ops: list[int], sharers: list[int], parts: tuple[list[float], ...], wires: list[float]
) -> None:
    """Two rounds of a ring, in each of which every member passes on all shares of the weights but one."""
    plain, graph, count = Plain(problem), problem.graph, len(sharers)
    sizes: dict[int, int] = {}
    for weight, size in enumerate(graph.weights.bytes.tolist()):
        storage = int(graph.weights.storage[weight])
        sizes[storage] = max(sizes.get(storage, 0), size)
    held = {int(graph.weights.storage[w]) for op in ops for w in graph.weights_of(op).tolist()}
    passed = 2 * (count - 1) * sum(sizes[storage] for storage in held) / count
    passed /= problem.objective.step_samples or count
    hops = []
    for k, member in enumerate(sharers):
        here, there = plain.location[member], plain.location[sharers[(k + 1) % count]]
        if here != there:
            hops += [(here, plain.host), (plain.host, there)] if plain.staged else [(here, there)]
    speed = problem.cluster.class_bandwidth.tolist()
    seconds = [passed / speed[plain.link_class[a][b]] for a, b in hops]
    _, send, receive = parts
    for member in sharers:
        send[member] += max(seconds, default=0.0)
        if problem.objective.communication == "duplex":
            receive[member] += max(seconds, default=0.0)
    for (a, b), spent in zip(hops, seconds, strict=True):
        if plain.wire[a][b] >= 0:
            wires[plain.wire[a][b]] += spent
