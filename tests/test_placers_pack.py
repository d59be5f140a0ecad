"""pack and auto where memory is tight: a placement that greedy fills miss, or the proof with its bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from plain_rules import placements
from strategies import problems

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Outcome
from placewise.placers.base import Budget
from placewise.placers.exact.pack import PackPlacer
from placewise.placing import place
from placewise.simulate import simulate


def boxes(sizes: list[int], capacities: list[int], *, contiguous: bool = False, kind: str = "throughput") -> Problem:
    """A chain of ops with the given resident bytes, and accelerators with the given memories."""
    builder = GraphBuilder()
    for i, size in enumerate(sizes):
        builder.add_op(f"x{i}", "Op", state_bytes=size)
        builder.add_tensor(i, nbytes=0)
        if i:
            builder.add_edge(i - 1, i)
    graph = builder.build()
    devices = tuple(Device(f"d{i}", memory=capacity) for i, capacity in enumerate(capacities))
    links = tuple(Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name)))
    cluster = Cluster(devices, links)
    costs = CostTable.given(np.ones((len(sizes), len(devices))), np.zeros((graph.n_tensors, 2)))
    objective = Objective(kind, memory="sum")  # type: ignore[arg-type]
    return Problem(graph, cluster, costs, objective, Constraints(contiguous=contiguous))


def test_a_packing_that_greedy_fills_miss() -> None:
    """5 4 3 3 3 into 9 and 9: only {5, 4} and {3, 3, 3} fit, and the order of the ops forbids it to any chain fill."""
    problem = boxes([3, 5, 3, 4, 3], [9, 9])
    placement = PackPlacer().propose(problem, Budget()).placement
    assert placement is not None and simulate(problem, placement).valid
    result = place(problem)
    assert result.placement is not None and result.status.outcome is not Outcome.UNKNOWN


@pytest.mark.parametrize(("kind", "contiguous"), [("throughput", False), ("throughput", True), ("latency", False)])
def test_the_proof_names_the_bytes(kind: str, contiguous: bool) -> None:
    """Three boxes of 60 do not fit into two of 100: at least 20 bytes are missing, and the largest group is named."""
    result = place(boxes([60, 60, 60], [100, 100], contiguous=contiguous, kind=kind))
    assert result.status.outcome is Outcome.INFEASIBLE
    assert "20 bytes" in result.unmet and "largest group" in result.unmet and "'x0' with 60 B" in result.unmet


def test_a_chain_that_does_not_fit_where_a_free_split_would() -> None:
    """The proof for contiguous stages says that looser stages would fit."""
    result = place(boxes([60, 130, 60], [130, 130], contiguous=True))
    assert result.status.outcome is Outcome.INFEASIBLE and "form no chain would fit" in result.unmet
    assert place(boxes([60, 130, 60], [130, 130])).placement is not None


@settings(max_examples=60, deadline=None)
@given(problems(max_ops=5, contiguous=False, memory_model="sum"))
def test_pack_agrees_with_brute_force(problem: Problem) -> None:
    """It finds a placement exactly if brute force finds one, and proves the rest; circles of calls apart."""
    assume(problem.objective.execution != "subgraph" or problem.objective.kind == "throughput")
    exists = any(True for _ in placements(problem))
    found = PackPlacer().propose(problem, Budget())
    assert (found.placement is not None) == exists
    assert bool(found.infeasible) == (not exists)
