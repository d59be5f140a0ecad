"""dp and dpl with replicated stages: against brute force, with proof, along lines, and what they leave to others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rules import placements, with_replicas
from soak import examples
from strategies import problems

from placewise.core.place import place
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Outcome, Reason
from placewise.placers import registry
from placewise.placers.base import Budget, run_placer
from placewise.placers.pipeline_dp.placer import DpOptions, DpPlacer
from placewise.placers.shared.stages.line_split import count_segments
from placewise.placers.shared.stages.stage_costs import price_stages
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract


@st.composite
def shared(draw: st.DrawFn, **options: object) -> Problem:
    """A contiguous pipeline on up to four devices, of which any number may share a stage."""
    given_: dict[str, object] = {"transfers": "staged", "memory_model": "sum", "wires": False, **options}
    problem = draw(problems(kind="throughput", contiguous=True, max_ops=4, max_devices=4, **given_))  # type: ignore[arg-type]
    return problem.with_(
        objective=replace(
            problem.objective,
            step_samples=draw(st.sampled_from([0, 0, 3, 8])),
            schedule=draw(st.sampled_from(["1f1b", "1f1b", "gpipe"])),
        ),
        constraints=replace(problem.constraints, replicas=draw(st.sampled_from([0, 0, 0, 2]))),
    )


def optimum(problem: Problem) -> float:
    """The least max-load of any placement that keeps the rules, replicas and all; inf if there is none."""
    return min((value for _, value in with_replicas(problem, placements(problem))), default=math.inf)


@examples(40)
@given(shared())
def test_replicated_pipelines_are_optimal(problem: Problem) -> None:
    """The proposal reaches the brute-force optimum, and the bound is the optimum."""
    best, proposal = optimum(problem), run_placer(DpPlacer(), problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None and proposal.infeasible and proposal.reason is Reason.PROVED
        return
    assert proposal.placement is not None and proposal.bound is not None
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid
    assert judged.value == pytest.approx(best, rel=1e-11, abs=1e-15)
    assert best * (1 - 1e-9) <= proposal.bound.value <= best


@examples(20)
@given(shared(transfers=None, memory_model=None, wires=True))
def test_bounds_hold_whatever_the_links_and_the_memory_model(problem: Problem) -> None:
    """Direct links, shared wires and live activations: bound ≤ optimum, and what is proposed keeps the rules."""
    best, proposal = math.inf, run_placer(DpPlacer(), problem, Budget())
    for placement, value in with_replicas(problem, placements(problem)):
        if value < best and judge_placement(problem, placement).valid:
            best = value
    if proposal.bound is not None:
        assert proposal.bound.value <= best
    if proposal.infeasible:
        assert math.isinf(best)
    if proposal.placement is not None:
        judged = judge_placement(problem, proposal.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)


@examples(8)
@given(shared())
def test_bounds_hold_where_ideals_are_too_many(problem: Problem) -> None:
    """The bound from a path through the graph knows how many devices may share a stage."""
    proposal = run_placer(DpPlacer(DpOptions(max_ideals=1)), problem, Budget())
    if proposal.bound is not None:
        assert proposal.bound.value <= optimum(problem)


@examples(20)
@given(shared(), st.sampled_from([2, 3, 0]))
def test_replication_never_hurts(problem: Problem, most: int) -> None:
    """What may be replicated more is never slower, and with one device per stage the value is the plain optimum."""
    values = []
    for limit in (1, most, 0):
        asked = problem.with_(constraints=replace(problem.constraints, replicas=limit))
        proposal = run_placer(DpPlacer(), asked, Budget())
        values.append(math.inf if proposal.placement is None else judge_placement(asked, proposal.placement).value)
    assert values[1] <= values[0] * (1 + 1e-9)
    assert values[2] <= values[1] * (1 + 1e-9)
    if math.isfinite(values[0]):
        plain = min(value for _, value in placements(problem))
        assert values[0] == pytest.approx(plain, rel=1e-11, abs=1e-15)


@examples(20)
@given(shared())
def test_more_samples_per_step_never_hurt(problem: Problem) -> None:
    """The longer a step, the less a sample pays for it, once a step has as many samples as there are devices."""
    values = []
    for samples in (problem.n_devices, 2 * problem.n_devices, 10**9):
        asked = problem.with_(objective=replace(problem.objective, step_samples=samples))
        proposal = run_placer(DpPlacer(), asked, Budget())
        values.append(math.inf if proposal.placement is None else judge_placement(asked, proposal.placement).value)
    assert values == sorted(values, reverse=True) or values == pytest.approx(sorted(values, reverse=True), rel=1e-11)


@examples(10)
@given(shared(transfers=None, memory_model=None, wires=True), st.booleans())
def test_no_placer_bounds_what_it_cannot_see(problem: Problem, contiguous: bool) -> None:
    """Whoever is asked, the bound of the result is below every placement with replicas."""
    problem = problem.with_(constraints=replace(problem.constraints, contiguous=contiguous))
    known = [
        (placement, value)
        for placement, value in with_replicas(problem, placements(problem))
        if placement.replicas is not None
    ]
    for name in ("auto", "cover", "cpsat"):
        if registry.create(name).supports(problem) is None:
            result = place(problem, name, Budget(1.0))
            lower = [placement for placement, value in known if value < result.lower_bound * (1 - 1e-9)]
            assert not any(judge_placement(problem, placement).valid for placement in lower)


def layers(count: int, devices: int, *, seconds: float = 1.0, weight: int = 8, memory: float = 1e6) -> Problem:
    """Layers in a row with backward twins on equal devices, tensors of 4 B and links of 64 B/s; any replicas."""
    builder = GraphBuilder()
    for op in range(count):
        builder.add_op(f"f{op}", "Op", group=op)
        builder.use_weight(builder.add_weight(f"w{op}", shape=(weight,), dtype="int8"), op)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=4)
    for op in reversed(range(count)):
        builder.add_op(f"b{op}", "Op", group=op, backward=True)
        if op < count - 1:
            builder.add_edge(builder.n_ops - 2, builder.n_ops - 1)
        builder.add_tensor(builder.n_ops - 1, nbytes=4)
    machines = tuple(Device(f"acc{d}", memory=memory) for d in range(devices))
    links = [Link(*ends, 64.0) for d in machines for ends in ((d.name, HOST), (HOST, d.name))]
    graph, cluster = builder.build(), Cluster(machines, tuple(links))
    table = CostTable.given(np.full((graph.n_ops, devices), seconds), transfer_seconds_of(graph, cluster))
    objective = Objective("throughput", memory="sum")
    return Problem(graph, cluster, table, objective, Constraints(contiguous=True, replicas=0))


def test_a_slow_layer_is_shared() -> None:
    """One layer of 2 s on four devices: 2 / 4 s each and 2 · 3/4 · 8 B / 64 B/s for four samples."""
    result = place(layers(1, 4), "dp")
    assert result.status.outcome is Outcome.OPTIMAL
    assert result.value == pytest.approx(0.5 + 2 * 3 / 4 * 8 / 64 / 4)
    assert result.placement is not None and result.placement.replicas is not None
    assert result.placement.replicas.tolist() == [0, 0, 0, 0]


def test_heavy_weights_are_not_shared() -> None:
    """Where to keep weights the same would take longer than to compute, stages have one device each."""
    problem = layers(4, 2, weight=10**4)
    result = place(problem, "dp")
    assert result.status.outcome is Outcome.OPTIMAL
    assert result.placement is not None and result.placement.replicas is None
    assert place(layers(4, 2, weight=1), "dp").value < result.value


def test_members_keep_memory() -> None:
    """All of four layers would be fastest on every device, and two of them fit."""
    whole, tight = place(layers(4, 4), "dp"), place(layers(4, 4, memory=16.0), "dp")
    assert whole.placement is not None and tight.placement is not None
    assert len(np.unique(whole.placement.device)) == 1 and len(np.unique(tight.placement.device)) == 2
    assert tight.judgement is not None and tight.judgement.valid
    assert all(use.peak == 16.0 for use in tight.judgement.devices)


def test_lines_replicate_too() -> None:
    """On a chain dpl finds what dp proves; with too many ideals dp falls back to such a line."""
    problem = layers(9, 5)
    proved = place(problem, "dp")
    assert place(problem, "dpl").value == pytest.approx(proved.value)
    fallen = place(problem, "dp", options={"max_ideals": 3})
    assert fallen.value == pytest.approx(proved.value)
    assert fallen.bound.method != "ideals dynamic program" and fallen.lower_bound <= proved.value


def test_long_lines_with_many_devices_are_cut_shorter() -> None:
    """The work of a line with replicas is bounded: fewer segments where more devices may share a stage."""
    problem = layers(3, 40)
    graph = contract(problem)
    plain = problem.with_(constraints=replace(problem.constraints, replicas=1))
    costs = [price_stages(each, graph.component, graph.n, each.capacity).costs for each in (problem, plain)]
    assert count_segments(costs[0]) < count_segments(costs[1])
    assert place(problem, "dpl").value < place(plain, "dpl").value


def test_equal_answers_are_named_alike() -> None:
    """Devices and their replicas are named in the order of the stages: the same answer comes twice."""
    one, other = (place(layers(5, 4), "dp").placement for _ in range(2))
    assert one == other and one is not None
    first = [int(one.device[op]) for op in range(5)]
    assert first == sorted(first) and first[0] == 0


def test_nodes_of_devices_may_share_stages() -> None:
    """Two nodes of two devices with slow links between them: the bound holds where stages fill whole nodes."""
    problem = layers(4, 4, weight=1)
    names = problem.cluster.names
    ends = [(a, b) for a in (*names, HOST) for b in (*names, HOST) if a != b]
    near = [{"acc0", "acc1"}, {"acc2", "acc3"}]
    links = tuple(Link(a, b, 640.0 if {a, b} in near else 6.4) for a, b in ends)
    cluster = Cluster(problem.cluster.devices, links, "direct")
    costs = CostTable.given(problem.costs.op_seconds, transfer_seconds_of(problem.graph, cluster))
    problem = problem.with_(cluster=cluster, costs=costs)
    found = place(problem, "dp")
    known = [
        value for placement, value in with_replicas(problem, placements(problem)) if placement.replicas is not None
    ]
    assert found.lower_bound <= min(known)
    assert found.placement is not None and found.placement.replicas is not None
    assert found.value == pytest.approx(min(known))
