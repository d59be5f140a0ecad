"""Calls that wait for each other in a circle: seen in `subgraph` execution alone, and mended by a call per op."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.placers.shared.calls import has_deadlocked_calls, make_runnable
from placewise.simulate import judge_placement

SUBGRAPH = Objective("latency", execution="subgraph", memory="sum")
CROSSED = np.array([0, 1, 1, 0], np.int32)


def two_edges() -> Problem:
    """a → c and b → d, of a second each, on two accelerators and a CPU; transfers are free."""
    builder = GraphBuilder()
    for op in range(4):
        builder.add_op("abcd"[op], "Op", state_bytes=0)
        if op > 1:
            builder.add_edge(op - 2, op)
        builder.add_tensor(op, nbytes=1)
    devices = (Device("d0"), Device("d1"), Device("cpu", kind="cpu"))
    links = tuple(Link(*ends, 1.0) for d in ("d0", "d1") for ends in ((d, HOST), (HOST, d)))
    cluster = Cluster(devices, links)
    table = CostTable.given(np.ones((4, 3)), np.zeros((4, len(cluster.class_bandwidth))))
    return Problem(builder.build(), cluster, table, SUBGRAPH)


def test_a_circle_of_calls_gets_a_call_per_op() -> None:
    """a and d wait for b in the call of c, which waits for a: after mending, all run where they were, two at a time."""
    problem = two_edges()
    assert has_deadlocked_calls(problem, CROSSED)
    assert not judge_placement(problem, Placement(CROSSED)).valid
    mended = make_runnable(problem, Placement(CROSSED))
    assert mended.call is not None and mended.call.tolist() == [0, 1, 2, 3]
    assert mended.device.tolist() == [0, 1, 1, 0] and judge_placement(problem, mended).value == 2


def test_what_runs_or_has_calls_stays() -> None:
    """A line, a placement with calls of its own, and one that is no placement come back as they are."""
    problem = two_edges()
    for kept in (
        Placement(np.array([0, 0, 1, 1], np.int32)),
        Placement(CROSSED, call=np.zeros(4, np.int32)),
        Placement(CROSSED[:2]),
    ):
        assert make_runnable(problem, kept) is kept


def test_calls_are_no_matter_elsewhere() -> None:
    """In other executions nothing deadlocks, not even where an op cannot run and the value is infinite."""
    problem = two_edges()
    seconds = np.array([[np.inf, 1.0, 1.0]] * 4)
    lame = problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))
    for objective in (replace(SUBGRAPH, execution="operator"), Objective("throughput", execution="subgraph")):
        assert not has_deadlocked_calls(lame.with_(objective=objective), CROSSED)
