"""Replicated stages under the judge: against the twin, by hand, in the checker, in memory and under the bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rules import placements, with_replicas
from soak import examples
from strategies import clusters, costs, graphs
from twins import replicated_value

from placewise.errors import InputError, PlanError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.simulate import judge_placement, lower_bound, why_infeasible
from placewise.simulate.replicas import equal_devices, sync_pace

MODES = ("blocking", "overlap", "duplex")


@st.composite
def replicable(draw: st.DrawFn, **options: object) -> Problem:
    """A throughput problem in which stages may be replicated, on devices most of which are equal."""
    training = draw(st.booleans())
    graph = draw(graphs(max_ops=2 if training else 4, training=training))
    machines = draw(clusters(max_devices=4, **options))  # type: ignore[arg-type]
    objective = Objective(
        "throughput",
        communication=draw(st.sampled_from(MODES)),  # type: ignore[arg-type]
        memory=draw(st.sampled_from(["sum", "live"])),  # type: ignore[arg-type]
        schedule=draw(st.sampled_from(["1f1b", "1f1b", "gpipe"])),  # type: ignore[arg-type]
        step_samples=draw(st.sampled_from([0, 0, 4, 6])),
    )
    constraints = Constraints(contiguous=draw(st.booleans()), replicas=draw(st.sampled_from([0, 0, 2, 3])))
    return Problem(graph, machines, draw(costs(graph, machines)), objective, constraints)


@st.composite
def replicated(draw: st.DrawFn) -> tuple[Problem, Placement]:
    """A problem, ops anywhere, and unused devices that repeat stages of equal ones."""
    problem = draw(replicable())
    device = np.array([draw(st.integers(0, problem.n_devices - 1)) for _ in range(problem.n_ops)], np.int32)
    kind, used = equal_devices(problem), sorted(set(device.tolist()))
    stage = list(range(problem.n_devices))
    for d in range(problem.n_devices):
        if d not in used:
            stage[d] = draw(st.sampled_from([d, *(e for e in used if kind[e] == kind[d])]))
    return problem, Placement(device, replicas=stage)  # type: ignore[arg-type]


@examples(100)
@given(replicated())
def test_the_twin_finds_the_same_value(case: tuple[Problem, Placement]) -> None:
    """Sending samples to every combination of members gives the judge's mean, wires and synchronization included."""
    problem, placement = case
    judged = judge_placement(problem, placement)
    if math.isfinite(judged.value):
        assert placement.replicas is not None
        twin = replicated_value(problem, placement.device.tolist(), placement.replicas.tolist())
        assert judged.value == pytest.approx(twin, rel=1e-12)
    assert not any(violation.kind == "coverage" for violation in judged.violations)


@examples(60)
@given(replicated())
def test_members_do_and_hold_the_same(case: tuple[Problem, Placement]) -> None:
    """Every member reports the stage's ops, load and memory, and who repeats whom."""
    problem, placement = case
    uses = judge_placement(problem, placement).devices
    alone = judge_placement(problem, replace(placement, replicas=None)).devices
    assert placement.replicas is not None
    for d, e in enumerate(placement.replicas.tolist()):
        assert (uses[d].ops, uses[d].load, uses[d].peak) == (uses[e].ops, uses[e].load, uses[e].peak)
        assert (uses[d].resident, uses[d].peak) == (alone[e].resident, alone[e].peak)
        assert uses[d].repeats == ("" if d == e else problem.cluster.names[e])
        assert uses[d].replicas == placement.replicas.tolist().count(e)


@examples(60)
@given(replicated())
def test_no_replicas_are_as_no_column(case: tuple[Problem, Placement]) -> None:
    """A placement in which every device repeats itself is judged like one without replicas."""
    problem, placement = case
    plain = replace(placement, replicas=None)
    itself = replace(placement, replicas=np.arange(problem.n_devices, dtype=np.int32))
    one, other = judge_placement(problem, plain), judge_placement(problem, itself)
    assert one.value == other.value
    assert one.devices == other.devices
    assert one.violations == other.violations


@examples(50)
@given(replicable())
def test_bounds_hold_for_every_replicated_placement(problem: Problem) -> None:
    """No valid placement with replicas is below the bound; a proof of infeasibility means that there is none."""
    bound, proof = lower_bound(problem), why_infeasible(problem)
    for placement, value in with_replicas(problem, placements(problem)):
        if value < bound.value or proof:
            assert not judge_placement(problem, placement).valid


