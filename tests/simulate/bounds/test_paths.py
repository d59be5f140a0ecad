"""Bounds from paths: by hand, and against every placement and every way of cutting calls of small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from published import ROOT, needs_workloads
from simulate_problems import random_problem, seeded
from soak import enough, seeds

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.readers.workload import read_workload
from placewise.simulate import evaluate, judge_placement, lower_bound
from placewise.simulate.bounds.cheapest_call import CallCosts, CheapestCall, call_costs
from placewise.simulate.bounds.paths import (
    _fits,
    hop_bound,
    list_long_paths,
    longest_path,
    path_bound,
    path_positions,
)
from placewise.simulate.problem_arrays import arrays_of

SUBGRAPH = Objective("latency", execution="subgraph", memory="sum")


def rows_of(problem: Problem) -> list[np.ndarray]:
    """Every placement [n_ops] that keeps groups together on devices that may run them."""
    homes = [
        np.flatnonzero(problem.allowed[problem.block == block].all(axis=0)).tolist()
        for block in range(problem.n_blocks)
    ]
    return [np.array(choice, np.int32)[problem.block] for choice in itertools.product(*homes)]


def valid_values(problem: Problem) -> list[float]:
    """Values of the valid placements, the calls cut by the published rule, least first; only the first few."""
    rows = rows_of(problem)
    if not rows:
        return []
    values = evaluate(problem, np.stack(rows))
    for k in np.argsort(values, kind="stable").tolist():
        if np.isfinite(values[k]) and judge_placement(problem, Placement(rows[k])).valid:
            return [float(values[k])]
    return []


def grouped(problem: Problem, seed: int) -> Problem:
    """The same problem with neighbours in the order of the ops colocated now and then."""
    joined = np.random.default_rng(seed).random(problem.n_ops) < 0.6
    ops = replace(problem.graph.ops, group=np.cumsum(joined))
    return problem.with_(graph=replace(problem.graph, ops=ops))


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("memory", ["live", "sum"])
def test_no_placement_is_below_the_bound(memory, groups):
    """Every placement of 150 random problems with scarce memory, links of all kinds and colocation; on average the
    bound of the first 25 reaches as much of their best values as ever.
    """
    bounded, tight, shares = 0, 0, []
    for seed in seeds(100):
        problem = random_problem(
            seeded(seed), max_ops=6, max_devices=3, objective=SUBGRAPH, rules=seed % 3 == 0, scarce=seed % 4 != 0
        )
        problem = problem.with_(objective=replace(SUBGRAPH, memory=memory))
        problem = grouped(problem, seed) if groups else problem
        bound = path_bound(problem)
        for best in valid_values(problem):
            assert bound.value <= best
            bounded, tight = bounded + 1, tight + (bound.value > 0 and bound.value >= best * (1 - 1e-9))
            shares += [bound.value / best] if best > 0 and seed < 25 else []
    assert np.mean(shares) >= {"live": (0.787, 0.830), "sum": (0.831, 0.822)}[memory][groups]
    assert bounded > enough(40)
    assert tight > 6


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("execution", ["operator", "sequential"])
def test_hops_are_never_too_many(execution, groups):
    """Every placement of 150 random problems in the other executions, and often one that costs just as much; on
    average the bound of the first 25 reaches as much of their best values as ever.
    """
    bounded, tight, shares = 0, 0, []
    for seed in seeds(100):
        problem = random_problem(
            seeded(seed), max_ops=6, max_devices=3, objective=Objective(execution=execution), rules=seed % 3 == 0,
            scarce=seed % 4 != 0,
        )  # fmt: skip
        problem = grouped(problem, seed) if groups else problem
        bound = hop_bound(problem)
        for best in valid_values(problem):
            assert bound.value <= best
            bounded, tight = bounded + 1, tight + (bound.value > 0 and bound.value >= best * (1 - 1e-9))
            shares += [bound.value / best] if best > 0 and seed < 25 else []
    assert np.mean(shares) >= {"operator": (0.806, 0.857), "sequential": (0.661, 0.705)}[execution][groups]
    assert bounded > enough(40)
    assert tight > 3


def test_memory_forces_a_hop():
    """Four ops of 1 s, two bytes per accelerator: the cheapest place to cross costs 1 s each way, staged."""
    for execution in ("operator", "sequential"):
        problem = in_a_row([1, 1, 1, 1], [5, 1, 5, 5], memory=2, slow=100)
        problem = problem.with_(objective=Objective(execution=execution, memory="sum"))
        assert hop_bound(problem).value == pytest.approx(4 + 2, rel=1e-9)
        assert lower_bound(problem, work=0) == hop_bound(problem)
        assert min(valid_values(problem)) == pytest.approx(6)


def test_no_calls_are_below_the_bound():
    """Any numbers of calls on any placement that keeps resident memory: the bound is below every one that can run."""
    rng = np.random.default_rng(0)
    ran = 0
    for seed in seeds(120):
        problem = random_problem(seeded(seed), max_ops=6, max_devices=3, objective=SUBGRAPH, scarce=seed % 2 == 0)
        problem = problem.with_(objective=SUBGRAPH)
        problem = grouped(problem, seed) if seed % 3 == 0 else problem
        bound, rows = path_bound(problem), rows_of(problem)
        for _ in range(12):
            device = rows[rng.integers(len(rows))]
            judgement = judge_placement(problem, Placement(device, rng.integers(0, 4, problem.n_ops)))
            if judgement.valid:
                assert bound.value <= judgement.value
                ran += 1
    assert ran > 150


def test_what_lies_between_is_in_the_call():
    """a → b → d and a → c → d: a call with a, b and d has c too, and four bytes do not fit, so that it is cut."""
    builder = GraphBuilder()
    for op, sources in enumerate(((), (0,), (0,), (1, 2))):
        builder.add_op("abcd"[op], "Op", state_bytes=1)
        builder.add_tensor(op, nbytes=1)
        for source in sources:
            builder.add_edge(source, op)
    devices = (Device("acc0", memory=3), Device("acc1", memory=3), Device("cpu", kind="cpu"))
    cluster = Cluster(devices, tuple(Link(*ends, 1.0) for d in ("acc0", "acc1") for ends in ((d, HOST), (HOST, d))))
    transfer = np.zeros((4, len(cluster.class_bandwidth)))
    transfer[:, 1:] = 5.0
    seconds = np.array([[3.0, 3.0, 100.0]] * 2 + [[1.0, 1.0, 100.0]] + [[3.0, 3.0, 100.0]])
    problem = Problem(builder.build(), cluster, CostTable.given(seconds, transfer), SUBGRAPH)
    assert path_bound(problem).value == pytest.approx(3 + 5 + 5 + (3 + 1 + 3), rel=1e-9)
    assert min(valid_values(problem)) == pytest.approx(20)


def test_the_cheapest_call_is_the_cheapest():
    """Against all sets of ops: no call that fits is cheaper, and where memory is plenty the cheapest costs as much."""
    compared = 0
    for seed in seeds(120):
        problem = random_problem(seeded(seed), max_ops=7, max_devices=3, objective=SUBGRAPH, scarce=seed % 2 == 0)
        problem = problem.with_(objective=SUBGRAPH)
        costs = call_costs(problem)
        network, rng = CheapestCall(problem, costs), np.random.default_rng(seed)
        side = rng.integers(0, 3, problem.n_ops)
        inside, outside = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
        if not len(inside) or not np.isfinite(costs.seconds[inside]).all():
            continue
        found, call = network.cheapest(inside, outside)
        assert call[inside].all() and not call[outside].any()
        assert np.isfinite(found) == (costs.held[np.unique(problem.block[inside])].sum() <= costs.room)
        free = np.flatnonzero(side == 2)
        calls = [(*inside, *more) for size in range(len(free) + 1) for more in itertools.combinations(free, size)]
        priced = [price(problem, costs, call) for call in calls]
        assert found <= min((value for value, held in priced if held <= costs.room), default=np.inf)
        if not np.isfinite(costs.room):
            assert found == pytest.approx(min(value for value, _ in priced), rel=1e-9, abs=1e-9)
        compared += 1
    assert compared > enough(50)


def test_segments_of_a_path_are_what_lies_between() -> None:
    """Along random paths, segment by segment: the ops that a call must have, sums over them, and whether they fit."""
    torn = compared = 0
    for seed in seeds(80):
        problem = random_problem(
            seeded(seed), max_ops=9, max_devices=3, objective=SUBGRAPH, scarce=True, training=False
        )
        problem = grouped(problem, seed) if seed % 2 else problem
        a, costs, values = arrays_of(problem), call_costs(problem), np.arange(1.0, problem.n_ops + 1)
        path = longest_path(problem, np.ones(problem.n_ops))
        beside, m = path_positions(problem, path), len(path)
        after = [set[int]() for _ in range(problem.n_ops)]  # the ops that each op leads to, itself too
        for op in reversed(range(problem.n_ops)):
            read = [r for t in range(a.out_offsets[op], a.out_offsets[op + 1]) for r in problem.graph.consumers_of(t)]
            after[op] = {op}.union(*(after[int(reader)] for reader in read))
        sums, fits = beside.sums(values, m), _fits(problem, beside, costs)
        for i, j in itertools.combinations(range(m + 1), 2):
            own = path[i:j].tolist()
            inside = {op for op in range(problem.n_ops) if any(op in after[s] for s in own) and after[op] & set(own)}
            outside = {
                op for op in range(problem.n_ops)
                if any(op in after[int(s)] for s in path[j:]) or after[op] & set(path[:i].tolist())
            }  # fmt: skip
            assert set(beside.inside(i, j).tolist()) == inside and set(beside.outside(i, j).tolist()) == outside
            assert sums[i, j] == values[sorted(inside)].sum()
            held = sum(float(costs.held[block]) for block in {int(problem.block[op]) for op in inside})
            assert fits[i, j] == (held <= costs.room * (1 + 1e-12))
            torn, compared = torn + (not fits[i, j]), compared + 1
    assert torn > enough(40) and compared > enough(300)


def price(problem: Problem, costs: CallCosts, call: tuple[int, ...]) -> tuple[float, float]:
    """Seconds and bytes of a call, op by op and tensor by tensor."""
    graph, members = problem.graph, {int(op) for op in call}
    total = costs.overhead + sum(float(costs.seconds[op]) for op in members)
    for tensor in range(graph.n_tensors):
        readers, maker = set(graph.consumers_of(tensor).tolist()), int(graph.tensors.producer[tensor])
        if maker in members and (graph.tensors.output[tensor] or readers - members):
            total += float(costs.send[tensor])
        if maker not in members and readers & members:
            total += float(costs.receive[tensor])
    blocks = {int(problem.block[op]) for op in members}
    return total, sum(float(costs.held[block]) for block in blocks)


def in_a_row(
    seconds: list[float], links: list[float], memory: float, slow: float, groups: list[int] | None = None
) -> Problem:
    """A chain of ops of one byte on two accelerators and a CPU that is `slow` times slower; tensors take `links`."""
    builder = GraphBuilder()
    for op in range(len(seconds)):
        builder.add_op(f"op{op}", "Op", state_bytes=1, group=groups[op] if groups else -1)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    devices = (Device("a", memory=memory), Device("b", memory=memory), Device("cpu", kind="cpu"))
    cluster = Cluster(devices, tuple(Link(*ends, 1.0) for d in "ab" for ends in ((d, HOST), (HOST, d))))
    transfer = np.zeros((len(seconds), len(cluster.class_bandwidth)))
    transfer[:, 1:] = np.array(links)[:, None]
    table = np.array([[time, time, slow * time] for time in seconds])
    return Problem(builder.build(), cluster, CostTable.given(table, transfer), SUBGRAPH)


def test_a_chain_is_cut_where_it_is_cheap():
    """Four ops of 1 s, two bytes per accelerator: cut in the middle 4 s + 2 × 1 s; all else costs more."""
    problem = in_a_row([1, 1, 1, 1], [5, 1, 5, 5], memory=2, slow=100)
    assert path_bound(problem).value == pytest.approx(4 + 2, rel=1e-9)
    assert min(valid_values(problem)) == pytest.approx(6)


def test_the_host_may_be_cheaper_than_a_transfer():
    """The last op costs 1 s more on the host than elsewhere, and sending its input twice costs 4 s."""
    problem = in_a_row([1, 1, 0.5], [5, 2, 2], memory=2, slow=3)
    assert path_bound(problem).value == pytest.approx(2 + 2 + 1.5, rel=1e-9)
    assert min(valid_values(problem)) == pytest.approx(5.5)


def test_groups_are_not_torn_apart_for_a_cheap_cut():
    """The free tensor is inside a group of two, so that both calls that meet there need one accelerator of 4 bytes."""
    links = [5.0, 0.0, 5.0, 5.0]
    free = in_a_row([1, 1, 1, 1], links, memory=3, slow=100)
    assert path_bound(free).value == pytest.approx(4, rel=1e-9)
    tied = in_a_row([1, 1, 1, 1], links, memory=3, slow=100, groups=[0, 1, 1, 2])
    assert path_bound(tied).value == pytest.approx(4 + 2 * 5, rel=1e-9)
    assert min(valid_values(tied)) == pytest.approx(14)


def test_work_may_end_at_any_moment():
    """Fewer cuts prove less, and never more than all of them."""
    problem = in_a_row([1.0] * 12, [3, 1, 2, 4, 1, 5, 2, 1, 3, 2, 4, 1], memory=3, slow=20)
    values = [path_bound(problem, work=work).value for work in (0, 200, 1000, 1e6)]
    assert values[0] == 0
    assert values == sorted(values)
    stopped = path_bound(problem, go_on=lambda: False).value
    assert 0 < stopped <= values[-1]


@needs_workloads
def test_bert24_is_solved():
    """The value that the published greedy reaches on 24 layers of BERT, 100.2185 ms, is optimal."""
    problem = read_workload(
        ROOT / "dnn-partitioning/latency/LayerGraphs/bert24_inference.json", objective="latency"
    ).problem
    assert problem is not None
    assert path_bound(problem).value == pytest.approx(0.1002185, rel=1e-6)


def test_every_weight_has_a_path_of_its_own():
    """Four ways to be longest: 4 s and 6 s of input, 5 s of work, 3 s on the host, three ops of no time: 10 s count."""
    builder = GraphBuilder()
    for name in ("input", "work", "host", "one", "two", "three"):
        builder.add_op(name, "Op", state_bytes=0)
    builder.add_edge(builder.add_tensor(-1, nbytes=1), 0)
    for op in (3, 4):
        builder.add_edge(builder.add_tensor(op, nbytes=1), op + 1)
    links = (Link("acc", HOST, 1.0), Link(HOST, "acc", 1.0))
    cluster = Cluster((Device("acc"), Device("cpu", kind="cpu")), links)
    never = np.inf
    seconds = np.array([[4.0, never], [5.0, never], [never, 3.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    transfer = np.zeros((3, len(cluster.class_bandwidth)))
    transfer[0, 1:] = 6.0
    problem = Problem(builder.build(), cluster, CostTable.given(seconds, transfer), SUBGRAPH)
    assert path_bound(problem).value == pytest.approx(10.0, rel=1e-9)
    assert min(valid_values(problem)) >= 10.0


def test_long_paths_are_found_by_each_weight():
    """Two calls of 1.6 s with 1 s of overhead each, one of 3.5 s, and three of 0.1 s: the longest in calls, in seconds
    on either device, and in ops; a path of more than 1,500 ops is none.
    """
    builder, seconds = GraphBuilder(), []
    for length, each in ((2, 1.6), (1, 3.5), (3, 0.1)):
        for op in range(length):
            builder.add_op(f"op{len(seconds)}", "Op")
            seconds.append(each)
            if op:
                builder.add_edge(builder.add_tensor(len(seconds) - 2, nbytes=0), len(seconds) - 1)
    links = (Link("acc", HOST, 1.0), Link(HOST, "acc", 1.0))
    cluster = Cluster((Device("acc", call_overhead=1.0), Device("cpu", kind="cpu")), links)
    costs = CostTable.given(np.array(seconds)[:, None] * [1.0, 10.0], np.zeros((3, 2)))
    problem = Problem(builder.build(), cluster, costs, SUBGRAPH)
    a, host = arrays_of(problem), problem.costs.op_seconds[:, 1]
    found = list_long_paths(problem, a, call_costs(problem), host)
    assert [path.tolist() for path in found] == [[0, 1], [2], [3, 4, 5]]
    for length, kept in ((1500, 1), (1501, 0)):
        problem = in_a_row([1.0] * length, [0.0] * length, memory=2.0 * length, slow=1)
        row = list_long_paths(problem, arrays_of(problem), call_costs(problem), np.ones(length))
        assert len(row) == kept


@pytest.mark.parametrize("execution", ["operator", "subgraph", "sequential"])
def test_bounds_are_rounded_down(execution):
    """Forty ops in a row on the host: never above the exact sum of their times, however floating point rounds it."""
    for seed in seeds(16):
        seconds = np.random.default_rng(seed).uniform(0.1, 1.0, 40)
        builder = GraphBuilder()
        for op in range(40):
            builder.add_op(f"op{op}", "Op")
            if op:
                builder.add_edge(builder.add_tensor(op - 1, nbytes=1), op)
        costs = CostTable.given(seconds[:, None], np.zeros((39, 1)))
        objective = Objective("latency", execution=execution)
        problem = Problem(builder.build(), Cluster((Device("cpu", kind="cpu"),)), costs, objective)
        exact = sum(map(Fraction, seconds.tolist()))
        bounds = [lower_bound(problem), path_bound(problem) if execution == "subgraph" else hop_bound(problem)]
        for bound in bounds:
            assert float(exact) * (1 - 1e-9) < bound.value and Fraction(bound.value) <= exact


@pytest.mark.parametrize("execution", ["operator", "sequential"])
@pytest.mark.parametrize(("transfers", "seconds"), [("direct", 2 + 1 + 3), ("staged", 2 + 1 + 1 + 3)])
def test_of_the_tensors_between_two_ops_the_longest_counts(execution, transfers, seconds):
    """a (2 s) and b (3 s) fit on no accelerator together, with tensors of 1 s and of 0.5 s from a to b."""
    builder = GraphBuilder()
    for name in "ab":
        builder.add_op(name, "Op", state_bytes=6)
    for _ in range(2):
        builder.add_edge(builder.add_tensor(0, nbytes=1), 1)
    ends = [(a, b) for a, b in itertools.permutations(("d0", "d1", HOST), 2) if transfers == "direct" or HOST in (a, b)]
    devices = (Device("d0", memory=10.0), Device("d1", memory=10.0))
    cluster = Cluster(devices, tuple(Link(*pair, 1.0) for pair in ends), transfers)
    costs = CostTable.given(np.array([[2.0, 2.0], [3.0, 3.0]]), np.array([[0.0, 1.0], [0.0, 0.5]]))
    objective = Objective("latency", execution=execution, memory="sum")
    bound = hop_bound(Problem(builder.build(), cluster, costs, objective)).value
    assert bound == pytest.approx(seconds, rel=1e-9) and bound <= seconds
