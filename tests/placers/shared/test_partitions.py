"""From parts to placements: what the hypergraph leaves out, and parts whose calls would wait for each other."""

from __future__ import annotations

import numpy as np
from toy_problems import boxes

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.shared.partitions.hypergraph import build_hypergraph, list_working_devices
from placewise.placers.shared.partitions.repair_and_select import CandidateSelector
from placewise.placers.shared.repair import build_packing_instance
from placewise.simulate import Evaluator, judge_placement


def test_tensors_of_ops_on_the_host_join_only_their_readers() -> None:
    """a → b → c → d with c on the CPU: a tensor of c has no producer in the hypergraph, and one reader is no edge."""
    builder = GraphBuilder()
    for op in range(4):
        builder.add_op("abcd"[op], "Op")
        if op:
            builder.add_edge(builder.add_tensor(op - 1, nbytes=1), op)
    devices = (Device("d0"), Device("d1"), Device("cpu", kind="cpu"))
    links = tuple(Link(*ends, 1.0) for d in ("d0", "d1") for ends in ((d, HOST), (HOST, d)))
    cluster = Cluster(devices, links)
    costs = CostTable.given(np.ones((4, 3)), np.repeat([[0.0, 1.0]], 3, axis=0))
    rules = Constraints(pins=(Rule("^c$", "cpu"),))
    problem = Problem(builder.build(), cluster, costs, Objective("throughput"), rules)
    net = build_hypergraph(problem, build_packing_instance(problem), list_working_devices(problem))
    assert net.node.tolist() == [0, 1, 3] and net.list_pins() == [[0, 1]]


def crossed(objective: Objective) -> CandidateSelector:
    """What is selected for a → c and b → d, if d0 has a and d, and d1 has b and c."""
    builder = GraphBuilder()
    for op in range(4):
        builder.add_op("abcd"[op], "Op", state_bytes=0)
        if op > 1:
            builder.add_edge(builder.add_tensor(op - 2, nbytes=1), op)
    problem = boxes([0, 0, 0], [9.0, 9.0])
    costs = CostTable.given(np.ones((4, 2)), problem.costs.transfer_seconds)
    problem = problem.with_(graph=builder.build(), costs=costs, objective=objective)
    selector = CandidateSelector(problem, Evaluator(problem), Stopwatch(Budget()))
    selector.add_parts(np.array([0, 1, 1, 0], np.int32))
    return selector


def test_what_is_rejected_says_why() -> None:
    """Parts that fit nowhere, a placement that breaks a rule, and one that is no better: only the best is kept."""
    tight = boxes([4, 4, 4], [6.0, 6.0])
    selector = CandidateSelector(tight, Evaluator(tight), Stopwatch(Budget()))
    selector.add_parts(np.array([0, 0, 1], np.int32))
    assert selector.best is None and selector.rejections == ["its parts do not fit in memory, whatever blocks move"]
    roomy = boxes([4, 4, 4], [8.0, 8.0])
    selector = CandidateSelector(roomy, Evaluator(roomy), Stopwatch(Budget()))
    first, second, full = (np.array(row, np.int32) for row in ([0, 0, 1], [1, 1, 0], [0, 0, 0]))
    assert selector.consider(first) and selector.consider(second) and not selector.consider(full)
    assert selector.best is first and selector.value == 2.0 and len(selector.rejections) == 1
    assert selector.consider(full, checked=True) and selector.best is first


def test_something_is_found_without_time() -> None:
    """Three ops in a row that one device cannot hold: where time is out before anything fits, orders are split all the
    same.
    """
    problem = boxes([4, 4, 4], [8.0, 8.0], kind="latency", constraints=Constraints(contiguous=True))
    selector = CandidateSelector(problem, Evaluator(problem), Stopwatch(Budget(0.0)))
    selector.add_parts(np.zeros(3, np.int32))
    assert selector.best is not None and selector.best.tolist() == [0, 0, 1] and selector.value == 3.0


def test_parts_whose_calls_wait_for_each_other_become_stages() -> None:
    """In `subgraph` execution they cannot run as they are, and are arranged in a row; elsewhere they stay."""
    selector = crossed(Objective("latency", execution="subgraph", memory="sum"))
    assert selector.best is not None and np.isfinite(selector.value)
    assert judge_placement(selector.problem, Placement(selector.best)).valid
    for other in (Objective("latency", execution="operator"), Objective("throughput", execution="subgraph")):
        kept = crossed(other)
        assert kept.best is not None and kept.best.tolist() == [0, 1, 1, 0]
