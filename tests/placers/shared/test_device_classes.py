"""Classes of devices that may hold stages: figures against pairs of devices, prices against the linear program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ortools.linear_solver import pywraplp
from soak import seeds
from split_problems import split_problem

from placewise.model.problem import Problem
from placewise.model.ways import StageGroup
from placewise.placers.shared.device_classes import DeviceClass, Route, assign_devices, classify, device_prices

FREE = (np.inf, 0.0)


def route_between(problem: Problem, a: int, b: int) -> Route:
    """Both directions at the quicker latency and the slower rate; nothing inside one memory."""
    cluster = problem.cluster
    ends = (int(cluster.location[a]) if a < len(cluster) else a), (int(cluster.location[b]) if b < len(cluster) else b)
    both = [int(cluster.link_class[ends]), int(cluster.link_class[ends[::-1]])]
    if 0 in both:
        return FREE
    return min(float(cluster.class_bandwidth[k]) for k in both), min(float(cluster.class_latency[k]) for k in both)


def pick(routes: list[Route], worst: bool) -> Route:
    """The best or the worst figures of any of them."""
    if not routes:
        return FREE
    rates, latencies = zip(*routes, strict=True)
    return (min(rates), max(latencies)) if worst else (max(rates), min(latencies))


@pytest.mark.parametrize("transfers", ["staged", "direct"])
def test_classes_are_seen_at_their_best_at_their_worst_or_apart(transfers: str) -> None:
    """Every figure of every class, pair of devices by pair; the devices are all there once, and nothing else is."""
    apart = 0
    for seed in seeds(24):
        problem = split_problem(seed, classes=2, devices=5, transfers=transfers, even=False, hosts=True, rules=True)
        ways = problem.require_ways()
        usable = np.flatnonzero(ways.device_class >= 0).tolist()
        node = ways.node.tolist()
        for view in ("best", "worst", "apart"):
            classes = classify(problem, view)  # type: ignore[arg-type]
            assert sorted(d for one in classes for d in one.members) == usable
            apart += view == "apart" and len(classes) > ways.n_classes
            for one in classes:
                worst, own = view == "worst", one.members
                assert list(own) == sorted(own, key=lambda d: (node[d], d))
                assert {int(ways.device_class[d]) for d in own} == {one.cost_class}
                rooms = [float(problem.capacity[d]) for d in own]
                assert one.capacity == (min(rooms) if worst else max(rooms))
                for unit in range(ways.n_units):
                    able = [bool(problem.allowed[ways.unit == unit, d].all()) for d in own]
                    assert one.able[unit] == (all(able) if worst else any(able))
                    assert view != "apart" or len(set(able)) == 1
                homes = sorted({node[d] for d in own})
                assert one.node_counts == tuple(sum(node[d] == home for d in own) for home in homes)
                assert one.node_room == max(sum(node[d] == home for d in usable) for home in homes)
                if transfers == "staged":
                    here = pick([route_between(problem, d, problem.n_devices) for d in own], worst)
                    assert one.routes == (here,) * 4
                    continue
                pairs = {
                    "boundary": [(a, b) for a in own for b in usable if a != b],
                    "inside": [(a, b) for a in own for b in own if a != b],
                    "across": [(a, b) for a in own for b in own if node[a] != node[b]],
                    "beyond": [(a, b) for a in own for b in usable if node[a] != node[b]],
                }
                for name, ends in pairs.items():
                    assert getattr(one, name) == pick([route_between(problem, a, b) for a, b in ends], worst), name
    assert apart > 2


def of_nodes(*counts: int, first: int = 0) -> DeviceClass:
    """A class of so many devices in each node, numbered from `first` on."""
    members = tuple(range(first, first + sum(counts)))
    return DeviceClass(members, 0, 1.0, np.ones(1, np.bool_), counts, max(counts), FREE, FREE, FREE, FREE)


def test_splits_stay_inside_nodes() -> None:
    """How many splits of a degree there is room for, the largest node, and what makes two views the same."""
    one = of_nodes(3, 2)
    assert [one.count_splits(degree) for degree in (1, 2, 3, 4)] == [5, 2, 1, 0]
    assert one.node_size == 3
    assert one.is_like(of_nodes(3, 2)) and not one.is_like(of_nodes(3, 2, first=1))
    for change in ({"capacity": 2.0}, {"able": np.zeros(1, np.bool_)}, {"beyond": (1.0, 0.0)}, {"inside": (1.0, 0.0)}):
        assert not one.is_like(replace(one, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "rows", "devices"),
    [
        ([0, 0, 1, 1], [(0, 1, 1), (0, 2, 1), (0, 1, 1)], [(0,), (2, 3), (1,)]),  # along the nodes
        ([0, 0, 1, 1], [(0, 2, 2)], [(0, 1, 2, 3)]),
        ([0, 0, 1, 1], [(0, 1, 3)], [(0, 1, 2)]),
        ([0, 0, 0, 1, 1], [(0, 2, 1), (0, 3, 1)], [(3, 4), (0, 1, 2)]),  # the widest first where that leaves gaps
        ([0, 0, 0, 1, 1], [(0, 1, 1), (0, 2, 1), (0, 2, 1)], [(0,), (1, 2), (3, 4)]),
        ([0, 0, 1, 1], [(0, 3, 1)], None),
        ([0, 0, 1, 1], [(0, 2, 1), (0, 2, 2)], None),
    ],
)
def test_stages_get_devices_along_the_nodes(
    nodes: list[int], rows: list[tuple[int, int, int]], devices: list[tuple[int, ...]] | None
) -> None:
    """Stages (class, degree, replicas) in order, each split inside one node; None where splits do not fit."""
    problem = split_problem(3, units=2, devices=len(nodes), exact=True)
    problem = problem.with_(ways=replace(problem.require_ways(), node=np.array(nodes)))
    found = assign_devices(problem, [of_nodes(*np.bincount(nodes).tolist())], rows)
    expected = None if devices is None else tuple(
        StageGroup(own, replicas, degree) for own, (_, degree, replicas) in zip(devices, rows, strict=True)
    )  # fmt: skip
    assert found == expected


def least_pace(work: np.ndarray, counts: list[int]) -> float:
    """The linear program: fractions of units [n] on classes [k], least device-seconds per device of the busiest."""
    solver = pywraplp.Solver("pace", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
    pace = solver.NumVar(0, solver.infinity(), "")
    share = [[solver.NumVar(0, 1 if np.isfinite(own) else 0, "") for own in row] for row in work.tolist()]
    for row in share:
        solver.Add(sum(row) == 1)
    for c, count in enumerate(counts):
        used = sum(row[c] * float(work[u, c]) for u, row in enumerate(share) if np.isfinite(work[u, c]))
        solver.Add(used <= pace * count)
    solver.Minimize(pace)
    assert solver.Solve() == solver.OPTIMAL
    return float(solver.Objective().Value())


def test_prices_come_near_the_linear_program() -> None:
    """Priced work over priced devices is never above the optimum, and within one percent of it."""
    for seed in seeds(20):
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 5, rng.integers(1, 4)).tolist()
        work = rng.uniform(0.5, 9, (12, len(counts)))
        if len(counts) > 1:
            work[rng.random(work.shape) < 0.1] = np.inf
            work[:, 0] = np.where(np.isfinite(work).any(axis=1), work[:, 0], 1.0)
        prices = device_prices([of_nodes(count) for count in counts], work)
        assert prices @ np.array(counts) == pytest.approx(1, rel=1e-9)
        bound, best = float((work * prices).min(axis=1).sum()), least_pace(work, counts)
        assert best * 0.99 <= bound <= best * (1 + 1e-9)


def test_a_unit_that_runs_nowhere_leaves_prices_equal() -> None:
    """Two devices of one class and three of another: a fifth each, whatever the others need."""
    work = np.array([[1.0, 2.0], [np.inf, np.inf]])
    assert device_prices([of_nodes(2), of_nodes(3)], work).tolist() == pytest.approx([0.2, 0.2])
