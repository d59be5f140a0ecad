"""Memory per device: the judge, the checker and the plain twin count the same bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from simulate_problems import OBJECTIVES, placed, random_placement, random_problem, seeded
from twins import peak_memory
from twins.memory import resident_memory

from placewise.model.cluster import Cluster
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import device_memory, simulate


def starved(problem: Problem) -> Problem:
    """The problem with devices that have no memory at all, so that the checker tells what each needs."""
    devices = tuple(replace(device, memory=0.0) for device in problem.cluster)
    return problem.with_(cluster=Cluster(devices, problem.cluster.links, problem.cluster.transfers))


def agree(problem: Problem, placement: Placement) -> None:
    """Kernel, checker and twin give the same resident and peak bytes on every device."""
    resident, peak = device_memory(problem, placement)
    assert resident.tolist() == resident_memory(problem, placement.device.tolist())
    assert peak.tolist() == peak_memory(problem, placement)
    judged = simulate(starved(problem), placement)
    short = {v.device: v.bytes_short for v in judged.violations if v.kind == "memory"}
    for d, device in enumerate(problem.cluster):
        limited = problem.objective.memory == "live" or not device.is_host
        assert short.get(device.name, 0.0) == (peak[d] if limited else 0.0)
        assert judged.devices[d].peak == peak[d]
        assert judged.devices[d].resident == resident[d]


@settings(deadline=None, max_examples=200)
@given(placed())
def test_three_ways_to_count_small(case):
    """On problems that hypothesis can shrink."""
    agree(*case)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_three_ways_to_count(objective):
    """On many larger problems of every objective, in both memory models, also where an op cannot run."""
    for seed in range(120):
        choose = seeded(seed)
        problem = random_problem(choose, max_ops=25, objective=objective, rules=seed % 3 == 0)
        placement = random_placement(problem, choose)
        if seed % 5 == 0:
            seconds = problem.costs.op_seconds.copy()
            seconds[choose(0, problem.n_ops - 1)] = math.inf
            problem = problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))
        agree(problem, placement)


@pytest.mark.parametrize("execution", ["operator", "subgraph"])
def test_calls_and_orders_move_the_peak(execution):
    """Memory follows the calls and the order that a placement brings."""
    found = set()
    for seed in range(60):
        choose = seeded(seed)
        problem = random_problem(choose, max_ops=12, objective=Objective("latency", execution=execution))
        device = random_placement(problem, choose).device
        numbers = np.array([choose(0, 2) for _ in device], np.int32)
        own = Placement(device, call=numbers) if execution == "subgraph" else Placement(device, order=numbers)
        agree(problem, own)
        found.add(bool((device_memory(problem, own)[1] == device_memory(problem, Placement(device))[1]).all()))
    assert found == {True, False}


def test_ops_on_hosts_are_in_no_call():
    """Whatever numbers a placement gives to ops on hosts, times and memory stay the same."""
    for seed in range(60):
        choose = seeded(seed)
        problem = random_problem(choose, max_ops=12, objective=Objective("latency", execution="subgraph"))
        device = random_placement(problem, choose).device
        numbers = np.array([choose(0, 2) for _ in device], np.int32)
        elsewhere = np.where(problem.cluster.is_host[device], 2 - numbers, numbers)
        one, other = (simulate(problem, Placement(device, call=call)) for call in (numbers, elsewhere))
        assert one.value == other.value
        assert [use.peak for use in one.devices] == [use.peak for use in other.devices]


@settings(deadline=None, max_examples=100)
@given(placed(objective=OBJECTIVES[0]))
def test_one_device_holds_everything(case):
    """On a single device resident bytes are all state and every storage once, whatever the placement was."""
    problem, _ = case
    weights = problem.graph.weights
    used = np.unique(problem.graph.weight_edges.value)
    storages = {int(storage) for storage in weights.storage[used]}
    largest = [int(weights.bytes[weights.storage == storage].max()) for storage in storages]
    resident, _ = device_memory(problem, Placement.on(0, problem.n_ops))
    assert resident[0] == problem.graph.ops.state_bytes.sum() + sum(largest)
    assert not resident[1:].any()
