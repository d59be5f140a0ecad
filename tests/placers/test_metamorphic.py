"""What must hold between a problem and a changed one: optima, values and bounds of every placer.

Optima come from `cpsat`, which proves them for staged transfers; random problems are a little larger than brute
force could take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from quick import QUICK
from simulate_problems import OBJECTIVES, random_placement, random_problem, seeded
from soak import examples, seeds
from strategies import MODES

from placewise.core.place import place
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Outcome
from placewise.placers import registry
from placewise.simulate import judge_placement, lower_bound

SHAPES = (Constraints(), Constraints(convex=True), Constraints(contiguous=True))


@st.composite
def staged(draw: st.DrawFn, *, shapes: tuple[Constraints, ...] = SHAPES) -> Problem:
    """A problem of max-load with staged transfers over private links and memory as a sum, which cpsat proves."""
    objective = Objective("throughput", communication=draw(st.sampled_from(MODES)), memory="sum")  # type: ignore[arg-type]
    return random_problem(
        seeded(draw(st.integers(0, 10_000))), max_ops=9, max_devices=3, objective=objective,
        scarce=draw(st.booleans()), alike=draw(st.booleans()), rules=draw(st.booleans()), transfers="staged",
        wires=False, constraints=draw(st.sampled_from(shapes)),
    )  # fmt: skip


def optimum(problem: Problem) -> float:
    """The proved optimum; inf if there is none."""
    result = place(problem, "cpsat")
    assert result.status.outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE), result.status
    return result.value


def no_worse(after: Problem, before: float) -> None:
    """The optimum after a change that can only help, against that before it."""
    assert optimum(after) <= before * (1 + 2e-6)


@examples(10)
@given(staged(), st.booleans())
def test_more_never_hurts(problem: Problem, host: bool) -> None:
    """One device more (an accelerator or a CPU), more memory, faster links, faster devices: no optimum gets worse."""
    best = optimum(problem)
    no_worse(with_another(problem, host=host), best)
    roomier = tuple(replace(device, memory=1.5 * device.memory + 1) for device in problem.cluster)
    no_worse(problem.with_(cluster=replace(problem.cluster, devices=roomier)), best)
    costs = problem.costs
    no_worse(problem.with_(costs=replace(costs, transfer_seconds=costs.transfer_seconds * 0.6)), best)
    slower = costs.op_seconds.copy()
    slower[:, 0] *= 0.5
    no_worse(problem.with_(costs=replace(costs, op_seconds=slower)), best)


@examples(10)
@given(staged(shapes=(Constraints(),)))
def test_looser_rules_never_hurt(problem: Problem) -> None:
    """Free ≤ convex ≤ contiguous, duplex ≤ overlap ≤ blocking, and groups taken apart ≤ groups kept together."""
    shaped = [
        optimum(problem.with_(constraints=replace(problem.constraints, **shape)))
        for shape in ({}, {"convex": True}, {"contiguous": True})
    ]
    assert shaped[0] <= shaped[1] * (1 + 2e-6) and shaped[1] <= shaped[2] * (1 + 2e-6)
    assume(math.isfinite(shaped[0]))
    modes = [
        optimum(problem.with_(objective=replace(problem.objective, communication=mode))) for mode in reversed(MODES)
    ]
    assert modes[0] <= modes[1] * (1 + 2e-6) and modes[1] <= modes[2] * (1 + 2e-6)
    loose = replace(problem.graph.ops, group=np.full(problem.n_ops, -1, np.int32))
    no_worse(problem.with_(graph=replace(problem.graph, ops=loose)), shaped[0])


@examples(10)
@given(staged(), st.permutations(range(3)), st.integers(0, 1000))
def test_names_and_numbers_mean_nothing(problem: Problem, order: list[int], seed: int) -> None:
    """Devices in another order, ops in another order and under other names: the same optimum."""
    best = optimum(problem)
    assert optimum(permuted(problem, [d for d in order if d < problem.n_devices])) == pytest.approx(best, rel=2e-6)
    shuffled = renumbered(problem, np.random.default_rng(seed))
    assert optimum(shuffled) == pytest.approx(best, rel=2e-6)


@examples(10)
@given(staged(shapes=(Constraints(), Constraints(convex=True))), st.integers(0, 100))
def test_halves_of_an_op_are_the_op(problem: Problem, pick: int) -> None:
    """An op cut into two of half its time, in one group and joined by a tensor of no bytes: the same optimum."""
    assert optimum(halved(problem, pick % problem.n_ops)) == pytest.approx(optimum(problem), rel=2e-6)


def every_placer(problem: Problem) -> Iterator[str]:
    """The placers that take a problem."""
    return (name for name in registry.known_names() if registry.create(name).supports(problem) is None)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_change_of_units_changes_only_units(seed: int) -> None:
    """All costs doubled: every placer proposes the same, with twice the value and twice the bound."""
    problem = random_problem(
        seeded(seed), max_ops=8, max_devices=3, objective=OBJECTIVES[seed % 6], scarce=seed % 3 == 0, alike=True,
        constraints=SHAPES[seed % 2 * 2] if seed % 6 < 3 else Constraints(), wires=False,
    )  # fmt: skip
    costs = problem.costs
    twice = problem.with_(
        costs=replace(costs, op_seconds=costs.op_seconds * 2, transfer_seconds=costs.transfer_seconds * 2),
        cluster=replace(
            problem.cluster, devices=tuple(replace(d, call_overhead=2 * d.call_overhead) for d in problem.cluster)
        ),
    )
    assert lower_bound(twice).value == pytest.approx(2 * lower_bound(problem).value, rel=1e-9)
    for name in every_placer(problem):
        plain, doubled = (place(p, name, options=QUICK.get(name)) for p in (problem, twice))
        assert (plain.placement is None) == (doubled.placement is None), name
        assert doubled.status == plain.status, name
        if plain.placement is not None:
            assert doubled.value == pytest.approx(2 * plain.value, rel=1e-9), name
            assert doubled.lower_bound == pytest.approx(2 * plain.lower_bound, rel=1e-6), name


@pytest.mark.parametrize("seed", seeds(6))
def test_names_of_devices_and_ops_are_not_looked_at(seed: int) -> None:
    """Other names of ops and devices: every placer gives the same placement, call by call."""
    problem = random_problem(
        seeded(100 + seed), max_ops=8, max_devices=3, objective=OBJECTIVES[seed % 6], wires=False,
        constraints=Constraints(contiguous=seed == 1),
    )  # fmt: skip
    name_of = {name: f"z{9 - i}" for i, name in enumerate(problem.cluster.names)}
    other = problem.with_(
        cluster=renamed(problem.cluster, name_of),
        graph=replace(
            problem.graph, ops=replace(problem.graph.ops, name=tuple(f"q{i}" for i in reversed(range(problem.n_ops))))
        ),
    )
    for name in every_placer(problem):
        plain, again = (place(p, name, options=QUICK.get(name)) for p in (problem, other))
        assert (plain.placement, plain.value, plain.lower_bound) == (again.placement, again.value, again.lower_bound), (
            name
        )


@examples(100)
@given(st.integers(0, 10_000), st.sampled_from(OBJECTIVES))
def test_the_judge_scales_and_forgets_names(seed: int, objective: Objective) -> None:
    """Any placement of any problem: costs times 4 make the value times 4, to the last bit; devices may be exchanged."""
    choose = seeded(seed)
    problem = random_problem(choose, objective=objective, alike=True)
    placement = random_placement(problem, choose)
    value = judge_placement(problem, placement).value
    costs, devices = problem.costs, problem.cluster.devices
    scaled = problem.with_(
        costs=replace(costs, op_seconds=costs.op_seconds * 4, transfer_seconds=costs.transfer_seconds * 4),
        cluster=replace(problem.cluster, devices=tuple(replace(d, call_overhead=4 * d.call_overhead) for d in devices)),
    )
    assert judge_placement(scaled, placement).value == 4 * value
    if objective.kind == "throughput":
        order = list(range(problem.n_devices))[::-1]
        moved = Placement(np.array([order.index(d) for d in placement.device.tolist()], np.int32))
        assert judge_placement(permuted(problem, order), moved).value == pytest.approx(value, rel=1e-12)


def with_another(problem: Problem, *, host: bool) -> Problem:
    """The problem with one device more: a copy of an accelerator that is there, or else a CPU that is slow."""
    cluster = problem.cluster
    twin = next((d for d in range(len(cluster)) if not cluster.is_host[d]), None)
    seconds = problem.costs.op_seconds
    if host or twin is None:
        devices = (*cluster.devices, Device("extra", kind="cpu"))
        links, column = cluster.links, np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1) * 1.5
    else:
        devices = (*cluster.devices, replace(cluster.devices[twin], name="extra"))
        name, column = cluster.names[twin], seconds[:, twin]
        ends = {name: "extra"}
        links = (
            *cluster.links,
            *(
                replace(link, source=ends.get(link.source, link.source), target=ends.get(link.target, link.target))
                for link in cluster.links
                if name in (link.source, link.target)
            ),
        )
    wider = Cluster(devices, links, cluster.transfers)
    assert wider.class_bandwidth.tolist() == cluster.class_bandwidth.tolist()
    table = CostTable.given(np.column_stack((seconds, column)), problem.costs.transfer_seconds)
    return problem.with_(cluster=wider, costs=table)


def permuted(problem: Problem, order: list[int]) -> Problem:
    """The same problem with the devices, and all that is said of them, in another order."""
    cluster = problem.cluster
    other = Cluster(tuple(cluster.devices[d] for d in order), cluster.links, cluster.transfers)
    places = [*order, len(cluster)]
    old = cluster.link_class[np.ix_(places, places)]
    transfer = np.zeros((problem.graph.n_tensors, len(other.class_bandwidth)))
    for new_class in range(1, transfer.shape[1]):
        transfer[:, new_class] = problem.costs.transfer_seconds[:, old[other.link_class == new_class][0]]
    return problem.with_(cluster=other, costs=CostTable.given(problem.costs.op_seconds[:, order], transfer))


def renamed(cluster: Cluster, name_of: dict[str, str]) -> Cluster:
    """The same cluster under other names."""
    devices = tuple(replace(device, name=name_of[device.name]) for device in cluster)
    end = {**name_of, HOST: HOST}
    links = tuple(replace(link, source=end[link.source], target=end[link.target]) for link in cluster.links)
    return Cluster(devices, links, cluster.transfers)


def renumbered(problem: Problem, rng: np.random.Generator) -> Problem:
    """The same problem with its ops in another topological order, and under the same names."""
    graph = problem.graph
    waits = {
        op: {int(graph.tensors.producer[t]) for t in graph.edges.value[graph.edges.consumer == op]} - {-1}
        for op in range(graph.n_ops)
    }
    order: list[int] = []
    while waits:
        ready = sorted(op for op, before in waits.items() if not before & waits.keys())
        order.append(ready[int(rng.integers(len(ready)))])
        del waits[order[-1]]
    rebuilt, tensors = _rebuilt(graph, order)
    costs = problem.costs
    return problem.with_(graph=rebuilt, costs=CostTable.given(costs.op_seconds[order], costs.transfer_seconds[tensors]))


def _rebuilt(graph: Graph, order: list[int]) -> tuple[Graph, list[int]]:
    """The graph with ops in another order, and the tensors' old numbers in their new order."""
    builder = GraphBuilder()
    weights = [
        builder.add_weight(name, shape=(), dtype="int8", nbytes=int(size), storage=int(storage))
        for name, size, storage in zip(graph.weights.name, graph.weights.bytes, graph.weights.storage, strict=True)
    ]
    new = {}
    for op in order:
        ops = graph.ops
        new[op] = builder.add_op(
            ops.name[op], ops.kind[op], backward=bool(ops.backward[op]), group=int(ops.group[op]),
            state_bytes=int(ops.state_bytes[op]), phase=int(ops.phase[op]),
        )  # fmt: skip
        for weight in graph.weights_of(op):
            builder.use_weight(weights[weight], new[op])
    rank = {op: place for place, op in enumerate(order)}
    maker = graph.tensors.producer.tolist()
    tensors = sorted(range(graph.n_tensors), key=lambda t: (rank[maker[t]] if maker[t] >= 0 else -1, t))
    number = {
        t: builder.add_tensor(
            new[maker[t]] if maker[t] >= 0 else -1, nbytes=int(graph.tensors.bytes[t]), name=graph.tensors.name[t],
            output=bool(graph.tensors.output[t]),
        )
        for t in tensors
    }  # fmt: skip
    for tensor, op in zip(graph.edges.value.tolist(), graph.edges.consumer.tolist(), strict=True):
        builder.add_edge(number[tensor], new[op])
    rebuilt = builder.build(phases=graph.phases)
    assert rebuilt.ops.name == tuple(graph.ops.name[op] for op in order)
    assert rebuilt.tensors.name == tuple(graph.tensors.name[t] for t in tensors)
    return rebuilt, tensors