def test_a_bound_counts_the_devices_that_may_share_most() -> None:
    """Three devices with the same links to the host, two of which are equal among each other too: half of 8 s."""
    builder = GraphBuilder()
    builder.add_op("op", "Op")
    graph = builder.build()
    devices = tuple(Device(f"acc{d}", memory=200) for d in range(3))
    names = [*(device.name for device in devices), HOST]
    slow = {("acc0", "acc1"), ("acc0", "acc2")}
    links = [Link(a, b, 1.0 if (a, b) in slow else 2.0) for a in names for b in names if a != b]
    cluster = Cluster(devices, tuple(links), transfers="direct")
    costs = CostTable.given(np.full((1, 3), 8.0), transfer_seconds_of(graph, cluster))
    problem = Problem(graph, cluster, costs, Objective("throughput"), Constraints(contiguous=False, replicas=0))
    assert judge_placement(problem, on(problem, 1, stage=[0, 1, 1])).value == 4.0
    assert lower_bound(problem).value == pytest.approx(4.0)


def pair(*, count: int = 4, bandwidth: float = 10.0, training: bool = True, **objective: object) -> Problem:
    """Two ops of 4 s and 8 s with weights of 60 B and 20 B, a tensor of 20 B between them, on equal devices."""
    builder = GraphBuilder()
    ops = [builder.add_op(name, "Op", group=k) for k, name in enumerate("ab")]
    for op, size in zip(ops, (60, 20), strict=True):
        builder.use_weight(builder.add_weight(f"w{op}", shape=(size,), dtype="int8"), op)
    builder.add_edge(builder.add_tensor(ops[0], nbytes=20), ops[1])
    if training:
        builder.add_op("b'", "Op", backward=True, group=1)
    graph = builder.build()
    seconds = np.tile(np.array([4.0, 8.0, 0.0][: graph.n_ops])[:, None], (1, count))
    devices = tuple(Device(f"acc{d}", memory=200) for d in range(count))
    links = [Link(*ends, bandwidth) for d in devices for ends in ((d.name, HOST), (HOST, d.name))]
    cluster = Cluster(devices, tuple(links))
    costs = CostTable.given(seconds, transfer_seconds_of(graph, cluster))
    return Problem(graph, cluster, costs, Objective("throughput", **objective), Constraints(replicas=0))  # type: ignore[arg-type]


def on(problem: Problem, *device: int, stage: list[int]) -> Placement:
    return Placement(np.array(device, np.int32), replicas=np.array(stage, np.int32))


def test_worked_by_hand() -> None:
    """One device for a; three for b, a third of 8 + 2 s each, and 2 · 2/3 · 20 B / 10 B/s for three samples."""
    problem = pair()
    judged = judge_placement(problem, on(problem, 0, 1, 1, stage=[0, 1, 1, 1]))
    assert judged.valid
    assert [use.sync for use in judged.devices] == pytest.approx([0, *[2 * (2 / 3) * 2 / 3] * 3])
    assert [use.load for use in judged.devices] == pytest.approx([6, *[10 / 3 + 8 / 9] * 3])
    assert judged.value == 6.0
    with_step = problem.with_(objective=replace(problem.objective, step_samples=12))
    assert judge_placement(with_step, on(problem, 0, 1, 1, stage=[0, 1, 1, 1])).devices[1].sync == pytest.approx(
        8 / 3 / 12
    )


@pytest.mark.parametrize(("mode", "load"), [("blocking", 3 + 3.0), ("overlap", 3.0), ("duplex", 3.0)])
def test_all_on_one_stage(mode: str, load: float) -> None:
    """Data parallelism: four devices share all ops and synchronize 80 B, 2 · 3/4 · 80 / 10 s for four samples."""
    problem = pair(communication=mode)
    assert judge_placement(problem, on(problem, 0, 0, 0, stage=[0, 0, 0, 0])).value == pytest.approx(load)


def test_inference_needs_no_synchronization() -> None:
    """Without backward ops, members only share the samples."""
    problem = pair(training=False)
    judged = judge_placement(problem, on(problem, 0, 0, stage=[0, 0, 0, 0]))
    assert judged.value == 3.0
    assert {use.sync for use in judged.devices} == {0.0}


def test_the_slowest_link_sets_the_pace_of_a_ring() -> None:
    """Direct rings take the links between members; staged ones every member's way up and down."""
    graph = pair().graph
    machines = tuple(Device(f"acc{d}") for d in range(3))
    ends = [(a, b) for a in ("acc0", "acc1", "acc2", HOST) for b in ("acc0", "acc1", "acc2", HOST) if a != b]
    slow = {("acc1", "acc2"): 2.0, ("acc0", HOST): 1.0}
    links = tuple(Link(*pair, slow.get(pair, 4.0)) for pair in ends)
    for transfers, speed in (("direct", 2.0), ("staged", 1.0)):
        cluster = Cluster(machines, links, transfers)  # type: ignore[arg-type]
        costs = CostTable.given(np.ones((graph.n_ops, 3)), transfer_seconds_of(graph, cluster))
        problem = Problem(graph, cluster, costs, Objective("throughput"), Constraints(replicas=0))
        assert sync_pace(problem, [0, 1, 2]) == pytest.approx(2 * 2 / 3 / speed / 3)
        assert sync_pace(problem, [1]) == 0.0


