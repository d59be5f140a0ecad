"""The rules of a placement in plain Python, straight from their definitions: for brute force in tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
from twins.replicas import replicated_value
from twins.throughput import throughput_value

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.simulate.replicas import equal_devices


def naive_edges(problem: Problem) -> set[tuple[int, int]]:
    """The edges between blocks that contiguity respects, op by op."""
    graph, block = problem.graph, problem.block.tolist()
    backward, phase = graph.ops.backward.tolist(), graph.ops.phase.tolist()
    forward_blocks = {block[op] for op in range(graph.n_ops) if not backward[op]}
    edges = set()
    for row in range(len(graph.edges)):
        u, v = int(graph.tensors.producer[graph.edges.value[row]]), int(graph.edges.consumer[row])
        if u < 0 or block[u] == block[v] or phase[u] != phase[v]:
            continue
        if not backward[v]:
            edges.add((block[u], block[v]))
        elif backward[u] and not {block[u], block[v]} <= forward_blocks:
            edges.add((block[v], block[u]))
    return edges


def is_chain(edges: set[tuple[int, int]], home: tuple[int, ...]) -> bool:
    """Whether some order of the devices lets every edge between blocks [n_blocks] → device go forward."""
    return any(
        all(order.index(home[u]) <= order.index(home[v]) for u, v in edges) for order in permutations(sorted(set(home)))
    )


def leaves_and_returns(problem: Problem, device: list[int]) -> bool:
    """Whether a path of forward ops of one phase leaves some device's ops and comes back, by following every path."""
    graph = problem.graph
    after: dict[int, set[int]] = {op: set() for op in range(graph.n_ops)}
    for tensor, op in zip(graph.edges.value.tolist(), graph.edges.consumer.tolist(), strict=True):
        maker = int(graph.tensors.producer[tensor])
        forward = maker >= 0 and not graph.ops.backward[maker] and not graph.ops.backward[op]
        if forward and graph.ops.phase[maker] == graph.ops.phase[op]:
            after[maker].add(op)

    def returns(op: int, home: int) -> bool:
        return any(device[reader] == home or returns(reader, home) for reader in after[op])

    return any(
        device[reader] != device[op] and returns(reader, device[op])
        for op, readers in after.items()
        for reader in readers
    )


def resident(problem: Problem, device: list[int]) -> list[int]:
    """Bytes of state and of distinct storages [n_devices]."""
    graph = problem.graph
    total = [0] * problem.n_devices
    largest: dict[int, int] = {}
    for size, storage in zip(graph.weights.bytes.tolist(), graph.weights.storage.tolist(), strict=True):
        largest[storage] = max(largest.get(storage, 0), size)
    held = set()
    for op in range(graph.n_ops):
        total[device[op]] += int(graph.ops.state_bytes[op])
        held |= {(device[op], int(graph.weights.storage[w])) for w in graph.weights_of(op)}
    for d, storage in held:
        total[d] += largest[storage]
    return total


def placements(problem: Problem) -> Iterator[tuple[list[int], float]]:
    """Every placement that keeps support, colocation, resident memory and the shape of stages, with its max-load."""
    convex = problem.constraints.convex and not problem.constraints.contiguous
    edges = naive_edges(problem) if problem.constraints.contiguous else set()
    allowed = problem.allowed
    places = [
        [d for d in range(problem.n_devices) if allowed[problem.block == block, d].all()]
        for block in range(problem.n_blocks)
    ]
    for home in product(*places):
        device = [home[block] for block in problem.block.tolist()]
        if (np.array(resident(problem, device)) <= problem.capacity).all() and is_chain(edges, home):
            if convex and leaves_and_returns(problem, device):
                continue
            yield device, throughput_value(problem, device)


def keeps_the_rules(problem: Problem, device: list[int]) -> bool:
    """Whether the checker finds no fault but calls in a circle, which are no matter of memory or rules."""
    judged = judge_placement(problem, Placement(np.array(device, np.int32)))
    return {violation.kind for violation in judged.violations} <= {"calls"}


def with_replicas(problem: Problem, plain: Iterator[tuple[list[int], float]]) -> Iterator[tuple[Placement, float]]:
    """Placements, each with every way in which unused devices may repeat stages of equal ones, and its max-load."""
    kind, devices = equal_devices(problem).tolist(), range(problem.n_devices)
    for device, value in plain:
        used = set(device)
        choices = [
            [d, *(e for e in sorted(used) if kind[e] == kind[d])] if d not in used and problem.max_replicas > 1 else [d]
            for d in devices
        ]
        for stage in product(*choices):
            if max(map(stage.count, stage)) > problem.max_replicas:
                continue
            alone = list(stage) == list(devices)
            column = None if alone else np.array(stage, np.int32)
            worth = value if alone else replicated_value(problem, device, list(stage))
            yield Placement(np.array(device, np.int32), replicas=column), worth


def optimum(problem: Problem) -> float:
    """The least value of any placement that keeps the rules; inf if there is none."""
    return min((value for _, value in placements(problem)), default=math.inf)


def valid_optimum(problem: Problem) -> float:
    """The least max-load of all placements that keep every rule; inf if none does."""
    live, best = problem.objective.memory == "live", math.inf
    for device, value in placements(problem):
        if value < best and (not live or judge_placement(problem, Placement(np.array(device, np.int32))).valid):
            best = value
    return best
