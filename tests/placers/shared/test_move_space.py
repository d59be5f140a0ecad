"""Where a local search may move blocks: of equal hosts, whose order changes nothing, only to the first."""

from __future__ import annotations

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.move_space import list_offered_devices

SAME = [1.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("execution", "rows", "memory", "rules", "offered"),
    [
        ("subgraph", [SAME, SAME], np.inf, Constraints(), [0, 1]),
        ("operator", [SAME, SAME], np.inf, Constraints(), [0, 1, 2]),
        ("subgraph", [SAME, [1.0, 3.0, 4.0]], np.inf, Constraints(), [0, 1, 2]),
        ("subgraph", [SAME, SAME], 9.0, Constraints(), [0, 1, 2]),
        ("subgraph", [SAME, SAME], np.inf, Constraints(forbidden=(Rule("op1", "cpu1"),)), [0, 1, 2]),
        ("subgraph", [SAME, SAME], np.inf, Constraints(convex=True), [0, 1, 2]),
    ],
    ids=["equal", "one op at a time", "seconds", "memory", "rules", "shape"],
)
def test_of_equal_hosts_the_first_is_offered(
    execution: str, rows: list[list[float]], memory: float, rules: Constraints, offered: list[int]
) -> None:
    """An accelerator and two hosts, which differ by what is named, or of which one stands for both."""
    builder = GraphBuilder()
    for op in range(2):
        builder.add_op(f"op{op}", "Op")
    devices = (Device("gpu"), Device("cpu0", kind="cpu"), Device("cpu1", kind="cpu", memory=memory))
    cluster = Cluster(devices, (Link("gpu", HOST, 1.0), Link(HOST, "gpu", 1.0)))
    costs = CostTable.given(np.array(rows), np.zeros((0, len(cluster.class_bandwidth))))
    objective = Objective("latency", execution=execution, memory="live")  # type: ignore[arg-type]
    problem = Problem(builder.build(), cluster, costs, objective, rules)
    allowed = may_run(problem, problem.block, problem.n_blocks)
    assert list_offered_devices(problem, allowed).tolist() == offered
