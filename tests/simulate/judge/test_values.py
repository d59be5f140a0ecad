"""The judge's values against plain-Python twins, and what must hold of every value."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from simulate_problems import OBJECTIVES, Choose, placed, random_placement, random_problem, seeded
from soak import examples, seeds
from twins import MaxLoad, operator_makespan, sequential_makespan, subgraph_makespan, throughput_value
from twins.operator import upward_ranks as plain_ranks
from twins.plain import Run

from placewise.errors import PlanError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Timeline
from placewise.simulate import Evaluator, evaluate, judge_placement
from placewise.simulate.judge.ranks import upward_ranks

LATENCY = [objective for objective in OBJECTIVES if objective.kind == "latency"]
operator = Objective(execution="operator")


def twin_of(problem: Problem, placement: Placement) -> Run:
    """The plain answer; a throughput has no start times."""
    device = placement.device.tolist()
    call = None if placement.call is None else placement.call.tolist()
    order = None if placement.order is None else placement.order.tolist()
    if problem.objective.kind == "throughput":
        return Run(throughput_value(problem, device), [], [])
    if problem.objective.execution == "operator":
        return operator_makespan(problem, device, order)
    if problem.objective.execution == "subgraph":
        return subgraph_makespan(problem, device, call)
    return sequential_makespan(problem, device)


def hops(timeline: Timeline) -> list[tuple[int, int, int, float, float]]:
    columns = (timeline.tensor, timeline.source, timeline.target, timeline.sent, timeline.arrived)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=1e-12, abs_tol=0)


def agree(problem: Problem, placement: Placement) -> None:
    """The judge, the evaluator and the twin say the same of a placement."""
    judged, run = judge_placement(problem, placement), twin_of(problem, placement)
    assert same(judged.value, run.value)
    if placement.call is None and placement.order is None:
        assert evaluate(problem, placement.device)[0] == judged.value
    if problem.objective.kind == "throughput":
        assert same(MaxLoad(problem)(placement.device), judged.value)
    elif math.isfinite(run.value):
        assert judged.timeline is not None
        assert judged.timeline.start.tolist() == run.start
        assert hops(judged.timeline) == sorted(run.transfers)
        assert same(judged.timeline.makespan, judged.value)
    else:
        assert judged.timeline is None


def with_choices(problem: Problem, placement: Placement, choose: Choose) -> Placement:
    """The placement with call numbers and an order of its own, as its execution understands them."""
    if problem.objective.kind == "throughput":
        return placement
    numbers = np.array([choose(-2, 3) for _ in range(problem.n_ops)], np.int32)
    if problem.objective.execution == "operator":
        return Placement(placement.device, order=numbers)
    if problem.objective.execution == "subgraph":
        return Placement(placement.device, call=numbers)
    return placement


@examples(100)
@given(placed())
def test_twins_on_small_problems(case):
    """Values, start times and hops, on problems that hypothesis can shrink."""
    agree(*case)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_twins_on_many_problems(objective):
    """The same on many larger problems of every objective, full of ties, shared wires and streams."""
    for seed in seeds(200):
        choose = seeded(seed)
        problem = random_problem(choose, max_ops=40, max_devices=5, objective=objective, rules=seed % 4 == 0)
        agree(problem, random_placement(problem, choose))


@pytest.mark.parametrize("objective", LATENCY, ids=str)
def test_calls_and_orders_of_the_placement(objective):
    """The judge follows the calls and priorities that a placement brings, whatever their numbers."""
    for seed in seeds(120):
        choose = seeded(1000 + seed)
        problem = random_problem(choose, max_ops=12, objective=objective)
        agree(problem, with_choices(problem, random_placement(problem, choose), choose))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_times_without_ties(objective):
    """The same with times that are no round numbers."""
    rng = np.random.default_rng(7)
    for seed in seeds(60):
        choose = seeded(2000 + seed)
        problem = random_problem(choose, max_ops=60, objective=objective)
        costs = problem.costs
        table = CostTable.given(
            costs.op_seconds * rng.uniform(0.5, 1, costs.op_seconds.shape),
            costs.transfer_seconds * rng.uniform(0.5, 1, costs.transfer_seconds.shape),
        )
        problem = problem.with_(costs=table)
        placement = random_placement(problem, choose)
        judged, run = judge_placement(problem, placement), twin_of(problem, placement)
        assert same(judged.value, run.value)
        if judged.timeline is not None:
            assert judged.timeline.start.tolist() == pytest.approx(run.start, rel=1e-12)


@pytest.mark.parametrize("transfers", ["staged", "direct"])
@pytest.mark.parametrize("count", [63, 64, 65, 140])
def test_max_load_of_many_devices(count, transfers):
    """More locations than a machine word has bits, on one wire that some links share."""
    rng = np.random.default_rng(count)
    builder = GraphBuilder()
    tensors = [builder.add_tensor(-1, nbytes=1)]
    for op in range(200):
        builder.add_op(f"op{op}", "Op")
        for tensor in rng.choice(tensors, 3).tolist():
            builder.add_edge(tensor, op)
        tensors.append(builder.add_tensor(op, nbytes=1, output=op % 4 == 0))
    devices = tuple(Device(f"d{i}", "cpu" if i % 20 == 3 else "accelerator") for i in range(count))
    names = [device.name for device in devices if not device.is_host]
    ends = [pair for name in names for pair in ((name, HOST), (HOST, name))]
    if transfers == "direct":
        ends += [(a, b) for a in names for b in names if a != b]
    links = tuple(Link(a, b, float(1 + k % 3), shared="wire" * (k % 5 == 0)) for k, (a, b) in enumerate(ends))
    cluster = Cluster(devices, links, transfers)
    transfer = rng.integers(0, 8, (len(tensors), len(cluster.class_bandwidth))) / 4
    transfer[:, 0] = 0
    costs = CostTable.given(rng.integers(0, 8, (200, count)) / 4, transfer)
    problem = Problem(builder.build(), cluster, costs, Objective("throughput", communication="overlap"))
    for row in rng.integers(0, count, (4, 200)).astype(np.int32):
        assert evaluate(problem, row)[0] == throughput_value(problem, row.tolist())


@examples(60)
@given(placed(objective=operator, max_devices=10))
def test_upward_ranks(case):
    """Ranks are those of the definition, to the last bit, so that every machine breaks ties alike."""
    problem, _ = case
    assert upward_ranks(problem).tolist() == plain_ranks(problem)


@examples(60)
@given(placed(objective=operator, max_ops=12))
def test_operator_schedules_are_lawful(case):
    """Seen from outside: inputs before ops, streams kept, queues in order, no idling while an op is ready."""
    problem, placement = case
    timeline = judge_placement(problem, placement).timeline
    assert timeline is not None
    graph, cluster = problem.graph, problem.cluster
    place = cluster.location[placement.device]
    arrived = {
        (t, target): moment
        for t, target, moment in zip(
            timeline.tensor.tolist(), timeline.target.tolist(), timeline.arrived.tolist(), strict=True
        )
    }
    ready = np.zeros(problem.n_ops)
    for op in range(problem.n_ops):
        for t in graph.inputs_of(op).tolist():
            maker = int(graph.tensors.producer[t])
            made = float(timeline.finish[maker]) if maker >= 0 else 0.0
            at_home = place[op] == (place[maker] if maker >= 0 else problem.n_devices)
            ready[op] = max(ready[op], made if at_home else arrived[t, int(place[op])])
    assert (timeline.start >= ready).all()
    for d, device in enumerate(cluster):
        ops = np.flatnonzero(placement.device == d)
        for op in ops.tolist():
            began = timeline.start[op]
            running = (timeline.start[ops] <= began) & (timeline.finish[ops] > began)
            assert running.sum() <= device.streams
            for moment in timeline.finish[ops].tolist():
                if ready[op] <= moment < began:
                    busy = (timeline.start[ops] <= moment) & (timeline.finish[ops] > moment)
                    assert busy.sum() == device.streams
    queue = cluster.queue[timeline.source, timeline.target]
    for q in set(queue.tolist()):
        rows = np.flatnonzero(queue == q)
        rows = rows[np.lexsort((timeline.arrived[rows], timeline.sent[rows]))]
        assert (timeline.sent[rows][1:] >= timeline.arrived[rows][:-1]).all()


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_batches(objective, threads, monkeypatch):
    """A batch is its placements one by one, whatever the number of threads, also with more rows than threads."""
    monkeypatch.setattr(sys.modules[Evaluator.__module__], "LITTLE", 1)
    choose = seeded(5)
    problem = random_problem(choose, max_ops=12, objective=objective)
    rows = np.stack([random_placement(problem, choose).device for _ in range(23)])
    evaluator = Evaluator(problem, threads=threads)
    single = [float(evaluate(problem, row)[0]) for row in rows]
    assert evaluator(rows).tolist() == single
    assert evaluator(rows[:2]).tolist() == single[:2]
    assert evaluator(rows[:0]).tolist() == []


@examples(60)
@given(placed())
def test_scaling(case):
    """Doubling every cost doubles the value and every moment exactly; thrice is thrice but for rounding."""
    problem, placement = case
    value = judge_placement(problem, placement).value
    for factor in (2.0, 3.0):
        devices = [replace(device, call_overhead=device.call_overhead * factor) for device in problem.cluster]
        cluster = Cluster(tuple(devices), problem.cluster.links, problem.cluster.transfers)
        costs = problem.costs
        table = CostTable.given(costs.op_seconds * factor, costs.transfer_seconds * factor)
        scaled = judge_placement(problem.with_(cluster=cluster, costs=table), placement).value
        assert scaled == value * factor if factor == 2 else same(scaled, value * factor)


@examples(100)
@given(placed())
def test_what_the_judge_says_of_devices(case):
    """Ops and compute add up, idle time is what the load leaves of the value, the bottleneck is the busiest."""
    problem, placement = case
    judged = judge_placement(problem, placement)
    seconds = problem.costs.op_seconds[np.arange(problem.n_ops), placement.device]
    assert sum(use.ops for use in judged.devices) == problem.n_ops
    assert same(sum(use.compute for use in judged.devices), float(seconds.sum()))
    for use in judged.devices:
        assert use.idle == max(judged.value - use.load, 0.0)
        assert use.peak >= use.resident
        assert use.waits_for in ("", "host", *problem.cluster.names, *problem.cluster.wires)
    loads = {use.device: use.load for use in judged.devices} | dict(judged.wires)
    assert loads[judged.bottleneck] == max(loads.values())
    if problem.objective.kind == "throughput":
        assert judged.value == max(loads.values())
    else:
        shared = problem.objective.execution == "operator"
        for use in judged.devices:
            assert use.load == (use.compute if shared else use.compute + use.send + use.receive)
    if judged.timeline is not None:
        moved = judged.timeline.arrived - judged.timeline.sent
        for d, use in enumerate(judged.devices):
            assert same(use.send, float(moved[judged.timeline.source == d].sum()))
            assert same(use.receive, float(moved[judged.timeline.target == d].sum()))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_an_op_where_it_cannot_run(objective):
    """The value is infinite and nothing is NaN, wherever in the graph the op stands."""
    for seed in seeds(50):
        choose = seeded(3000 + seed)
        problem = random_problem(choose, max_ops=8, objective=objective)
        placement = random_placement(problem, choose)
        seconds = problem.costs.op_seconds.copy()
        lame = choose(0, problem.n_ops - 1)
        seconds[lame, placement.device[lame]] = math.inf
        costs = CostTable.given(seconds, problem.costs.transfer_seconds)
        judged = judge_placement(problem.with_(costs=costs), placement)
        assert judged.value == math.inf
        assert "support" in {violation.kind for violation in judged.violations}
        for use in judged.devices:
            assert not math.isnan(use.load + use.send + use.receive + use.peak)
            assert not math.isnan(use.idle)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_everything_costs_nothing(objective):
    """Zero costs everywhere are worth zero seconds: ties alone cannot stall a schedule."""
    for seed in seeds(40):
        choose = seeded(4000 + seed)
        problem = random_problem(choose, max_ops=20, objective=objective)
        cluster = Cluster(
            tuple(replace(device, call_overhead=0.0) for device in problem.cluster),
            problem.cluster.links,
            problem.cluster.transfers,
        )
        costs = CostTable.given(problem.costs.op_seconds * 0, problem.costs.transfer_seconds * 0)
        problem = problem.with_(cluster=cluster, costs=costs)
        placement = random_placement(problem, choose)
        assert judge_placement(problem, placement).value == twin_of(problem, placement).value
        if objective.execution != "subgraph" or objective.kind == "throughput":
            assert judge_placement(problem, placement).value == 0


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_a_graph_without_ops(objective):
    """An empty model takes no time and breaks no rule."""
    cluster = Cluster((Device("cpu", kind="cpu"),))
    problem = Problem(GraphBuilder().build(), cluster, CostTable.given(np.zeros((0, 1)), np.zeros((0, 1))), objective)
    judged = judge_placement(problem, Placement(np.zeros(0, np.int32)))
    assert judged.value == 0
    assert judged.valid


def test_placements_that_are_none():
    """Missing ops, unknown devices and wrong shapes are refused in words."""
    problem = random_problem(seeded(1), max_ops=5)
    whole = random_placement(problem, seeded(2)).device
    for device in (whole[:-1], np.where(np.arange(len(whole)) == 0, -1, whole), whole + problem.n_devices):
        with pytest.raises(PlanError):
            judge_placement(problem, Placement(device))
        with pytest.raises(PlanError):
            evaluate(problem, device)
