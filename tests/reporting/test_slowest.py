"""The ops and modules that take longest, against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.reporting.plain import plain
from placewise.reporting.slowest import details_view, slowest_modules, slowest_ops, slowest_view

SCOPES = ("net.layer.0.mlp", "net.layer.0.mlp", "net.layer.1.mlp", "net.norm1", "net.norm2", "")
SECONDS = ((1, 4, 4), (2, 8, 8), (3, math.inf, math.inf), (9, 5, 5), (9, 6, 6), (math.inf, 0, 0))


def problem_of(scopes: tuple[str, ...] = SCOPES, seconds: tuple[tuple[float, ...], ...] = SECONDS) -> Problem:
    """Ops in a chain on a fast device and two equal ones."""
    builder = GraphBuilder()
    for k, scope in enumerate(scopes):
        op = builder.add_op(f"op{k}", "Add", scope=scope)
        builder.add_tensor(op, shape=(4,), dtype="float32")
    devices = tuple(Device(name) for name in ("fast", "slow:0", "slow:1"))
    links = tuple(Link(a, b, 1e9) for d in devices for a, b in ((d.name, "host"), ("host", d.name)))
    graph, cluster = builder.build(), Cluster(devices, links)
    return Problem(
        graph, cluster, CostTable.given(np.array(seconds, float).reshape(-1, 3), transfer_seconds_of(graph, cluster))
    )


def test_without_a_placement_every_op_counts_where_it_is_fastest() -> None:
    """The slowest first, equal ones in order, with their times everywhere; None where a device cannot run an op."""
    rows = slowest_ops(problem_of(), count=4)
    assert [(row.op, row.device, row.seconds) for row in rows] == [
        ("op4", "slow:0", 6), ("op3", "slow:0", 5), ("op2", "fast", 3), ("op1", "fast", 2),
    ]  # fmt: skip
    assert rows[2].by_device == {"fast": 3, "slow:0": None, "slow:1": None}
    assert rows[0].share == pytest.approx(6 / 17) and len(slowest_ops(problem_of())) == 6


def test_modules_that_differ_in_numbers_only_are_one() -> None:
    """Layers are summed up; a number that ends a name is part of it."""
    rows = slowest_modules(problem_of())
    assert [(row.module, row.modules, row.ops, row.seconds) for row in rows] == [
        ("net.layer.*.mlp", 2, 3, 6), ("net.norm2", 1, 1, 6), ("net.norm1", 1, 1, 5), ("(no module)", 0, 1, 0),
    ]  # fmt: skip
    assert rows[0].by_device == {"fast": 6, "slow:0": None, "slow:1": None}


def test_a_placement_counts_ops_where_it_has_them() -> None:
    """Seconds by device are those that it spends there; an op on a device that cannot run it counts nothing."""
    problem, placement = problem_of(), Placement(np.array([0, 1, 1, 0, 2, -1], np.int32))
    ops = slowest_ops(problem, placement)
    assert [(row.op, row.device) for row in ops[:3]] == [("op3", "fast"), ("op1", "slow:0"), ("op4", "slow:1")]
    rows = {row.module: row for row in slowest_modules(problem, placement)}
    assert rows["net.layer.*.mlp"].by_device == {"fast": 1, "slow:0": 8, "slow:1": 0}
    assert sum(row.seconds for row in rows.values()) == problem.costs.seconds_on(placement.device).sum() == 24


def test_the_tables_say_what_the_rows_say() -> None:
    """Equal devices share a column; a plan's modules name their devices, and its parts are listed by device."""
    problem, placement = problem_of(), Placement(np.array([0, 1, 0, 0, 1, 1], np.int32))
    shown = plain(slowest_view(slowest_ops(problem), slowest_modules(problem)))
    assert "slow:0 – slow:1" in shown and "cannot" in shown and "×2, 3 ops" in shown
    shown = plain(details_view(problem, placement))
    assert "slow:0 67%, fast 33%" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("fast", "slow:"))] == ["fast", "slow:0"]


def test_nothing_takes_no_time() -> None:
    """A graph without ops, and ops that take nothing, have no shares to divide."""
    assert slowest_ops(problem_of((), ())) == () == slowest_modules(problem_of((), ()))
    free = problem_of(("a",), ((0.0, 0.0, 0.0),))
    assert [row.share for row in (*slowest_ops(free), *slowest_modules(free))] == [0, 0]
