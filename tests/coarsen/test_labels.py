"""Groupings: whole blocks, no cycles, no mixed keys, no group over its limits, and a hierarchy that gets there."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate_problems import problems, random_problem, seeded
from soak import examples, seeds

from placewise.coarsen.hierarchy import Grouping, cut_intervals, heavy_edges, hierarchy, sole_children, sole_parents
from placewise.coarsen.quotient import Limits, Quotient, build_quotient, merge_groups, renumber
from placewise.coarsen.scopes import join_parts, repeated_labels, scope_labels
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.tables import Interned
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract, join, strong_components

METHODS: list[Grouping] = [sole_children, sole_parents, heavy_edges, cut_intervals]


def line(n: int) -> Problem:
    """n ops, each of which reads the one before."""
    builder = GraphBuilder()
    tensor = None
    for number in range(n):
        op = builder.add_op(f"op{number}", "Op", scope=f"layer.{number // 4}.step.{number // 2}.part")
        if tensor is not None:
            builder.add_edge(tensor, op)
        tensor = builder.add_tensor(op, nbytes=1)
    cluster = Cluster((Device("a", "cpu"), Device("b", "cpu")))
    costs = CostTable.given(np.ones((n, 2)), np.zeros((n, 1)))
    return Problem(builder.build(), cluster, costs, Objective("throughput"))


def acyclic(quotient: Quotient, label: np.ndarray) -> bool:
    """Whether the groups of a label can be put in an order."""
    n = int(label.max(initial=-1)) + 1
    return strong_components(label[quotient.tail], label[quotient.head], n)[1] == n


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
@given(problem=problems(max_ops=24, rules=True), limit=st.integers(1, 12))
@examples(15)
def test_a_method_makes_no_cycle_and_keeps_limits_and_keys(method: Grouping, problem: Problem, limit: int) -> None:
    """On any graph, training or not: groups can be ordered, are of one key, and no larger than allowed."""
    _, quotient = build_quotient(problem)
    label = renumber(method(quotient, Limits(float(limit), 2.0 * limit)))
    assert acyclic(quotient, label)
    for group in range(int(label.max(initial=-1)) + 1):
        members = label == group
        assert len(set(quotient.key[members].tolist())) == 1
        if members.sum() > 1:
            assert quotient.seconds[members].sum() <= limit * (1 + 1e-12)
            assert quotient.bytes[members].sum() <= 2 * limit


@pytest.mark.parametrize("seed", seeds(6))
def test_heavy_edges_make_no_cycle_on_larger_graphs(seed: int) -> None:
    """Pass after pass, hundreds of ops, no limits: whatever is grouped can be ordered, and something is."""
    problem = random_problem(seeded(seed), max_ops=400, objective=Objective("throughput"))
    _, quotient = build_quotient(problem)
    for _ in range(5):
        label = renumber(heavy_edges(quotient, Limits()))
        assert acyclic(quotient, label)
        number, coarser = merge_groups(quotient, label)
        assert coarser.n == label.max() + 1 and coarser.n <= quotient.n
        assert (number[coarser.tail] >= 0).all() and (coarser.tail < coarser.head).all()
        quotient = coarser


@pytest.mark.parametrize("seconds", [0.0, 5e-324, 1e-200])
def test_heavy_edges_join_what_takes_no_time(seconds: float) -> None:
    """Ops of no seconds, and of so few that products of them are none, are joined as any others are."""
    _, quotient = build_quotient(line(8))
    pairs = heavy_edges(quotient, Limits())
    same = heavy_edges(quotient._replace(seconds=np.full(8, seconds)), Limits())
    np.testing.assert_array_equal(same, pairs)


def test_a_line_becomes_one_group_by_its_children() -> None:
    """Sole children and sole parents shorten a line to one op, or to runs within the limits."""
    _, quotient = build_quotient(line(12))
    for method in (sole_children, sole_parents):
        assert len(set(method(quotient, Limits()).tolist())) == 1
        assert np.bincount(renumber(method(quotient, Limits(seconds=3.0)))).tolist() == [3, 3, 3, 3]


def test_joining_loses_nothing_but_the_flow_inside() -> None:
    """A joined graph keeps work and bytes, and loses just the flow inside its groups."""
    problem = random_problem(seeded(3), max_ops=60, objective=Objective("throughput"))
    _, quotient = build_quotient(problem)
    label = renumber(heavy_edges(quotient, Limits()))
    _, coarser = merge_groups(quotient, label)
    inside = label[quotient.tail] == label[quotient.head]
    assert coarser.flow.sum() == pytest.approx(quotient.flow[~inside].sum())
    assert coarser.seconds.sum() == pytest.approx(quotient.seconds.sum())


def test_scopes_group_steps_and_layers() -> None:
    """The path up to its last number, or to its first."""
    problem = line(16)
    assert np.bincount(scope_labels(problem)).tolist() == [2] * 8


def test_repetitions_are_grouped_in_runs() -> None:
    """Steps of a layer, sixteen and four runs of steps, and the layer: nested, in order of the numbers."""
    builder = GraphBuilder()
    scopes = [f"layer.{layer}.step.{step}" for step in range(32) for layer in range(2)] + ["head", "head", "", "head.²"]
    for number, scope in enumerate(scopes):
        builder.add_op(f"op{number}", "Op", scope=scope)
    cluster = Cluster((Device("a", "cpu"), Device("b", "cpu")))
    costs = CostTable.given(np.ones((len(scopes), 2)), np.zeros((0, 1)))
    problem = Problem(builder.build(), cluster, costs, Objective("latency"))
    labels = repeated_labels(problem)
    assert [len(np.unique(label)) for label in labels] == [67, 35, 11, 5]
    for finer, coarser in pairwise(labels):
        assert len(np.unique(np.stack((finer, coarser)), axis=1)[0]) == finer.max() + 1
    layer, runs = labels[-1][:64:2], labels[-2][:64:2]
    assert len(set(layer.tolist())) == 1
    assert runs.tolist() == np.repeat(list(dict.fromkeys(runs.tolist())), 8).tolist()
    assert repeated_labels(line(1)) == []


@given(st.data(), problems(max_ops=24, rules=True))
@examples(30)
def test_a_hierarchy_is_nested_whole_and_pure(data: st.DataObject, problem: Problem) -> None:
    """Each label groups the one before, keeps blocks and keys whole, and can be ordered as components are."""
    chosen = st.lists(st.integers(0, 2), min_size=problem.n_blocks, max_size=problem.n_blocks)
    key = np.array(data.draw(chosen))[problem.block]
    start = scope_labels(problem) if data.draw(st.booleans()) else None
    graph = contract(problem)
    finer, of_component = graph.component, np.zeros(graph.n, np.int32)
    pure = len(np.unique(np.stack((finer, key)), axis=1).T) == graph.n
    for label in hierarchy(problem, wanted=2, key=key, start=start):
        assert len(np.unique(np.stack((finer, label)), axis=1).T) == finer.max() + 1
        assert len(np.unique(np.stack((problem.block, label)), axis=1).T) == problem.n_blocks
        if pure:
            assert len(np.unique(np.stack((label, key)), axis=1).T) == label.max() + 1
        of_component[graph.component] = label
        tail, head = (of_component[ends] for ends in graph.edges())
        assert strong_components(tail, head, int(label.max()) + 1)[1] == label.max() + 1
        assert join(graph, of_component).n == label.max() + 1
        finer = label


def test_a_hierarchy_reaches_the_wanted_size() -> None:
    """A long line and a random graph come down to what is wanted, level by level."""
    sizes = [int(label.max()) + 1 for label in hierarchy(line(600), wanted=20)]
    assert sizes == sorted(sizes, reverse=True) and 5 <= sizes[-1] <= 20 and len(sizes) >= 2
    assert hierarchy(line(10), wanted=20) == []


def test_parts_are_joined_except_large_ones() -> None:
    """32 equal parts of two ops on two devices are small; an op that takes as long as all others makes one large."""
    problem = line(64)
    assert join_parts(problem).block.tolist() == np.repeat(np.arange(32), 2).tolist()
    seconds = np.ones((64, 2))
    seconds[2] = 63.0
    heavy = problem.with_(costs=CostTable.given(seconds, np.zeros((64, 1))))
    assert join_parts(heavy).block.tolist() == [0, 0, 1, 2, *np.repeat(np.arange(3, 33), 2).tolist()]


def test_placements_of_parts_keep_their_values() -> None:
    """On random problems whose ops have scopes: what is together stays together, and values and rules are the same."""
    joined_some = 0
    for seed in seeds(40):
        posed = random_problem(seeded(seed), max_ops=24, rules=True)
        places = np.arange(posed.n_ops)
        paths = tuple(f"layer.{layer}.step.{step}" for layer in range(3) for step in range(4))
        names = Interned(paths, (places % 3 * 4 + places // 6).astype(np.int32))
        problem = posed.with_(graph=replace(posed.graph, ops=replace(posed.graph.ops, scope=names)))
        joined = join_parts(problem)
        pairs = set(zip(problem.block.tolist(), joined.block.tolist(), strict=True))
        assert len(pairs) == problem.n_blocks >= joined.n_blocks
        device = (
            np.random.default_rng(seed).integers(0, problem.n_devices, joined.n_blocks).astype(np.int32)[joined.block]
        )
        before, after = (judge_placement(one, Placement(device)) for one in (problem, joined))
        assert (after.value, after.valid) == (before.value, before.valid)
        joined_some += 1 < joined.n_blocks < problem.n_blocks
    assert joined_some
