"""The contraction against plain Python, and contiguity against its definition."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from plain_rules import is_chain, leaves_and_returns, naive_edges
from soak import examples
from strategies import problems

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.problem import Problem
from placewise.simulate.contiguity import contract, depth_first, device_cycle, join, path_back, stage_cycle


def reach(n: int, edges: set[tuple[int, int]]) -> np.ndarray:
    """Who reaches whom, oneself included [n, n]."""
    closed = np.eye(n, dtype=bool)
    for u, v in edges:
        closed[u, v] = True
    for middle in range(n):
        closed |= np.outer(closed[:, middle], closed[middle])
    return closed


@examples(40)
@given(problems(max_ops=8, rules=False))
def test_components_are_the_cycles_of_the_quotient(problem: Problem) -> None:
    """Blocks share a component exactly if each reaches the other, and components are numbered topologically."""
    graph = contract(problem)
    edges = naive_edges(problem)
    closed = reach(problem.n_blocks, edges)
    for op, other in product(range(problem.n_ops), repeat=2):
        a, b = int(problem.block[op]), int(problem.block[other])
        assert (graph.component[op] == graph.component[other]) == bool(closed[a, b] and closed[b, a])
    fused = {int(problem.block[op]): int(graph.component[op]) for op in range(problem.n_ops)}
    expected = {(fused[u], fused[v]) for u, v in edges if fused[u] != fused[v]}
    assert expected == set(zip(*(ends.tolist() for ends in graph.edges()), strict=True))
    assert all(u < v for u, v in expected)
    backwards = {
        (int(u), v)
        for v in range(graph.n)
        for u in graph.predecessors[graph.predecessor_offsets[v] : graph.predecessor_offsets[v + 1]]
    }
    assert backwards == expected


@examples(30)
@given(problems(max_ops=8, rules=False))
def test_depth_first_is_another_topological_order(problem: Problem) -> None:
    """Every component has its own position, behind its predecessors."""
    graph = contract(problem)
    position = depth_first(graph)
    tail, head = graph.edges()
    assert sorted(position.tolist()) == list(range(graph.n))
    assert (position[tail] < position[head]).all()


@examples(40)
@given(problems(max_ops=5, max_devices=3, training=True, rules=False))
def test_device_cycle_is_the_definition(problem: Problem) -> None:
    """No cycle exactly where an order of devices makes the stages a chain of ideals; cycles are real."""
    graph = contract(problem)
    edges = naive_edges(problem)
    for blocks in product(range(problem.n_devices), repeat=min(problem.n_blocks, 5)):
        home = np.array([*blocks, *[0] * (problem.n_blocks - len(blocks))], np.int32)
        device = home[problem.block]
        cycle = device_cycle(graph, device)
        assert stage_cycle(problem, device) == cycle
        assert (cycle is None) == is_chain(edges, tuple(home.tolist()))
        if cycle is not None:
            closed = reach(problem.n_devices, {(int(home[u]), int(home[v])) for u, v in edges})
            assert len(cycle) >= 2 and all(closed[a, b] for a in cycle for b in cycle)


@examples(40)
@given(problems(max_ops=6, max_devices=3, rules=False))
def test_path_back_is_the_definition(problem: Problem) -> None:
    """A path is found exactly where following all paths finds one, it is one, and a chain of stages has none."""
    graph, edges = problem.graph, naive_edges(problem)
    reads = set(zip(graph.tensors.producer[graph.edges.value].tolist(), graph.edges.consumer.tolist(), strict=True))
    for home in product(range(problem.n_devices), repeat=min(problem.n_blocks, 5)):
        blocks = np.array([*home, *[0] * (problem.n_blocks - len(home))], np.int32)
        device = blocks[problem.block]
        path = path_back(problem, device)
        assert (path is not None) == leaves_and_returns(problem, device.tolist())
        if path is not None:
            assert not is_chain(edges, tuple(blocks.tolist()))
            assert set(pairwise(path)) <= reads and not graph.ops.backward[list(path)].any()
            assert device[path[0]] == device[path[-1]] and (device[list(path[1:-1])] != device[path[0]]).all()


def test_ops_that_need_no_fusing_keep_their_numbers() -> None:
    """A plain graph contracts to itself."""
    builder = GraphBuilder()
    for op in range(4):
        builder.add_op(f"op{op}", "Op")
    for tail, head in ((0, 2), (1, 3), (2, 3)):
        builder.add_edge(builder.add_tensor(tail, nbytes=1), head)
    graph = contract(_problem(builder))
    assert graph.component.tolist() == [0, 1, 2, 3]
    assert list(zip(*(ends.tolist() for ends in graph.edges()), strict=True)) == [(0, 2), (1, 3), (2, 3)]


def test_a_group_around_another_op_swallows_it() -> None:
    """a → b → c with a and c in one group: b cannot be elsewhere, and backward edges of paired ops do not count."""
    builder = GraphBuilder()
    for name, group in (("a", 0), ("b", -1), ("c", 0), ("d", -1)):
        builder.add_op(name, "Op", group=group)
    for tail in range(3):
        builder.add_edge(builder.add_tensor(tail, nbytes=1), tail + 1)
    graph = contract(_problem(builder))
    assert graph.component.tolist() == [0, 0, 0, 1]
    assert device_cycle(graph, np.array([0, 1, 0, 1], np.int32)) is not None
    assert device_cycle(graph, np.array([0, 0, 0, 1], np.int32)) is None


def test_a_backward_op_alone_is_mirrored() -> None:
    """f0 → f1 → b1 → lone → b0: the twin of `lone` stands between f0 and f1."""
    builder = GraphBuilder()
    for name, group, backward in (("f0", 0, 0), ("f1", 1, 0), ("b1", 1, 1), ("lone", -1, 1), ("b0", 0, 1)):
        builder.add_op(name, "Op", group=group, backward=bool(backward))
    for tail in range(4):
        builder.add_edge(builder.add_tensor(tail, nbytes=1), tail + 1)
    problem = _problem(builder)
    graph = contract(problem)
    f0, f1, b1, lone, b0 = graph.component.tolist()
    assert (f0, f1) == (b0, b1)
    assert set(zip(*(ends.tolist() for ends in graph.edges()), strict=True)) == {(f0, f1), (f0, lone), (lone, f1)}
    joined = join(graph, np.array([0, 0, 1], np.int32))
    assert joined.n == 2 and joined.component.tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("ops", [0, 1])
def test_tiny_graphs(ops: int) -> None:
    """Nothing and one op are contiguous."""
    builder = GraphBuilder()
    for op in range(ops):
        builder.add_op(f"op{op}", "Op")
    graph = contract(_problem(builder))
    assert graph.n == ops and device_cycle(graph, np.zeros(ops, np.int32)) is None


def _problem(builder: GraphBuilder) -> Problem:
    graph = builder.build()
    cluster = Cluster((Device("a", kind="cpu"), Device("b", kind="cpu")))
    return Problem(graph, cluster, CostTable.given(np.ones((graph.n_ops, 2)), np.zeros((graph.n_tensors, 1))))
