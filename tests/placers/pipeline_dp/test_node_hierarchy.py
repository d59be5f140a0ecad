"""Pipelines on clusters of nodes: dp against all contiguous placements, its bounds, and how often it proves them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hierarchies import cluster_of, optimum, random_pipeline
from hypothesis import given
from plain_rules import placements
from soak import examples, seeds
from strategies import problems

from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.pipeline_dp.node_hierarchy import list_partitions, price_roles, search_nodes
from placewise.placers.pipeline_dp.ordered_line import list_rows, split_along_row
from placewise.placers.pipeline_dp.placer import DpPlacer
from placewise.placers.shared.stages.dp_driver import count_states
from placewise.placers.shared.stages.ideals import enumerate_ideals
from placewise.simulate import evaluate, judge_placement, why_infeasible
from placewise.simulate.contiguity import contract

SHAPES = (
    ((2, 2), (4.0, 100.0), 7),
    ((3, 2), (8.0, 60.0), 6),
    ((2, 3), (10.0, 40.0), 6),
    ((2, 2, 2), (6.0, 20.0, 80.0), 5),
)
MODES = ("blocking", "overlap", "duplex")


@pytest.mark.parametrize(("shape", "speeds", "n_ops"), SHAPES)
def test_most_optima_are_reached_and_many_proved(shape: tuple[int, ...], speeds: tuple[float, ...], n_ops: int) -> None:
    """Bound ≤ optimum ≤ value on every instance; nine optima of ten reached, half of them proved."""
    total = reached = proved = 0
    for seed in seeds(12):
        for training in (False, True):
            cluster = cluster_of(shape, speeds, 9.0 if seed % 3 == 0 else math.inf)
            problem = random_pipeline(seed, cluster, n_ops, mode=MODES[seed % 3], training=training)
            best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget())
            if math.isinf(best):
                assert proposal.placement is None
                continue
            assert proposal.placement is not None and proposal.bound is not None
            judged = judge_placement(problem, proposal.placement)
            assert judged.valid and proposal.bound.value <= best <= judged.value * (1 + 1e-12)
            total += 1
            reached += judged.value <= best * (1 + 1e-9)
            proved += proposal.bound.value >= judged.value * (1 - 1e-6)
    assert reached >= 0.9 * total and proved >= 0.5 * total


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_second_node_never_hurts(schedule: str, replicas: int) -> None:
    """Twenty ops on two nodes with a slow way between them: at least as good as on one of the nodes alone."""
    for seed in range(2):
        values = []
        for nodes in (1, 2):
            problem = random_pipeline(seed, cluster_of((nodes, 2), (0.5, 100.0)), 20, mode="blocking", training=True)
            objective = replace(problem.objective, schedule=schedule)
            constraints = replace(problem.constraints, replicas=replicas)
            problem = problem.with_(objective=objective, constraints=constraints)
            proposal = run_placer(DpPlacer(), problem, Budget(60.0))
            assert proposal.placement is not None
            values.append(judge_placement(problem, proposal.placement).value)
        assert values[1] <= values[0] * (1 + 1e-9)


@examples(30)
@given(problems(kind="throughput", contiguous=True, transfers="direct", wires=False, max_ops=6, max_devices=4))
def test_the_bound_over_nodes_holds_however_devices_are_grouped(problem: Problem) -> None:
    """Any grouping of the accelerators into nodes, sensible or not, proves nothing above the optimum."""
    if why_infeasible(problem):
        return
    best = min((value for device, value in placements(problem)), default=math.inf)
    graph = contract(problem)
    ideals = enumerate_ideals(graph, 1000)
    assert ideals is not None
    floors = []
    for node in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 1, 2]):
        column = np.where(problem.cluster.is_host, -1, np.array(node[: problem.n_devices])).astype(np.int32)
        named = np.unique(column[column >= 0], return_inverse=True)[1]
        column[column >= 0] = named
        if named.max(initial=0) < 1:
            continue
        floors.append(search_nodes(problem, graph, ideals, 100.0, lambda *_: True, 0.0, nodes=[column])[1])
    assert all(floor <= best * (1 + 1e-12) for floor in floors)
    assert all(set(node.tolist()) >= {0, 1} for node in list_partitions(problem))


def test_nodes_are_found_by_the_speed_of_links() -> None:
    """Two racks of two machines of two: the machines first, then the racks; equal links make no nodes."""
    cluster = cluster_of((2, 2, 2), (1.0, 10.0, 100.0))
    problem = random_pipeline(0, cluster, 4, mode="blocking")
    assert [node.tolist() for node in list_partitions(problem)] == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]]
    assert list_partitions(random_pipeline(0, cluster_of((2, 2), (5.0, 5.0)), 4, mode="blocking")) == []


def test_a_row_of_devices_is_split_at_best_where_tensors_go_next_door() -> None:
    """On chains, every split over the devices in a row is tried by hand: none is better, and the value is true."""
    for seed in seeds(12):
        problem = random_pipeline(seed, cluster_of((2, 2), (4.0, 50.0)), 6, mode=MODES[seed % 3], chain=True)
        graph, row = contract(problem), list_rows(problem)[0]
        device = split_along_row(problem, graph.component, np.arange(graph.n, dtype=np.int32), row)
        assert device is not None
        splits = [
            np.repeat(row[list(used)], np.diff((0, *cuts, graph.n)))[graph.component]
            for stages in range(1, 5)
            for used in combinations(range(4), stages)
            for cuts in combinations(range(1, graph.n), stages - 1)
        ]
        values = evaluate(problem, np.stack(splits))
        assert evaluate(problem, device[None])[0] == pytest.approx(values.min(), rel=1e-12)


def test_roles_are_counted_node_by_node() -> None:
    """Two nodes of three: two devices alone, two first, two last and two between, at most."""
    problem = random_pipeline(1, cluster_of((2, 3), (1.0, 10.0)), 6, mode="blocking")
    graph = contract(problem)
    roles = price_roles(problem, graph, problem.capacity, list_partitions(problem)[0])
    assert [(c.role, n) for c, n in zip(roles.classes, roles.priced.costs.n_devices, strict=True)] == [
        (0, 2), (1, 2), (2, 2), (3, 2),
    ]  # fmt: skip
    assert count_states(roles.priced.costs) == 81
