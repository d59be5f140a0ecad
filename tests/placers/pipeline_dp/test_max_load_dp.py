"""max_load_dp: the split is the best pipeline, and its latency the judge's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from published import ROOT, needs_workloads
from soak import examples
from strategies import problems

from placewise.core.place import place
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.pipeline_dp.placer import DpOptions, DpPlacer
from placewise.readers.workload import read_workload
from placewise.simulate import evaluate, judge_placement


@examples(25)
@given(problems(kind="latency", max_ops=5))
def test_the_split_is_the_best_pipeline(problem: Problem) -> None:
    """Its max-load is that of dp, it keeps the rules, and it claims no bound for latency."""
    proposal = run_placer(DpPlacer(DpOptions(method="max_load")), problem, Budget())
    assert proposal.bound is None
    pipeline = problem.with_(
        objective=Objective("throughput", memory=problem.objective.memory),
        constraints=replace(problem.constraints, contiguous=True, convex=False),
    )
    best = run_placer(DpPlacer(), pipeline, Budget()).placement
    if proposal.placement is None:
        assert proposal.notes or proposal.infeasible
        assert not proposal.infeasible or best is None
        return
    assert judge_placement(problem, proposal.placement).valid
    assert best is not None
    assert evaluate(pipeline, proposal.placement.device[None])[0] == evaluate(pipeline, best.device[None])[0]


def test_a_pipeline_whose_calls_wait_in_a_cycle() -> None:
    """A backward op far from the stage of its reader closes a cycle of calls: it says so and proposes nothing."""
    builder = GraphBuilder()
    for name, group, backward in (("f0", 10, False), ("f1", 11, False), ("b1", 11, True), ("b0", -1, True)):
        builder.add_op(name, "A", group=group, backward=backward)
    made = [
        builder.add_tensor(op, nbytes=0, output=asked) for op, asked in ((0, 1), (0, 0), (1, 1), (2, 1), (2, 0), (3, 1))
    ]
    builder.add_edge(made[0], 1)
    builder.add_edge(made[3], 3)
    names = ("d0", "d1")
    links = [Link(name, HOST, 1.0) for name in names] + [Link(HOST, name, 1.0, shared="bus") for name in names]
    cluster = Cluster((Device("d0", "gpu"), Device("d1", "gpu")), tuple(links), "staged")
    seconds = np.array([[0.0, 0.0], [0.0, 0.0], [0.125, 0.125], [0.0, 0.0]])
    graph, transfers = builder.build(), np.zeros((6, len(cluster.class_bandwidth)))
    transfers[5, 1] = 0.125
    costs = CostTable.given(seconds, transfers)
    problem = Problem(graph, cluster, costs, Objective("latency", execution="subgraph", memory="sum"))
    proposal = run_placer(DpPlacer(DpOptions(method="max_load")), problem, Budget())
    assert proposal.placement is None and "in a cycle" in proposal.notes[-1]


@needs_workloads
def test_the_published_value():
    """BERT-24: 108.031 ms as published. On the other workloads many splits have the least max-load."""
    problem = read_workload(
        ROOT / "dnn-partitioning" / "latency" / "LayerGraphs" / "bert24_inference.json", objective="latency"
    ).problem
    assert problem is not None
    assert place(problem, "max_load_dp").value == pytest.approx(0.108031, rel=1e-9)


@examples(10)
@given(problems(kind="throughput", max_ops=3))
def test_throughput_is_dps(problem: Problem) -> None:
    """For throughput it refers to dp; other shapes of stages are its own."""
    assert "dp" in str(DpPlacer(DpOptions(method="max_load")).supports(problem))
    free = problem.with_(objective=Objective("latency"), constraints=Constraints())
    assert DpPlacer(DpOptions(method="max_load")).supports(free) is None
