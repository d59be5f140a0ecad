"""Execution `contention-free`: transfers never queue. The judge against a simulation written apart, and its users."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from simulate_problems import random_problem, seeded
from soak import seeds
from twins.operator import Operator

from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.registry import create
from placewise.simulate import evaluate, judge_placement, lower_bound, why_infeasible

FREE = Objective("latency", execution="contention-free", memory="sum")


def free_problem(seed: int, **options: object) -> Problem:
    """A random problem in which no op and no hop takes no time, so that no two events depend on each other at once."""
    problem = random_problem(seeded(seed), objective=FREE, constraints=Constraints(), **options)  # type: ignore[arg-type]
    costs = problem.costs
    hops = costs.transfer_seconds + 0.125
    hops[:, 0] = 0.0
    return problem.with_(costs=replace(costs, op_seconds=costs.op_seconds + 0.0625, transfer_seconds=hops))


def earliest_starts(problem: Problem, device: list[int], rank: list[int]) -> tuple[list[float], float]:
    """Starts of ops, and the makespan: over and over, the op that can start first, of the least rank on its device.

    An arrival is the end of the maker and the seconds of the hops: nothing else is waited for.
    """
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    host = len(cluster)
    where = [host if cluster.devices[d].is_host else d for d in device]

    def seconds(tensor: int, source: int, target: int) -> float:
        if source == target:
            return 0.0
        stops = [source, host, target] if cluster.transfers == "staged" else [source, target]
        hops = [(a, b) for a, b in pairwise(stops) if a != b]
        return sum(float(costs.transfer_seconds[tensor, cluster.link_class[hop]]) for hop in hops)

    maker = graph.tensors.producer.tolist()
    reads: list[set[int]] = [set() for _ in range(graph.n_ops)]
    for tensor, op in zip(graph.edges.value.tolist(), graph.edges.consumer.tolist(), strict=True):
        reads[op].add(tensor)
    streams = [[0.0] * machine.streams for machine in cluster]
    start, end = [inf] * graph.n_ops, [inf] * graph.n_ops
    left = set(range(graph.n_ops))
    while left:
        moments: dict[int, float] = {}
        for op in left:
            arrivals = [0.0]
            for tensor in reads[op]:
                source, made = (host, 0.0) if maker[tensor] < 0 else (where[maker[tensor]], end[maker[tensor]])
                arrivals.append(made + seconds(tensor, source, where[op]))
            moments[op] = max(min(streams[device[op]]), *arrivals)
        first = min(moments.values())
        op = min((op for op in left if moments[op] == first), key=lambda op: rank[op])
        lane = streams[device[op]]
        start[op], end[op] = first, first + float(costs.op_seconds[op, device[op]])
        lane[lane.index(min(lane))] = end[op]
        left.remove(op)
    outputs = np.flatnonzero(graph.tensors.output & (graph.tensors.producer >= 0)).tolist()
    home = [end[maker[tensor]] + seconds(tensor, where[maker[tensor]], host) for tensor in outputs]
    return start, max([0.0, *end, *home])


@pytest.mark.parametrize("seed", seeds(120))
def test_the_judge_equals_a_simulation_written_apart(seed: int) -> None:
    """Starts and value, in the evaluator, in the judge with its timeline and in the twin, whatever the cluster."""
    problem, rng = free_problem(seed), np.random.default_rng(seed)
    rows = rng.integers(0, problem.n_devices, (6, problem.n_ops)).astype(np.int32)
    twin = Operator(problem)
    for row, value in zip(rows, evaluate(problem, rows).tolist(), strict=True):
        start, expected = earliest_starts(problem, row.tolist(), twin.priority)
        judged = judge_placement(problem, Placement(row))
        assert judged.timeline is not None and twin(row.tolist()) == (expected, start)
        assert value == judged.value == expected and judged.timeline.start.tolist() == start


def test_only_queues_make_a_difference() -> None:
    """One link, two tensors sent at once: they arrive together, where `operator` lets the second wait for the first."""
    problems = [free_problem(seed, max_ops=9) for seed in range(40)]
    rng, slower = np.random.default_rng(0), 0
    for problem in problems:
        rows = rng.integers(0, problem.n_devices, (8, problem.n_ops)).astype(np.int32)
        queued = problem.with_(objective=replace(FREE, execution="operator"))
        hops = [judge_placement(one, Placement(rows[0])).timeline for one in (problem, queued)]
        assert hops[0] is not None and hops[1] is not None
        assert len(hops[0].tensor) == len(hops[1].tensor)
        slower += int((evaluate(queued, rows) > evaluate(problem, rows)).sum())
    assert slower > 10


@pytest.mark.parametrize("seed", seeds(24))
def test_searches_proofs_and_bounds_hold(seed: int) -> None:
    """No bound is above the best of all schedules, and the searches end at placements that the judge prices alike."""
    problem = free_problem(seed, max_ops=4, max_devices=2)
    if why_infeasible(problem):
        return
    best = place(problem, "exhaustive").value
    assert best is not None and lower_bound(problem).value <= best * (1 + 1e-9)
    budgets = {"temper": Budget(evaluations=50), "cpsat": Budget(20.0), "heft": Budget(), "etf": Budget()}
    for name, budget in budgets.items():
        proposal = run_placer(create(name), problem, budget)
        assert proposal.placement is not None
        assert judge_placement(problem, proposal.placement).value >= best * (1 - 1e-9)
        assert proposal.bound is None or proposal.bound.value <= best * (1 + 1e-9)
