"""Bounds and proofs of infeasibility against every placement of small problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bounded_problems import best_valid, candidates
from ortools.linear_solver import pywraplp
from simulate_problems import OBJECTIVES, random_placement, random_problem, seeded
from soak import enough, seeds

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Floats
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import evaluate, judge_placement, lower_bound, why_infeasible

SHARES = {
    "throughput (blocking)": {"live": 0.825, "sum": 0.778},
    "throughput (overlap)": {"live": 0.844, "sum": 0.840},
    "throughput (duplex)": {"live": 0.861, "sum": 0.859},
    "latency (operator)": {"live": 0.888, "sum": 0.823},
    "latency (subgraph)": {"live": 0.907, "sum": 0.864},
    "latency (sequential)": {"live": 0.749, "sum": 0.728},
}
"""What bounds reach of the best values of the first twelve problems below, on average."""


@pytest.mark.parametrize("memory", ["live", "sum"])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_bounds_and_proofs(objective, memory):
    """No valid placement is below the bound, which is as close as ever; where a proof says so there is none at all."""
    seen, shares = {"bounded": 0, "tight": 0, "proved": 0}, []
    for seed in seeds(48):
        problem = random_problem(
            seeded(seed), max_ops=6, max_devices=3, objective=objective, rules=seed % 3 == 0, scarce=seed % 4 != 0
        )
        problem = problem.with_(objective=replace(objective, memory=memory))
        best, bound, proof = best_valid(problem), lower_bound(problem), why_infeasible(problem)
        if proof:
            assert best == np.inf
            seen["proved"] += 1
        elif best < np.inf:
            assert bound.value <= best
            assert bound.method
            seen["bounded"] += 1
            seen["tight"] += bound.value > 0 and bound.value >= best * (1 - 1e-9)
            shares += [bound.value / best] if best > 0 and seed < 12 else []
    assert np.mean(shares) >= SHARES[str(objective)][memory]
    assert seen["proved"] > 1
    assert seen["bounded"] > enough(16)
    assert seen["tight"] > 1


@pytest.mark.parametrize("execution", ["operator", "subgraph"])
def test_bounds_with_calls_and_orders(execution):
    """A placement cannot get below the bound by choosing its calls or its order either."""
    judged = 0
    for seed in seeds(60):
        choose = seeded(7000 + seed)
        problem = random_problem(
            choose, max_ops=7, max_devices=3, objective=Objective(execution=execution), scarce=seed % 4 != 0
        )
        bound, proof = lower_bound(problem).value, why_infeasible(problem)
        for _ in range(20):
            device = random_placement(problem, choose).device
            numbers = np.array([choose(0, 2) for _ in device], np.int32)
            own = Placement(device, call=numbers) if execution == "subgraph" else Placement(device, order=numbers)
            judgement = judge_placement(problem, own)
            assert not (judgement.valid and proof)
            if judgement.valid:
                assert bound <= judgement.value
                judged += 1
    assert judged > 100


def alike(count: int, seconds: list[float], *, memory: float = np.inf, cpus: int = 0, slow: float = 4.0) -> Problem:
    """Ops without edges, of 1 byte each, on equal accelerators and on CPUs that are slower."""
    builder = GraphBuilder()
    for op in range(len(seconds)):
        builder.add_op(f"op{op}", "Op", state_bytes=1)
    devices = [Device(f"acc{i}", memory=memory) for i in range(count)]
    devices += [Device(f"cpu{i}", kind="cpu") for i in range(cpus)]
    links = tuple(Link(*ends, 1.0) for d in devices[:count] for ends in ((d.name, HOST), (HOST, d.name)))
    cluster = Cluster(tuple(devices), links)
    table = np.array([[time] * count + [time * slow] * cpus for time in seconds])
    costs = CostTable.given(table, np.zeros((0, len(cluster.class_bandwidth))))
    return Problem(builder.build(), cluster, costs, Objective("throughput", memory="sum"))


def test_work_over_devices():
    """Ten seconds of work in small ops on four devices: 2.5 s."""
    bound = lower_bound(alike(4, [0.1] * 100))
    assert bound.value == pytest.approx(2.5, rel=1e-9)
    assert bound.method == "fractional assignment"


def test_largest_group():
    """One op of 7 s cannot be shared out."""
    bound = lower_bound(alike(4, [7, 1, 1]))
    assert bound.value == pytest.approx(7, rel=1e-9)
    assert bound.method == "largest group"


def test_cpus_work_too():
    """The CPU takes its share at a quarter of the speed: 9 s of work at a pace of 2 + 1/4 take 4 s."""
    assert lower_bound(alike(2, [0.1] * 90, cpus=1)).value == pytest.approx(4.0, rel=1e-6)


def test_memory_drives_work_to_the_cpu():
    """Two of ten ops fit on accelerators; the other eight take 4 s each on one CPU."""
    bound = lower_bound(alike(2, [1.0] * 10, memory=1, cpus=1))
    assert bound.value == pytest.approx(32, rel=1e-6)


def test_time_and_memory_together():
    """Three accelerators that hold m ops each, and two CPUs: the linear program's value, by hand.

    With work W on accelerators, W ≤ 3 T and W ≤ G, the 3 m longest ops; the rest takes slow (Σ − W) ≤ 2 T.
    """
    rng = np.random.default_rng(0)
    for _ in range(30):
        times = rng.integers(1, 9, 12).astype(float)
        room, slow = int(rng.integers(1, 4)), float(rng.integers(1, 6))
        longest = float(np.sort(times)[::-1][: 3 * room].sum())
        pace = max(slow * times.sum() / (2 + 3 * slow), slow * (times.sum() - longest) / 2)
        bound = lower_bound(alike(3, times.tolist(), memory=room, cpus=2, slow=slow))
        assert bound.value >= pace * (1 - 1e-6)


def least_load(seconds: Floats, size: Floats, room: Floats) -> float:
    """The linear program itself: fractions of ops [n] on devices [k] within their memory, least time of the busiest."""
    solver = pywraplp.Solver("assignment", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
    load = solver.NumVar(0, solver.infinity(), "")
    share = [[solver.NumVar(0, 1, "") for _ in room] for _ in size]
    for row in share:
        solver.Add(sum(row) == 1)
    for d, most in enumerate(room.tolist()):
        solver.Add(sum(row[d] * float(seconds[op, d]) for op, row in enumerate(share)) <= load)
        solver.Add(sum(row[d] * float(size[op]) for op, row in enumerate(share)) <= most)
    solver.Minimize(load)
    assert solver.Solve() == solver.OPTIMAL
    return float(solver.Objective().Value())


@pytest.mark.parametrize("seed", range(3))
def test_prices_reach_the_linear_program(seed):
    """Sixty unequal ops on six unequal devices whose memory is scarce: no bound on fractions is better by 0.1 %."""
    rng = np.random.default_rng(seed)
    seconds, size = rng.uniform(1, 9, (60, 6)), rng.integers(1, 20, 60)
    room = np.floor(size.sum() / 6 * rng.uniform(0.6, 2, 6))
    builder = GraphBuilder()
    for op, nbytes in enumerate(size.tolist()):
        builder.add_op(f"op{op}", "Op", state_bytes=nbytes)
    devices = tuple(Device(f"acc{d}", memory=most) for d, most in enumerate(room.tolist()))
    cluster = Cluster(devices, tuple(Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name))))
    table = CostTable.given(seconds, np.zeros((0, len(cluster.class_bandwidth))))
    problem = Problem(builder.build(), cluster, table, Objective("latency", execution="operator", memory="sum"))
    best = least_load(seconds, size.astype(float), room)
    assert best * (1 - 1e-3) <= lower_bound(problem).value <= best * (1 + 1e-9)


def test_streams_share_a_group():
    """On a device with two streams a group of two ops takes as long as the longer one."""
    builder = GraphBuilder()
    for op in range(2):
        builder.add_op(f"op{op}", "Op", group=0)
    cluster = Cluster((Device("cpu", kind="cpu", streams=2),))
    problem = Problem(builder.build(), cluster, CostTable.given(np.ones((2, 1)), np.zeros((0, 1))), Objective())
    assert judge_placement(problem, Placement.on(0, 2)).value == 1
    assert lower_bound(problem).value == pytest.approx(1, rel=1e-9)


def test_a_chain_is_its_critical_path():
    """A chain at its best times; the faster device of each op counts."""
    builder = GraphBuilder()
    for op in range(5):
        builder.add_op(f"op{op}", "Op")
        if op:
            builder.add_edge(builder.add_tensor(op - 1, nbytes=1), op)
    cluster = Cluster(tuple(Device(f"cpu{i}", kind="cpu") for i in range(2)))
    table = np.array([[1.0, 2.0], [3.0, 1.0], [1.0, 1.0], [2.0, 1.0], [1.0, 5.0]])
    for execution in ("operator", "subgraph", "sequential"):
        problem = Problem(
            builder.build(), cluster, CostTable.given(table, np.zeros((4, 1))), Objective(execution=execution)
        )
        assert lower_bound(problem).value == pytest.approx(5, rel=1e-9)
        assert evaluate(problem, candidates(problem)).min() == 5


def test_nothing_to_bound():
    """An empty graph, an op that may run nowhere, and a graph of zero cost are bounded by zero."""
    problem = alike(2, [1.0, 1.0])
    nowhere = problem.with_(costs=CostTable.given(np.full((2, 2), np.inf), problem.costs.transfer_seconds))
    assert lower_bound(nowhere).value == 0
    assert lower_bound(alike(2, [0.0, 0.0])).value == 0
    empty = alike(2, [1.0])
    empty = Problem(
        GraphBuilder().build(), empty.cluster, CostTable.given(np.zeros((0, 2)), empty.costs.transfer_seconds)
    )
    assert lower_bound(empty).value == 0
    assert why_infeasible(empty) == ""


def test_an_op_is_not_spread_where_its_share_would_be_too_slow():
    """Two ops of 1 s, or 10 s on the CPU: below 10 s nothing runs there, so that both are the accelerator's, 2 s."""
    builder = GraphBuilder()
    for op in range(2):
        builder.add_op(f"op{op}", "Op")
    links = (Link("acc", HOST, 1.0), Link(HOST, "acc", 1.0))
    cluster = Cluster((Device("acc"), Device("cpu", kind="cpu")), links)
    table = CostTable.given(np.array([[1.0, 10.0]] * 2), np.zeros((0, len(cluster.class_bandwidth))))
    problem = Problem(builder.build(), cluster, table, Objective("throughput"))
    assert lower_bound(problem).value == pytest.approx(2.0, rel=1e-4)
