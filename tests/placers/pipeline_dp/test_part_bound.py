"""The bound from the ideals of a part of the components: it holds for any part, and is the optimum for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hierarchies import optimum, random_pipeline
from hypothesis import given
from plain_rules import placements
from soak import enough, examples, seeds
from strategies import problems

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Longs
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.placers.pipeline_dp import part_bound
from placewise.placers.pipeline_dp.part_bound import bound_by_part
from placewise.placers.pipeline_dp.path_bound import bound_by_path
from placewise.placers.shared.stages.stage_costs import price_stages
from placewise.simulate import why_infeasible
from placewise.simulate.contiguity import contract

CONTIGUOUS = {"kind": "throughput", "contiguous": True, "memory_model": "sum"}


def bound_of(problem: Problem, *parts: list[int]) -> float:
    """The bound in seconds from the first of these parts; without any from the parts that are chosen for it."""
    graph = contract(problem)
    costs, scale, *_ = price_stages(problem, graph.component, graph.n, problem.capacity)
    orders = [np.array(part, np.int64) for part in parts]
    if not orders:
        return bound_by_part(graph, costs, lambda: math.inf) / scale

    def list_orders(*_: object) -> list[Longs]:
        return orders

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_bound, "_list_orders", list_orders)
        return bound_by_part(graph, costs, lambda: math.inf) / scale


def staged_cluster(count: int, speed: float) -> Cluster:
    """Equal accelerators that talk through host memory."""
    devices = tuple(Device(f"acc{k}") for k in range(count))
    ends = [pair for device in devices for pair in ((device.name, HOST), (HOST, device.name))]
    return Cluster(devices, tuple(Link(*pair, speed) for pair in ends), "staged")


@examples(40)
@given(problems(max_ops=8, max_devices=3, **CONTIGUOUS))
def test_the_bound_from_any_part_holds(problem: Problem) -> None:
    """Inference and training, all modes, any links, hosts: no contiguous placement is below the bound."""
    if why_infeasible(problem):
        return
    best = min((value for _, value in placements(problem)), default=math.inf)
    assert 0 <= bound_of(problem) <= best * (1 + 1e-12)
    order = np.random.default_rng(problem.n_ops).permutation(contract(problem).n).tolist()
    for count in range(1, len(order)):
        assert 0 <= bound_of(problem, order[:count]) <= best * (1 + 1e-12)


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
@pytest.mark.parametrize("chain", [False, True])
def test_all_components_prove_the_optimum(mode: str, chain: bool) -> None:
    """With all components in the part, on equal devices that talk through host memory, nothing is relaxed.

    Of training that holds for chains: gradients with several readers are charged in shares.
    """
    for seed in seeds(6):
        problem = random_pipeline(seed, staged_cluster(3, 8.0), 7, mode=mode, training=chain, chain=chain)
        best = optimum(problem)
        assert best * (1 - 2e-3) <= bound_of(problem) <= best * (1 + 1e-12)


def test_some_components_prove_more_than_one_path() -> None:
    """Where branches are wide, half of the components often prove more than one path does."""
    larger = 0
    for seed in seeds(16):
        problem = random_pipeline(seed, staged_cluster(3, 4.0), 9, mode="overlap", training=seed % 2 == 1)
        graph = contract(problem)
        priced = price_stages(problem, graph.component, graph.n, problem.capacity)
        path = bound_by_path(graph, priced.costs, lambda: math.inf) / priced.scale
        part = bound_of(problem, np.random.default_rng(seed).permutation(graph.n)[:6].tolist())
        larger += part > path * (1 + 1e-3)
        assert part <= optimum(problem) * (1 + 1e-12)
    assert larger >= enough(1)


def test_a_chain_beside_the_part_costs_its_cheapest_link() -> None:
    """Two heavy ends with a light row between them: separating the ends costs the smallest tensor of the row, twice."""
    problem = random_pipeline(0, staged_cluster(2, 1.0), 5, mode="overlap", chain=True)
    seconds = np.zeros_like(problem.costs.op_seconds)
    seconds[[0, 4]] = 8.0
    transfers = np.zeros_like(problem.costs.transfer_seconds)
    transfers[:4, 1:] = np.array([9.0, 12.0, 8.5, 11.0])[:, None]
    problem = problem.with_(costs=CostTable.given(seconds, transfers))
    assert optimum(problem) == 8.5
    assert 8.5 * (1 - 2e-3) <= bound_of(problem, [0, 4]) <= 8.5


def price_by_hand(builder: GraphBuilder, seconds: list[float], transfers: list[float]) -> Problem:
    """Ops and tensors of these seconds on two equal accelerators, where transfers overlap."""
    graph, cluster = builder.build(), staged_cluster(2, 1.0)
    rows = np.array(transfers)[:, None] * np.array([0.0, *([1.0] * (len(cluster.class_bandwidth) - 1))])
    costs = CostTable.given(np.repeat(np.array(seconds)[:, None], 2, axis=1), rows)
    objective = Objective("throughput", communication="overlap", memory="sum")
    return Problem(graph, cluster, costs, objective, Constraints(contiguous=True))


def test_two_tensors_into_a_chain_share_its_cheapest_link() -> None:
    """Behind the middle op one transfer of 5 s replaces two of 6 s; it counts once for both."""
    builder = GraphBuilder()
    for name in "abc":
        builder.add_op(name, "Op")
    for producer in (0, 0, 1):
        builder.add_edge(builder.add_tensor(producer, nbytes=1), producer + 1)
    problem = price_by_hand(builder, [8.0, 0.0, 8.0], [6.0, 6.0, 5.0])
    assert optimum(problem) == 8.0
    assert 8.0 * (1 - 2e-3) <= bound_of(problem, [0, 2]) <= 8.0


def test_a_gradient_with_two_readers_is_sent_once() -> None:
    """Two ops share a stage and the gradient of 5 s that both need."""
    builder = GraphBuilder()
    for op, backward in ((0, False), (1, False), (2, False), (2, True), (0, True), (1, True)):
        builder.add_op(f"{op}{backward}", "Op", group=op, backward=backward)
    for producer, readers in ((0, [2]), (1, [2]), (3, [4, 5])):
        tensor = builder.add_tensor(producer, nbytes=1)
        for reader in readers:
            builder.add_edge(tensor, reader)
    problem = price_by_hand(builder, [4.0, 4.0, 8.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0])
    assert optimum(problem) == 8.0
    assert 8.0 * (1 - 2e-3) <= bound_of(problem, [0, 1, 2]) <= 8.0


def test_the_largest_memory_limits_stages() -> None:
    """Three equal ops on a large and a small device: the large one takes two of them."""
    builder = GraphBuilder()
    for name in "abc":
        builder.add_op(name, "Op", state_bytes=2)
    for producer in (0, 1):
        builder.add_edge(builder.add_tensor(producer, nbytes=1), producer + 1)
    problem = price_by_hand(builder, [1.0, 1.0, 1.0], [0.0, 0.0])
    large, small = (
        Device(device.name, memory=memory) for device, memory in zip(problem.cluster.devices, (4.0, 2.0), strict=True)
    )
    problem = problem.with_(cluster=Cluster((large, small), problem.cluster.links, "staged"))
    assert optimum(problem) == 2.0
    assert 2.0 * (1 - 2e-3) <= bound_of(problem, [0, 1, 2]) <= 2.0


@pytest.mark.parametrize("mode", ["blocking", "overlap"])
@pytest.mark.parametrize("seed", [29, 67])
def test_a_transfer_that_takes_forever_leaves_others_exact(mode: str, seed: int) -> None:
    """Prices of stages are differences: a tensor 10^15 times as dear as the rest must not drown the others."""
    problem, rng = random_pipeline(seed, staged_cluster(3, 8.0), 6, mode=mode), np.random.default_rng(seed)
    transfers = problem.costs.transfer_seconds * rng.random((6, 1))
    transfers[seed % 3, 1:] = 1e15
    seconds = problem.costs.op_seconds * rng.random((6, 1))
    problem = problem.with_(costs=CostTable.given(seconds, transfers))
    graph, best = contract(problem), optimum(problem)
    costs, scale, *_ = price_stages(problem, graph.component, graph.n, problem.capacity)
    assert bound_by_part(graph, costs, lambda: math.inf, 1.01 * best * scale) <= best * scale


def test_no_time_and_a_known_bound() -> None:
    """Without time nothing is proved beyond what is known, and where that is enough nothing is tried."""
    problem = random_pipeline(1, staged_cluster(3, 4.0), 7, mode="blocking")
    graph = contract(problem)
    costs = price_stages(problem, graph.component, graph.n, problem.capacity).costs
    assert bound_by_part(graph, costs, lambda: 0.0, low=5.0) == 5.0
    assert bound_by_part(graph, costs, lambda: math.inf, 5.0, 5.0) == 5.0