def test_shared_wires_carry_the_mean_and_the_rings() -> None:
    """Two members on a wire each: a wire carries half of what the stage receives, and both hops of its member."""
    base = pair()
    links = tuple(replace(link, shared=f"pcie{max(link.source, link.target)}") for link in base.cluster.links)
    cluster = Cluster(base.cluster.devices[:3], tuple(k for k in links if "acc3" not in (k.source, k.target)))
    costs = CostTable.given(base.costs.op_seconds[:, :3], base.costs.transfer_seconds)
    problem = Problem(base.graph, cluster, costs, base.objective, base.constraints)
    judged = judge_placement(problem, on(problem, 0, 1, 1, stage=[0, 1, 1]))
    assert judged.wires == pytest.approx({"pciehost": 2 + 2 + 4 * 1.0})
    apart = [replace(link, shared=min(link.source, link.target)) for link in cluster.links]
    problem = problem.with_(cluster=Cluster(cluster.devices, tuple(apart)))
    judged = judge_placement(problem, on(problem, 0, 1, 1, stage=[0, 1, 1]))
    assert judged.wires == pytest.approx({"acc0": 2.0, "acc1": 1 + 2 * 1.0, "acc2": 1 + 2 * 1.0})


def test_what_is_wrong_with_replicas() -> None:
    """Too many members, unequal ones, and columns that name no stage: each in words."""
    problem = pair()
    few = problem.with_(constraints=Constraints(replicas=2))
    (found,) = judge_placement(few, on(few, 0, 1, 1, stage=[0, 1, 1, 1])).violations
    assert (found.kind, found.device) == ("replicas", "acc1")
    assert "acc1, acc2, acc3" in found.message and "at most 2" in found.message
    seconds = problem.costs.op_seconds.copy()
    seconds[0, 2] = 5.0
    unequal = problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds))
    (found,) = judge_placement(unequal, on(problem, 0, 1, 1, stage=[0, 1, 1, 1])).violations
    assert (found.kind, found.device) == ("replicas", "acc2")
    latency = problem.with_(objective=Objective("latency"))
    assert [v.kind for v in judge_placement(latency, on(problem, 0, 1, 1, stage=[0, 1, 1, 1])).violations] == [
        "replicas"
    ]
    for stage, words in (
        ([0, 0, 2, 3], "ops of its own"), ([0, 1, 1, 2], "repeats that of another"), ([0, 1, 1], "3 devices"),
        ([0, 1, 9, 3], "number 9"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=words):
            judge_placement(problem, on(problem, 0, 1, 1, stage=stage))


def test_members_hold_all_weights() -> None:
    """What does not fit on a device does not fit on two: every member is reported."""
    problem = pair()
    tight = problem.with_(
        cluster=Cluster(tuple(replace(d, memory=70) for d in problem.cluster.devices), problem.cluster.links)
    )
    judged = judge_placement(tight, on(tight, 0, 0, 0, stage=[0, 0, 2, 3]))
    assert [v.device for v in judged.violations if v.kind == "memory"] == ["acc0", "acc1"]


def test_limits_of_the_wish() -> None:
    """The most devices per stage: the user's limit, the cluster's size, the samples of a step, 1 for latency."""
    problem = pair()
    assert problem.max_replicas == 4
    assert problem.with_(constraints=Constraints(replicas=3)).max_replicas == 3
    assert problem.with_(constraints=Constraints()).max_replicas == 1
    assert problem.with_(objective=Objective("throughput", step_samples=2)).max_replicas == 2
    assert pair(training=False, step_samples=2).max_replicas == 4
    assert problem.with_(objective=Objective("latency")).max_replicas == 1
    with pytest.raises(InputError, match="replicas"):
        Constraints(replicas=-1)
    with pytest.raises(InputError, match="step_samples"):
        Objective(step_samples=-1)


def test_equal_devices_know_their_links() -> None:
    """Two pairs with a fast link inside each are two classes; with equal links, all four are one."""
    graph: Graph = pair().graph
    names = ["acc0", "acc1", "acc2", "acc3"]
    fast = {frozenset(names[:2]), frozenset(names[2:])}
    ends = [(a, b) for a in (*names, HOST) for b in (*names, HOST) if a != b]
    for speed, kinds in ((8.0, [0, 0, 2, 2]), (1.0, [0, 0, 0, 0])):
        links = tuple(Link(a, b, speed if frozenset((a, b)) in fast else 1.0) for a, b in ends)
        cluster = Cluster(tuple(Device(name) for name in names), links, "direct")
        costs = CostTable.given(np.ones((graph.n_ops, 4)), transfer_seconds_of(graph, cluster))
        problem = Problem(graph, cluster, costs, Objective("throughput"), Constraints(replicas=0))
        assert equal_devices(problem).tolist() == kinds
