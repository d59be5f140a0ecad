"""What a host can do in a stage of its own: the bound holds, and counts what the host has to take with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hierarchies import cluster_of, optimum, random_pipeline
from hypothesis import given
from plain_rules import placements
from soak import enough, examples, seeds
from strategies import problems

from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.pipeline_dp.host_bound import bound_beside_hosts
from placewise.placers.pipeline_dp.placer import DpOptions, DpPlacer
from placewise.placers.shared.stages.stage_costs import price_stages
from placewise.simulate import lower_bound, why_infeasible
from placewise.simulate.contiguity import contract

CONTIGUOUS = {"kind": "throughput", "contiguous": True, "memory_model": "sum"}


def bound_of(problem: Problem) -> float:
    """The bound in seconds."""
    graph = contract(problem)
    costs, scale, *_ = price_stages(problem, graph.component, graph.n, problem.capacity)
    return bound_beside_hosts(graph, costs, lambda: math.inf) / scale


def problem_with_host(seed: int, mode: str, *, chain: bool = False, training: bool = False) -> Problem:
    """Two accelerators and a host that does each second op as quickly, and the others eight times as slowly."""
    pair = cluster_of((2,), (64.0,))
    cluster = Cluster((*pair.devices, Device("cpu", kind="cpu")), pair.links, "direct")
    problem = random_pipeline(seed, cluster, 7, mode=mode, chain=chain, training=training)
    seconds = problem.costs.op_seconds.copy()
    seconds[::2, 2] *= 8
    return problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))


@examples(40)
@given(problems(max_ops=8, max_devices=3, **CONTIGUOUS))
def test_no_contiguous_placement_is_below_the_bound(problem: Problem) -> None:
    """Inference and training, all modes, any links, any hosts, ops that hosts may not run."""
    if not why_infeasible(problem):
        assert 0 <= bound_of(problem) <= min((value for _, value in placements(problem)), default=math.inf)


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_a_host_takes_what_lies_between(mode: str) -> None:
    """A host that is good at each second op of a row cannot have only those: the bound is often above the others."""
    larger = 0
    for seed in seeds(12):
        problem = problem_with_host(seed, mode, chain=seed % 2 == 0, training=seed % 3 == 0)
        bound = bound_of(problem)
        assert bound <= optimum(problem)
        larger += bound > 1.05 * lower_bound(problem, work=0.0).value
    assert larger >= enough(2)


def test_a_row_by_hand() -> None:
    """A host that does the ends of a row of three in no time takes one of them: two devices share the other two ops."""
    problem = problem_with_host(0, "overlap", chain=True)
    seconds = np.zeros_like(problem.costs.op_seconds)
    seconds[:3] = (4.0, 4.0, 2.0), (2.0, 2.0, 64.0), (4.0, 4.0, 2.0)
    problem = problem.with_(costs=CostTable.given(seconds, 0 * problem.costs.transfer_seconds))
    assert optimum(problem) == 4.0
    assert 2.5 < bound_of(problem) <= 4.0


def test_each_of_two_hosts_takes_its_own() -> None:
    """Two hosts are good at the ends of a row of three, the accelerator at the middle: each takes one op."""
    (accelerator,), links = cluster_of((1,), (64.0,)).devices, cluster_of((1,), (64.0,)).links
    hosts = Device("cpu0", kind="cpu"), Device("cpu1", kind="cpu")
    problem = random_pipeline(0, Cluster((accelerator, *hosts), links, "direct"), 3, mode="overlap", chain=True)
    seconds = np.array([[2.0, 1.0, 1.0], [1.0, 64.0, 64.0], [2.0, 1.0, 1.0]])
    problem = problem.with_(costs=CostTable.given(seconds, 0 * problem.costs.transfer_seconds))
    assert optimum(problem) == 1.0
    assert 0.9 < bound_of(problem) <= 1.0


def test_it_is_proved_where_ideals_are_too_many() -> None:
    """It counts in dp, and hosts that may share a stage, or none at all, prove nothing."""
    problem = problem_with_host(2, "blocking")
    proposal = run_placer(DpPlacer(DpOptions(max_ideals=2)), problem, Budget())
    assert proposal.bound is not None and proposal.bound.value >= bound_of(problem) * (1 - 1e-9) > 0
    alone = random_pipeline(2, cluster_of((3,), (4.0,)), 7, mode="blocking")
    assert bound_of(alone) == 0.0
    assert bound_of(alone.with_(constraints=replace(alone.constraints, replicas=0))) == 0.0
