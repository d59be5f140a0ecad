"""greedy: the published baseline again, its rules by hand, and nothing that breaks them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from plain_rules import keeps_the_rules, placements
from published import ROOT, needs_workloads
from soak import examples
from strategies import problems
from toy_problems import boxes

from placewise.files.split_file import read_placement
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers.base import Budget, run_placer
from placewise.placers.baselines.greedy import GreedyPlacer, order_by_branch
from placewise.placers.shared.interchangeable import relabel
from placewise.readers.workload import read_workload
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.contiguity import contract

SPLITS = sorted((ROOT / "dnn-partitioning" / "splits").glob("latency_*_greedy.json"))
ELSEWHERE = "inceptionv3"
"""Its edges follow an order in the file that a graph does not keep, so that equal choices fall differently."""


@needs_workloads
def test_published_splits() -> None:
    """The placements of the published greedy and their values; on Inception-V3 another line, no worse."""
    assert len(SPLITS) == 6
    for path in SPLITS:
        _, graphs, name = path.stem.split("_", 2)
        workload = ROOT / "dnn-partitioning" / "latency" / graphs / f"{name.removesuffix('_greedy')}.json"
        problem = read_workload(workload, objective="latency").problem
        assert problem is not None
        placement = run_placer(GreedyPlacer(), problem, Budget()).placement
        assert placement is not None
        judgement, published = judge_placement(problem, placement), json.loads(path.read_text())["totalLatency"]
        assert judgement.valid
        if ELSEWHERE in name:
            assert judgement.value * 1e3 <= published
        else:
            assert judgement.value * 1e3 == pytest.approx(published, rel=1e-9)
            assert np.array_equal(placement.device, relabel(problem, read_placement(path, problem)[1].device))


@examples(25)
@given(problems(max_ops=6))
def test_proposals_keep_the_rules(problem: Problem) -> None:
    """What is proposed is valid (calls never wait in a circle) and finite; what is called infeasible is."""
    proposal = run_placer(GreedyPlacer(), problem, Budget())
    if proposal.placement is None:
        assert proposal.notes or proposal.infeasible
        if proposal.infeasible:
            assert not any(keeps_the_rules(problem, device) for device, _ in placements(problem))
        return
    assert {violation.kind for violation in judge_placement(problem, proposal.placement).violations} <= {"calls"}
    if problem.allowed.all() and not problem.graph.ops.backward.any():
        assert np.isfinite(evaluate(problem, proposal.placement.device[None])).all()


@examples(30)
@given(problems(max_ops=7, training=True))
def test_the_line_is_topological(problem: Problem) -> None:
    """Every component once, none before one that it needs."""
    graph = contract(problem)
    line = order_by_branch(problem, graph)
    assert sorted(line) == list(range(graph.n))
    place = np.empty(graph.n, np.int64)
    place[line] = np.arange(graph.n)
    tail, head = graph.edges()
    assert (place[tail] < place[head]).all()


def two_branches(memory: float, **options: object) -> Problem:
    """op0 → (op1 → op2, op3 → op4) → op5, a byte each, on two accelerators and a CPU."""
    builder = GraphBuilder()
    for op, sources in enumerate([(), (0,), (1,), (0,), (3,), (2, 4)]):
        builder.add_op(f"op{op}", "A", state_bytes=1)
        for source in sources:
            builder.add_edge(source, op)
        builder.add_tensor(op, nbytes=1)
    devices = (Device("a", memory=memory), Device("b", memory=memory), Device("cpu", kind="cpu"))
    links = tuple(Link(*ends, 1.0) for d in "ab" for ends in ((d, HOST), (HOST, d)))
    cluster = Cluster(devices, links)
    costs = CostTable.given(np.ones((6, 3)), np.zeros((6, len(cluster.class_bandwidth))))
    return Problem(builder.build(), cluster, costs, Objective(execution="subgraph", memory="sum"), **options)  # type: ignore[arg-type]


def test_a_branch_is_followed_to_its_end() -> None:
    """The branch that became ready last fills the first accelerator; the rest is the host's."""
    problem = two_branches(2.0)
    assert order_by_branch(problem, contract(problem)) == [0, 3, 4, 1, 2, 5]
    placement = run_placer(GreedyPlacer(), problem, Budget()).placement
    assert placement is not None and placement.device.tolist() == [0, 1, 2, 0, 1, 2]


def test_what_the_accelerator_may_not_run_goes_to_the_host() -> None:
    """One op is kept off both accelerators; the filling goes on behind it."""
    rules = tuple(Rule("op4$", name) for name in "ab")
    placement = run_placer(
        GreedyPlacer(), two_branches(3.0, constraints=Constraints(forbidden=rules)), Budget()
    ).placement
    assert placement is not None and placement.device.tolist() == [0, 0, 1, 0, 2, 1]


def test_where_filling_fails_blocks_are_moved() -> None:
    """Six bytes on accelerators of 4 and 4, the second of which may not run ops 0 to 2: the fill leaves op 2 homeless.

    ops 0 to 2 must be on the first one and at most one other; the blocks that took their place are moved.
    """
    problem = two_branches(4.0)
    pins = Constraints(forbidden=(Rule("", "cpu"), Rule("op[012]$", "b")))
    placement = run_placer(GreedyPlacer(), problem.with_(constraints=pins), Budget()).placement
    assert placement is not None and placement.device[:3].tolist() == [0, 0, 0]
    assert judge_placement(problem.with_(constraints=pins), placement).valid


def test_without_a_host_it_says_that_memory_ran_out() -> None:
    """Three boxes of 4 bytes on two accelerators of 7: nothing fits, and the answer says no more than it knows."""
    proposal = run_placer(GreedyPlacer(), boxes([4, 4, 4], [7, 7]), Budget())
    assert proposal.placement is None and not proposal.infeasible and "ran out of memory" in proposal.notes[0]
