"""The assignment of groups to devices in the exact models: every solution, listed, is an assignment that is allowed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model
from toy_problems import boxes

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers.shared.schedule_models.assignment import AssignmentVariables, op_groups
from placewise.placers.shared.schedule_models.model_builder import ModelBuilder
from placewise.simulate.contiguity import path_back


class Devices(cp_model.CpSolverSolutionCallback):
    """The devices [n_ops] of every solution."""

    def __init__(self, assignment: AssignmentVariables) -> None:
        super().__init__()
        self._assignment, self.rows = assignment, set[tuple[int, ...]]()

    def on_solution_callback(self) -> None:
        """One more."""
        self.rows.add(tuple(self._assignment.devices(self.Value).tolist()))


def solutions(problem: Problem, *rules: str, capacity: list[float] | None = None) -> set[tuple[int, ...]]:
    """The devices of all solutions, with the rules that are methods of the assignment."""
    builder = ModelBuilder()
    room = problem.capacity if capacity is None else np.array(capacity)
    assignment = AssignmentVariables(problem, op_groups(problem), builder, room)
    for rule in rules:
        getattr(assignment, rule)()
    solver: Any = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions, solver.parameters.catch_sigint_signal = True, False
    seen = Devices(assignment)
    solver.solve(builder.model, seen)
    return seen.rows


def every(n: int, *, width: int = 2) -> set[tuple[int, ...]]:
    """All assignments of n ops."""
    return set(np.ndindex(*[width] * n))


def test_bytes_limit_what_is_where() -> None:
    """Ops of 1, 2 and 4 bytes on 5 and on 3: the last one and at most one byte more, or the other way round."""
    problem = boxes([1, 2, 4], [5.0, 3.0])
    fits = {row for row in every(3) if all(sum(b for b, d in zip((1, 2, 4), row, strict=True) if d == e) <= most
                                           for e, most in enumerate((5, 3)))}  # fmt: skip
    assert solutions(problem) == fits == {(0, 1, 0), (1, 1, 0)}
    assert solutions(problem, capacity=[np.inf, 3.0]) == {row for row in every(3) if row[2] == 0}
    assert solutions(problem, capacity=[4.0, 2.0]) == set()


def test_shared_weights_count_once_where_they_are() -> None:
    """Two ops of 1 byte that share 4: together they need 6, apart 5 each."""
    builder = GraphBuilder()
    weight = builder.add_weight("w", shape=(4,), dtype="int8", storage=0)
    for op in range(2):
        builder.use_weight(weight, builder.add_op("ab"[op], "Op", state_bytes=1))
    costs = CostTable.given(np.ones((2, 2)), np.zeros((0, 2)))
    problem = boxes([1, 1], [9.0, 9.0]).with_(graph=builder.build(), costs=costs)
    assert solutions(problem, capacity=[6.0, 5.0]) == {(0, 0), (0, 1), (1, 0)}
    assert solutions(problem, capacity=[5.0, 5.0]) == {(0, 1), (1, 0)}
    assert solutions(problem, capacity=[4.0, 6.0]) == {(1, 1)}


def test_what_cannot_be_somewhere_needs_no_room_there() -> None:
    """Three bytes on d1, for the two ops that may be there: the third, of 4 bytes, does not count."""
    problem = boxes([1, 2, 4], [9.0, 3.0], constraints=Constraints(forbidden=(Rule("x2", "d1"),)))
    assert solutions(problem) == {row for row in every(3) if row[2] == 0}


@pytest.mark.parametrize("ordered", [False, True])
def test_stages_form_a_chain(ordered: bool) -> None:
    """Four ops in a row on three devices: each has a run of them, in their own order if that is asked."""
    rules = Constraints(contiguous=True, ordered=ordered)
    problem = boxes([0] * 4, [9.0, 9.0, 9.0], constraints=rules)
    runs = {row for row in every(4, width=3) if len(set(row)) == 1 + sum(a != b for a, b in pairwise(row))}
    chains = {row for row in runs if not ordered or list(row) == sorted(row)}
    assert solutions(problem, "chain") == chains and len(chains) > 10


def test_of_equal_devices_the_first_is_used_first() -> None:
    """Three ops on three equal devices and an unlike one: in the order of their first ops, and nothing is lost."""
    devices = (Device("a"), Device("b"), Device("odd", memory=7.0), Device("c"))
    links = tuple(Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name)))
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op(f"op{op}", "Op")
    cluster = Cluster(devices, links)
    costs = CostTable.given(np.ones((3, 4)), np.zeros((0, len(cluster.class_bandwidth))))
    problem = Problem(builder.build(), cluster, costs, Objective("latency", execution="operator"))

    def named(row: tuple[int, ...]) -> tuple[int, ...]:
        equal = [d for d in dict.fromkeys(row) if d != 2]
        names = {2: 2, **dict(zip(equal, (0, 1, 3), strict=False))}
        return tuple(names[d] for d in row)

    kept = {named(row) for row in every(3, width=4)}
    assert solutions(problem, "break_symmetry") == kept and len(kept) < 4**3 / 3
    pinned = problem.with_(constraints=Constraints(pins=(Rule("op1", "odd"),)))
    assert solutions(pinned, "break_symmetry") == {row for row in kept if row[1] == 2}


def test_no_path_leaves_a_device_and_returns() -> None:
    """Random graphs of four ops, some of them backward, with or without a group: exactly the convex placements."""
    torn = 0
    for seed in range(8):
        rng, builder = np.random.default_rng(seed), GraphBuilder()
        for op in range(4):
            builder.add_op(
                f"op{op}", "Op", backward=op == 3 and seed % 2 == 1, group=min(op, 2) if seed % 3 == 1 else op
            )
            for tail in range(op):
                if rng.random() < 0.6:
                    builder.add_edge(builder.add_tensor(tail, nbytes=1), op)
        graph, plain = builder.build(), boxes([0] * 4, [9.0, 9.0], constraints=Constraints(convex=True))
        costs = CostTable.given(np.ones((4, 2)), np.zeros((graph.n_tensors, 2)))
        problem = plain.with_(graph=graph, costs=costs)
        whole = {row for row in every(4) if seed % 3 != 1 or row[2] == row[3]}
        convex = {row for row in whole if path_back(problem, np.array(row, np.int32)) is None}
        assert solutions(problem, "convex") == convex, seed
        torn += len(convex) < len(whole)
    assert torn > 1


def test_hosts_are_one_location() -> None:
    """An op that may be on an accelerator or on one of two unequal hosts: two places, and hints for three devices."""
    devices = (Device("gpu"), Device("slow", kind="cpu", memory=4.0), Device("fast", kind="cpu"))
    cluster = Cluster(devices, (Link("gpu", HOST, 1.0), Link(HOST, "gpu", 1.0)))
    builder = GraphBuilder()
    for op in range(2):
        builder.add_op(f"op{op}", "Op")
    costs = CostTable.given(np.ones((2, 3)), np.zeros((0, len(cluster.class_bandwidth))))
    rules = Constraints(pins=(Rule("op1", "fast"),))
    problem = Problem(builder.build(), cluster, costs, Objective("latency", execution="subgraph"), rules)
    program = ModelBuilder()
    assignment = AssignmentVariables(problem, op_groups(problem), program, problem.capacity)
    first, second = assignment.locations(0), assignment.locations(1)
    assert list(first) == [0, 3] and second == {3: True}
    assert assignment.of(1, 2) is True and assignment.of(1, 0) is False
    for d, where in ((0, 0), (1, 3), (2, 3)):
        solver = cp_model.CpSolver()
        model = program.model.clone()
        model.add(assignment.of(0, d) == 1)
        assert solver.solve(model) == cp_model.OPTIMAL
        assert [location for location, x in first.items() if solver.value(x)] == [where]
    assignment.hint(np.array([1, 2], np.int32))
    hint = program.model.proto.solution_hint
    assert sorted(zip(hint.vars, hint.values, strict=True)) == [(assignment.of(0, d).index, d == 1) for d in range(3)]
