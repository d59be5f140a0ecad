"""Pieces: what is handed over as one call; they never depend on each other in a cycle, and nothing is sent late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from soak import examples
from strategies import eighths, graphs

from placewise.errors import PlanError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.topology import sort_topologically
from placewise.simulate import judge_placement
from placewise.transform.piece_merging import _make_plan, _schedule, merge_pieces
from placewise.transform.pieces import (
    Pieces,
    build_pieces,
    cut_by_changes,
    cut_in_order,
    group_kernels,
    order_by_time,
)


def predict_makespan(problem, pieces, *, hand_over=0.0, overhead=0.0):
    """The makespan by which pieces are merged, in seconds."""
    return _schedule(_make_plan(problem, pieces, hand_over, overhead)).makespan


def problem_of(graph: Graph, seconds: Sequence[float], devices: int = 3) -> Problem:
    """Devices in one memory, on which each op takes as long as `seconds` says: nothing is paid for handing over."""
    cluster = Cluster(tuple(Device(f"core:{number}", kind="cpu") for number in range(devices)))
    table = np.repeat(np.array(seconds, np.float64)[:, None], devices, axis=1)
    return Problem(graph, cluster, CostTable.given(table, np.zeros((graph.n_tensors, 1))))


def chained(edges: dict[str, str]) -> Graph:
    """A graph of ops named by single letters; each reads what the letters of its entry make."""
    builder, made = GraphBuilder(), {}
    for name, sources in edges.items():
        op = builder.add_op(name, "A")
        for source in sources:
            builder.add_edge(made[source], op)
        made[name] = builder.add_tensor(op, nbytes=1, name=f"{name}'")
    return builder.build()


def by_operator(problem: Problem, device: np.ndarray) -> tuple[Pieces, np.ndarray]:
    """The pieces of `operator` execution, and the order in which the judge runs the ops."""
    order = order_by_time(judge_placement(problem, Placement(device)).timeline)
    return build_pieces(problem.graph, device, cut_in_order(problem.graph, device, order), order), order


def names(graph: Graph, pieces: Pieces) -> list[str]:
    """The ops of every piece, as one word each."""
    return ["".join(graph.ops.name[op] for op in ops) for ops in pieces.ops]


@st.composite
def placed(draw: st.DrawFn) -> tuple[Problem, np.ndarray]:
    graph = draw(graphs(max_ops=10, weights=False))
    seconds = [draw(eighths(8)) for _ in range(graph.n_ops)]
    device = np.array([draw(st.integers(0, 2)) for _ in range(graph.n_ops)], np.int32)
    return problem_of(graph, seconds), device


def holds(graph: Graph, device: np.ndarray, pieces: Pieces) -> None:
    """Every op in one piece, of its device; pieces wait for smaller numbers only; reads and makes fit together."""
    assert sorted(op for ops in pieces.ops for op in ops) == list(range(graph.n_ops))
    assert pieces.device[pieces.piece].tolist() == device.tolist()
    for number in range(len(pieces)):
        for tensor in pieces.reads[number]:
            maker = int(graph.tensors.producer[tensor])
            assert maker < 0 or (pieces.piece[maker] < number and tensor in pieces.makes[int(pieces.piece[maker])])
    for tensor in np.flatnonzero(graph.tensors.output):
        maker = int(graph.tensors.producer[tensor])
        assert maker < 0 or tensor in pieces.makes[int(pieces.piece[maker])]


@given(placed())
def test_operator_pieces_delay_nothing(case):
    """Inside a piece nothing is waited for and nothing is sent; run as pieces, a placement takes as long as by op."""
    problem, device = case
    pieces, order = by_operator(problem, device)
    graph = problem.graph
    holds(graph, device, pieces)
    for ops in pieces.ops:
        inner = sorted(ops, key=order.tolist().index)
        for before, after in pairwise(inner):
            assert all(
                device[reader] == device[before] for t in graph.outputs_of(before) for reader in graph.consumers_of(t)
            )
            makers = graph.tensors.producer[graph.inputs_of(after)]
            assert all(maker < 0 or device[maker] == device[after] for maker in makers)
    assert predict_makespan(problem, pieces) == judge_placement(problem, Placement(device)).value


@given(placed(), eighths(4), eighths(4))
def test_joining_costs_nothing(case, hand_over, overhead):
    """Joined pieces are no more, wait in no circle, and take no longer."""
    problem, device = case
    pieces, _ = by_operator(problem, device)
    fewer = merge_pieces(problem, pieces, hand_over=hand_over, overhead=overhead)
    holds(problem.graph, device, fewer)
    before = predict_makespan(problem, pieces, hand_over=hand_over, overhead=overhead)
    assert len(fewer) <= len(pieces)
    assert predict_makespan(problem, fewer, hand_over=hand_over, overhead=overhead) <= before


@given(placed())
def test_few_pieces_cannot_be_joined_further(case):
    """Cut by changes of device and joined, any two neighbours on a device would depend on each other in a cycle."""
    problem, device = case
    graph = problem.graph
    cut = build_pieces(graph, device, cut_by_changes(graph, device))
    few = merge_pieces(problem, cut, few=True)
    holds(graph, device, cut)
    holds(graph, device, few)
    for d in range(3):
        for one, other in pairwise(np.flatnonzero(few.device == d).tolist()):
            label = np.where(few.piece == other, one, few.piece)
            with pytest.raises(PlanError, match="cycle"):
                build_pieces(graph, device, label)


def test_a_branch_is_sent_before_the_rest():
    """a feeds c on the other device, so it ends a piece; d waits for c, so it begins one."""
    graph = chained({"a": "", "b": "a", "c": "a", "d": "bc"})
    problem = problem_of(graph, [1, 3, 2, 1], devices=2)
    pieces, _ = by_operator(problem, np.array([0, 0, 1, 0]))
    assert names(graph, pieces) == ["a", "c", "b", "d"]
    assert pieces.count(2) == (3, 1)
    assert predict_makespan(problem, pieces) == 5
    assert predict_makespan(problem, pieces, hand_over=0.5, overhead=0.25) == 1.25 + 3.25 + 1.25
    assert names(graph, merge_pieces(problem, pieces)) == ["a", "c", "b", "d"]


def test_what_nobody_waits_for_early_is_sent_later():
    """c reads a and b: that a could be sent before b helps nobody."""
    graph = chained({"a": "", "b": "a", "c": "ab"})
    problem = problem_of(graph, [1, 1, 1], devices=2)
    pieces, _ = by_operator(problem, np.array([0, 0, 1]))
    assert names(graph, pieces) == ["a", "b", "c"]
    fewer = merge_pieces(problem, pieces)
    assert names(graph, fewer) == ["ab", "c"]
    assert (
        [graph.tensors.name[t] for t in fewer.reads[1]]
        == ["a'", "b'"]
        == [graph.tensors.name[t] for t in fewer.makes[0]]
    )


def test_a_dear_call_is_worth_waiting_for():
    """a and b in one call keep c waiting for 4 s, and save 3 s where a call of their device costs that."""
    graph = chained({"a": "", "b": "a", "c": "a", "d": "bc"})
    problem = problem_of(graph, [1, 4, 2, 1], devices=2)
    pieces, _ = by_operator(problem, np.array([0, 0, 1, 0]))
    assert names(graph, merge_pieces(problem, pieces)) == ["a", "c", "b", "d"]
    dear = problem.with_(cluster=Cluster((Device("core:0", kind="cpu", call_overhead=3), problem.cluster.devices[1])))
    assert predict_makespan(dear, pieces) == 4 + 7 + 4
    fewer = merge_pieces(dear, pieces)
    assert names(graph, fewer) == ["ab", "c", "d"]
    assert predict_makespan(dear, fewer) == 8 + 2 + 4


def test_stages_are_one_piece_each():
    """d reads nothing from the first stage, and still belongs to the one piece of the second."""
    graph = chained({"a": "", "b": "a", "c": "b", "d": "", "e": "cd"})
    device = np.array([0, 0, 1, 1, 1], np.int32)
    cut = build_pieces(graph, device, cut_by_changes(graph, device))
    assert names(graph, cut) == ["ab", "d", "ce"]
    assert names(graph, merge_pieces(problem_of(graph, [1] * 5), cut, few=True)) == ["ab", "cde"]


def test_circles_are_refused():
    """a and c in one piece, b in another: each waits for the other."""
    graph = chained({"a": "", "b": "a", "c": "b"})
    with pytest.raises(PlanError, match="depend on each other in a cycle"):
        build_pieces(graph, np.array([0, 1, 0], np.int32), np.zeros(3, np.int64))


def test_nodes_of_circles_are_left_out():
    """What can go goes, smallest first; what waits for itself does not."""
    assert sort_topologically([(), (), (3,), (2,), (0,)], [5, 1, 0, 0, 0]) == [1, 0, 4]


def test_what_one_kernel_runs_is_not_parted():
    """b and d are one kernel: b, which could run while the other core makes c, waits with d for it."""
    graph = chained({"a": "", "b": "a", "c": "a", "d": "bc", "e": "d"})
    device = np.array([0, 0, 1, 0, 0], np.int32)
    order = np.arange(5)
    assert names(graph, build_pieces(graph, device, cut_in_order(graph, device, order), order)) == ["a", "b", "c", "de"]
    order, kernel = group_kernels(graph, device, order, [[1, 3]])
    label = cut_in_order(graph, device, order, kernel)
    assert names(graph, build_pieces(graph, device, label, order)) == ["a", "c", "bde"]


def test_sets_that_are_no_kernel_are_cut_as_ever():
    """A set that hands out a tensor from within, or is on two devices, is no kernel."""
    graph = chained({"a": "", "b": "a", "c": "ab", "d": "bc"})
    device = np.array([0, 0, 1, 0], np.int32)
    for ops in ([1, 3], [2, 3]):
        assert group_kernels(graph, device, np.arange(4), [ops])[1].tolist() == [0, 1, 2, 3]


@examples(50)
@given(placed(), st.data())
def test_orders_with_kernels_are_topological(case: tuple[Problem, np.ndarray], data: st.DataObject):
    """Whatever is taken for kernels, ops stand behind those that feed them, and pieces make no circle."""
    problem, device = case
    graph = problem.graph
    assume(graph.n_ops >= 2)
    sets = data.draw(st.lists(st.sets(st.integers(0, graph.n_ops - 1), min_size=2, max_size=4), max_size=3))
    taken: set[int] = set()
    apart = [sorted(ops) for ops in sets if taken.isdisjoint(ops) and not taken.update(ops)]
    before = order_by_time(judge_placement(problem, Placement(device)).timeline)
    order, kernel = group_kernels(graph, device, before, apart)
    rank = np.argsort(order)
    for op in range(graph.n_ops):
        for tensor in graph.inputs_of(op).tolist():
            maker = int(graph.tensors.producer[tensor])
            assert maker < 0 or rank[maker] < rank[op]
    pieces = build_pieces(graph, device, cut_in_order(graph, device, order, kernel), order)
    for ops in apart:
        assert len({int(kernel[op]) for op in ops}) > 1 or len({int(pieces.piece[op]) for op in ops}) == 1
