"""benchmarks/real/predict.py, worked by hand: pieces, calls, hand-overs, busy neighbours, cut kernels."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from locations import ROOT

from placewise.costing.roofline import cost_table
from placewise.errors import CostError
from placewise.files.profile_file import DeviceProfile, Figures, ProfileFile
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.transform.pieces import build_pieces

sys.path.append(str(ROOT / "benchmarks" / "real"))
from predict import Predictor, Tuning, TuningCase, fit_tuning, with_tuning  # a folder of programs is no package

CORES = tuple(
    Device(name, "core", peak_flops={"float32": 1e9}, memory_bandwidth=1e6, efficiency={"memory": 1.0})
    for name in ("a", "b")
)
HOST = float("inf"), 0.0
WAYS = tuple(
    Link(source, target, *(HOST if "host" in (source, target) else (1e6, 0.25)))
    for source in ("a", "b", "host")
    for target in ("a", "b", "host")
    if source != target
)
CLUSTER = Cluster(CORES, WAYS, "direct")


def problem_of(edges, n):
    """Ops called after their numbers, each making 1,000 elements (4,000 bytes), with these edges."""
    builder = GraphBuilder()
    given = builder.add_tensor(-1, shape=(1000,), dtype="float32", name="x")
    made = []
    for op in range(n):
        builder.add_op(str(op), "Relu", dtype="float32")
        made.append(builder.add_tensor(op, shape=(1000,), dtype="float32"))
    for op in range(n):
        sources = [source for source, target in edges if target == op]
        for position, source in enumerate(sources):
            builder.add_edge(made[source], op, position)
        if not sources:
            builder.add_edge(given, op, 0)
    builder.set_output(made[-1])
    graph = builder.build()
    return Problem(graph, CLUSTER, cost_table(graph, CLUSTER))


def profile_of(problem, idle, loaded=None, *, call=0.0, fused=(), moved=0.0):
    """The same times on both devices."""
    n = problem.n_ops
    both = Figures(ops=tuple(idle)), None if loaded is None else Figures(ops=tuple(loaded))
    devices = tuple(
        DeviceProfile(name=name, call_overhead=call, fused=fused, idle=both[0], loaded=both[1]) for name in ("a", "b")
    )
    names = problem.graph.ops.name
    return ProfileFile(runtime="x", ops=names, bytes=(moved,) * n, graph_hash=problem.graph.digest(), devices=devices)


def pieces_by(problem, device, label=None):
    return build_pieces(problem.graph, np.array(device, np.int32), np.array(label if label else device, np.int64))


def seconds(problem, profile, device, label=None, in_flight=1, **more):
    predictor = Predictor(problem, profile, in_flight=in_flight)
    return predictor(Placement(np.array(device, np.int32)), pieces_by(problem, device, label), **more).seconds


CHAIN = problem_of([(0, 1), (1, 2)], 3)
FORK = problem_of([(0, 1), (0, 2), (1, 3), (2, 3)], 4)


def test_a_chain_pays_calls_and_a_hand_over():
    """Three ops of 1, 2 and 4 s: one piece pays one call; a cut adds a call, latency, bytes, and the hand-over."""
    profile = profile_of(CHAIN, (1.0, 2.0, 4.0), call=0.5)
    assert seconds(CHAIN, profile, (0, 0, 0)) == pytest.approx(7 + 0.5)
    assert seconds(CHAIN, profile, (0, 0, 0), (0, 1, 2)) == pytest.approx(7 + 1.5)
    assert seconds(CHAIN, profile, (0, 0, 1)) == pytest.approx(7 + 2 * 0.5 + 0.25 + 0.004)
    tuning = Tuning(call=0.125, hand_over=2.0, per_byte=1e-3)
    assert seconds(CHAIN, profile, (0, 0, 1), tuning=tuning) == pytest.approx(7 + 2 * 0.125 + 0.254 + 2 + 4 + 4)


def test_busy_neighbours_slow_each_other_down():
    """Two branches at once take their loaded times; what runs alone does not."""
    profile = profile_of(FORK, (1.0, 4.0, 4.0, 1.0), (3.0, 6.0, 6.0, 3.0))
    alone = seconds(FORK, profile_of(FORK, (1.0, 4.0, 4.0, 1.0)), (0, 0, 1, 0), (0, 1, 1, 2))
    assert alone == pytest.approx(1 + 0.254 + 4 + 0.254 + 1)
    both = Predictor(FORK, profile)(Placement([0, 0, 1, 0]), pieces_by(FORK, (0, 0, 1, 0), (0, 1, 1, 2)))
    assert both.seconds == pytest.approx(1 + 0.254 + 6 + 0.254 + 1, rel=0.05)
    assert 0 < both.busy[0] < both.busy[1] <= 1
    none = Tuning(load=0.0)
    assert seconds(FORK, profile, (0, 0, 1, 0), (0, 1, 1, 2), tuning=none) == pytest.approx(alone)


def test_a_stream_is_as_fast_as_its_busiest_device():
    """In a pipeline the load of the busiest device counts, and both are busy as their loads are."""
    profile = profile_of(CHAIN, (1.0, 2.0, 4.0), call=0.5)
    blocked = 4 + 0.5 + 0.254
    assert seconds(CHAIN, profile, (0, 0, 1), in_flight=4) == pytest.approx(blocked)
    slowed = profile_of(CHAIN, (1.0, 2.0, 4.0), (2.0, 4.0, 8.0), call=0.5)
    assert blocked < seconds(CHAIN, slowed, (0, 0, 1), in_flight=4) < 8 + 0.5 + 0.254


def test_a_cut_kernel_moves_what_it_did_not():
    """Ops that are fused cost 4 and 0 s together; apart, the second reads and writes 3 s of memory."""
    profile = profile_of(CHAIN, (1.0, 4.0, 0.0), fused=((1, 2),), moved=3e6)
    assert seconds(CHAIN, profile, (0, 0, 0)) == pytest.approx(5)
    assert seconds(CHAIN, profile, (0, 0, 0), (0, 0, 1)) == pytest.approx(8)
    found = Predictor(CHAIN, profile)(Placement([0, 0, 1]), pieces_by(CHAIN, (0, 0, 1)))
    assert found.cut == 1 and found.seconds == pytest.approx(8 + 0.254)


def test_overheads_are_found_from_runs():
    """Placements that were timed give back the overheads that made their times."""
    profile = profile_of(CHAIN, (1e-3, 2e-3, 4e-3), (2e-3, 4e-3, 8e-3))
    predictor, true = Predictor(CHAIN, profile), Tuning(call=8e-5, hand_over=1.6e-4, per_byte=1e-10)
    cases = []
    for device, label in (((0, 0, 0), None), ((0, 0, 0), (0, 1, 2)), ((0, 1, 0), (0, 1, 2)), ((0, 1, 1), None)):
        placement, pieces = Placement(np.array(device, np.int32)), pieces_by(CHAIN, device, label)
        cases.append(TuningCase(placement, pieces, predictor(placement, pieces, true).seconds))
    found = fit_tuning(predictor, cases)
    assert found.call == true.call and found.hand_over == true.hand_over
    for case in cases:
        assert predictor(case.placement, case.pieces, found).seconds == pytest.approx(case.seconds, rel=0.01)


def test_profiles_of_others_are_refused():
    """A profile of another graph says nothing of this one; an op that cannot run is told."""
    with pytest.raises(CostError, match="of another model"):
        Predictor(FORK, profile_of(CHAIN, (1.0, 1.0, 1.0)))
    costs = CHAIN.costs.op_seconds.copy()
    costs[2, 1] = np.inf
    barred = CHAIN.with_(costs=type(CHAIN.costs).given(costs, CHAIN.costs.transfer_seconds))
    with pytest.raises(CostError, match="cannot run"):
        seconds(barred, profile_of(CHAIN, (1.0, 1.0, None)), (0, 0, 1))


def test_links_are_charged_what_a_tuning_says():
    """4,000 bytes take 0.25 s and 4 ms by the link, and by the tuning a call, a hand-over and twice 4 ms more."""
    tuning = Tuning(call=0.5, hand_over=0.125, per_byte=1e-6)
    split = Placement(np.array([0, 0, 1], np.int32))
    plain, dear = (judge_placement(problem, split).value for problem in (CHAIN, with_tuning(CHAIN, tuning)))
    assert dear - plain == pytest.approx(0.5 + 0.125 + 2 * 0.004)
    assert (
        judge_placement(with_tuning(CHAIN, tuning), Placement.on(0, 3)).value
        == judge_placement(CHAIN, Placement.on(0, 3)).value
    )