def halved(problem: Problem, op: int) -> Problem:
    """The problem with `op` in two: the first half reads and keeps what it did, the second makes what it made."""
    graph, costs = problem.graph, problem.costs
    group = graph.ops.group.copy()
    if group[op] < 0:
        group[op] = group.max(initial=0) + 1
    ops = replace(graph.ops, group=group)
    whole, tensors = _rebuilt(replace(graph, ops=ops), list(range(graph.n_ops)))
    builder, kept = GraphBuilder(), whole.ops
    weights = [
        builder.add_weight(name, shape=(), dtype="int8", nbytes=int(size), storage=int(storage))
        for name, size, storage in zip(whole.weights.name, whole.weights.bytes, whole.weights.storage, strict=True)
    ]
    first, second = {}, {}
    for v in range(whole.n_ops):
        facts = {"backward": bool(kept.backward[v]), "group": int(kept.group[v]), "phase": int(kept.phase[v])}
        first[v] = second[v] = builder.add_op(kept.name[v], kept.kind[v], state_bytes=int(kept.state_bytes[v]), **facts)
        if v == op:
            second[v] = builder.add_op("second half", kept.kind[v], **facts)
        for weight in whole.weights_of(v):
            builder.use_weight(weights[weight], first[v])
    number, column = {}, []
    for t, maker in enumerate(whole.tensors.producer.tolist()):
        made_by = second[maker] if maker >= 0 else -1
        size, output = int(whole.tensors.bytes[t]), bool(whole.tensors.output[t])
        number[t] = builder.add_tensor(made_by, nbytes=size, output=output, name=f"t{t}")
        column.append(costs.transfer_seconds[tensors[t]])
    builder.add_edge(builder.add_tensor(first[op], nbytes=0, name="between"), second[op])
    for tensor, reader in zip(whole.edges.value.tolist(), whole.edges.consumer.tolist(), strict=True):
        builder.add_edge(number[tensor], first[reader])
    built = builder.build(phases=whole.phases)
    moves = {f"t{t}": row for t, row in enumerate(column)} | {"between": np.zeros(costs.transfer_seconds.shape[1])}
    seconds = np.insert(costs.op_seconds, op + 1, costs.op_seconds[op] / 2, axis=0)
    seconds[op] = costs.op_seconds[op] / 2
    table = CostTable.given(seconds, np.array([moves[name] for name in built.tensors.name]))
    return problem.with_(graph=built, costs=table)
