"""Contraction: a coarse problem says of every placement of groups what the fine problem says of their ops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate_problems import problems

from placewise.coarsen import CoarseProblem, coarse_problem
from placewise.errors import InputError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.contiguity import contract, device_cycle, path_back
from placewise.simulate.judge.memory import resident_bytes

MODES = [Objective("throughput", mode, schedule=schedule) for mode in ("blocking", "overlap", "duplex")
         for schedule in ("1f1b", "gpipe")]  # fmt: skip


def grouped(problem: Problem, draw: st.DataObject, most: int = 4) -> np.ndarray:
    """Any label that keeps blocks whole."""
    chosen = draw.draw(st.lists(st.integers(0, most), min_size=problem.n_blocks, max_size=problem.n_blocks))
    renumber = np.unique(np.array(chosen, np.int64), return_inverse=True)[1]
    return renumber[problem.block]


def somewhere(coarse: CoarseProblem, draw: st.DataObject) -> np.ndarray:
    """Any placement of the coarse ops that keeps their groups together."""
    problem = coarse.problem
    device = st.lists(st.integers(0, problem.n_devices - 1), min_size=problem.n_blocks, max_size=problem.n_blocks)
    return np.array(draw.draw(device), np.int32)[problem.block]


@given(st.data(), st.sampled_from(MODES))
def test_throughput_and_resident_memory_are_those_of_the_ops(data: st.DataObject, objective: Objective) -> None:
    """Training or not, phases, hosts, wires, direct and staged: equal values, equal loads, equal resident bytes."""
    problem = data.draw(problems(objective=objective, rules=True))
    coarse = coarse_problem(problem, grouped(problem, data))
    device = somewhere(coarse, data)
    fine, small = coarse.up(device), coarse.problem
    assert resident_bytes(small, device).tolist() == resident_bytes(problem, fine).tolist()
    able = small.allowed[np.arange(small.n_ops), device].all()
    assert able == problem.allowed[np.arange(problem.n_ops), fine].all()
    if able:
        np.testing.assert_allclose(evaluate(small, device), evaluate(problem, fine), rtol=1e-12)
        judged = judge_placement(small, Placement(device)), judge_placement(problem, Placement(fine))
        loads = [[use.load for use in judgement.devices] for judgement in judged]
        np.testing.assert_allclose(*loads, rtol=1e-12)


@given(st.data())
def test_the_coarse_graph_has_a_block_per_label_and_keeps_the_rest(data: st.DataObject) -> None:
    """Groups are blocks, nothing is lost on the way down and up, and phases and directions are not mixed."""
    problem = data.draw(problems())
    label = grouped(problem, data)
    coarse = coarse_problem(problem, label)
    small, ops = coarse.problem, problem.graph.ops
    assert small.n_blocks == len(np.unique(label))
    assert (small.graph.ops.group[coarse.op] == label).all()
    assert (small.graph.ops.phase[coarse.op] == ops.phase).all()
    assert (small.graph.ops.backward[coarse.op] == ops.backward).all()
    device = somewhere(coarse, data)
    assert (coarse.down(coarse.up(device)) == device).all()
    assert small.graph.tensors.output.sum() <= problem.graph.tensors.output.sum()


@given(st.data())
def test_a_label_of_its_own_for_every_block_changes_no_latency_of_free_ops(data: st.DataObject) -> None:
    """Where nothing is grouped and no tensors are merged, nothing changes but the order among equals."""
    problem = data.draw(problems(objective=Objective("latency", execution="sequential"), constraints=Constraints()))
    if (problem.graph.ops.group >= 0).any():
        return
    coarse = coarse_problem(problem, problem.block)
    device = somewhere(coarse, data)
    assert coarse.problem.n_ops == problem.n_ops
    np.testing.assert_allclose(evaluate(coarse.problem, device), evaluate(problem, coarse.up(device)), rtol=1e-12)


@given(st.data())
def test_convex_and_contiguous_groups_are_so_in_the_fine_problem(data: st.DataObject) -> None:
    """A convex placement of groups is one of ops; a contiguous one is too, where no label mixes kinds of blocks."""
    problem = data.draw(problems(objective=Objective("throughput")))
    label = grouped(problem, data)
    forward = np.bincount(problem.block[~problem.graph.ops.backward], minlength=problem.n_blocks) > 0
    label = np.unique(label * 2 + forward[problem.block], return_inverse=True)[1]
    coarse = coarse_problem(problem, label)
    device = somewhere(coarse, data)
    if path_back(coarse.problem, device) is None:
        assert path_back(problem, coarse.up(device)) is None
    cycles = [device_cycle(contract(p), d) for p, d in ((coarse.problem, device), (problem, coarse.up(device)))]
    assert (cycles[0] is None) == (cycles[1] is None)


def test_a_split_colocation_group_is_refused() -> None:
    """Labels are made of blocks."""
    builder = GraphBuilder()
    for name in ("a", "b"):
        builder.add_op(name, "Op", group=0)
    cluster = Cluster((Device("cpu", "cpu"),))
    problem = Problem(builder.build(), cluster, CostTable.given(np.ones((2, 1)), np.zeros((0, 1))))
    with pytest.raises(InputError, match="splits a colocation group"):
        coarse_problem(problem, np.array([0, 1]))
