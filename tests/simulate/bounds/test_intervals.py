"""Intervals of a path: by hand, and against every placement and order of small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from bounded_problems import solve_intervals, tangled_problem
from simulate_problems import random_placement, random_problem, seeded
from soak import enough, seeds
from toy_problems import toy

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import evaluate, judge_placement, lower_bound
from placewise.simulate.blocks import best_seconds
from placewise.simulate.bounds import intervals
from placewise.simulate.bounds.intervals import (
    METHOD,
    SOLVED,
    IntervalProgram,
    _reach,
    begin_chain,
    bound_interval,
    least_delays,
)

OPERATOR = Objective("latency", execution="operator", memory="sum")


def best_value(problem: Problem) -> float:
    """The least value of all placements that keep groups together, with room or without; inf if there is none."""
    homes = [
        np.flatnonzero(problem.allowed[problem.block == block].all(axis=0)).tolist()
        for block in range(problem.n_blocks)
    ]
    rows = [np.array(choice, np.int32)[problem.block] for choice in itertools.product(*homes)]
    return float(evaluate(problem, np.stack(rows)).min()) if rows else np.inf


def test_no_placement_in_any_order_is_below_the_bound():
    """Random problems with links of all kinds, streams and colocation; now and then the bound is reached."""
    bounded = tight = sharper = 0
    for seed in seeds(160):
        problem = random_problem(
            seeded(seed), max_ops=7, max_devices=3, objective=OPERATOR, rules=seed % 3 == 0, alike=seed % 2 == 0,
        )  # fmt: skip
        best, bound = best_value(problem), solve_intervals(problem).value
        if best < np.inf:
            assert bound <= best
            bounded, tight = bounded + 1, tight + (bound > 0 and bound >= best * (1 - 1e-4))
    for seed in seeds(120):
        problem = random_problem(seeded(900 + seed), max_ops=14, max_devices=3, objective=OPERATOR, alike=True)
        bound, longest = solve_intervals(problem).value, critical_path(problem)
        sharper += bound > longest * (1 + 1e-6)
        for number in range(12):
            device = random_placement(problem, seeded(number)).device
            order = np.random.default_rng(number).permutation(problem.n_ops)
            judgement = judge_placement(problem, Placement(device, order=order))
            assert bound <= judgement.value
    assert bounded > enough(100)
    assert tight > 0
    assert sharper > 0


def critical_path(problem: Problem) -> float:
    """The longest path with every op at its best time, op by op."""
    graph, reach = problem.graph, np.zeros(problem.n_ops)
    best = np.where(problem.allowed, problem.costs.op_seconds, np.inf).min(axis=1)
    for op in range(problem.n_ops):
        reach[op] += best[op]
        for tensor in range(graph.out_offsets[op], graph.out_offsets[op + 1]):
            for reader in graph.consumers_of(tensor).tolist():
                reach[reader] = max(reach[reader], reach[op])
    return float(reach.max(initial=0.0))


def fork(
    width: int, link: float, *, seconds: float = 1.0, layers: int = 1, devices: int = 4, group: bool = False
) -> Problem:
    """Layers of `width` ops between two ops of 1 s, on equal devices; tensors take `link` seconds."""
    builder = GraphBuilder()
    end = builder.add_op("begin", "Op")
    table = [1.0]
    for layer in range(layers):
        sent = builder.add_tensor(end, nbytes=1)
        inner = [builder.add_op(f"{layer}.{k}", "Op", group=layer if group else -1) for k in range(width)]
        end = builder.add_op(f"end{layer}", "Op")
        for op in inner:
            builder.add_edge(sent, op)
            builder.add_edge(builder.add_tensor(op, nbytes=1), end)
        table += [seconds] * width + [1.0]
    names = [f"d{k}" for k in range(devices)]
    links = tuple(Link(*ends, 1.0) for ends in itertools.permutations((*names, HOST), 2))
    cluster = Cluster(tuple(Device(name) for name in names), links, "direct")
    transfer = np.zeros((builder.build().n_tensors, len(cluster.class_bandwidth)))
    transfer[:, 1:] = link
    costs = CostTable.given(np.array(table)[:, None].repeat(devices, axis=1), transfer)
    return Problem(builder.build(), cluster, costs, OPERATOR)


@pytest.mark.parametrize(("link", "between"), [(0.0, 1.0), (0.5, 2.0), (5.0, 3.0)])
def test_parallel_ops_wait_for_each_other_or_for_transfers(link, between):
    """Three ops of 1 s: in parallel with free links, two at home with quick links, all three at home with slow ones."""
    problem = fork(3, link)
    bound = solve_intervals(problem).value
    assert bound == pytest.approx(1 + between + 1, rel=1e-5)
    assert bound <= best_value(problem)
    assert best_value(problem) == pytest.approx(1 + between + 1)


def test_a_colocation_group_is_on_one_device():
    """Three ops of a group run one after the other even where links are free."""
    assert solve_intervals(fork(3, 0.0)).value == pytest.approx(3, rel=1e-5)
    assert solve_intervals(fork(3, 0.0, group=True)).value == pytest.approx(5, rel=1e-5)


def test_equal_layers_add_up_and_are_solved_once():
    """Thirty layers bring thirty times as much with the work of a few programs, and `lower_bound` uses it."""
    problem = fork(3, 5.0, layers=30)
    assert solve_intervals(problem, work=0.3).value == pytest.approx(1 + 30 * 4, rel=1e-5)
    bound = lower_bound(problem)
    assert bound.method == METHOD
    assert bound.value == pytest.approx(121, rel=1e-5)


def test_two_ends_may_be_on_two_devices():
    """One of two ops of 2 s stays, the other moves with the end: 2 s and a transfer; there and back if ends are one."""
    program = IntervalProgram((0, 2000, 2000, 0), ((0, 1, 900), (0, 2, 900), (1, 3, 900), (2, 3, 900)), (0, 1, 2, 3), 1)
    assert bound_interval(program, 1.0)[0] == 2900
    together = program._replace(block=(0, 1, 2, 0))
    assert bound_interval(together, 1.0)[0] == 3800
    assert bound_interval(together._replace(streams=2), 1.0)[0] == 2000


def test_work_may_end_at_any_moment():
    """Without work the critical path is left; more work never proves less."""
    problem = fork(4, 3.0, layers=6)
    values = [solve_intervals(problem, work=work).value for work in (0.0, 0.05, 1.0)]
    assert values[0] == pytest.approx(critical_path(problem), rel=1e-9)
    assert values == sorted(values)
    assert solve_intervals(problem, go_on=lambda: False).value == values[0]


def test_the_quickest_transfer_between_two_devices_counts():
    """Staged transfers take both hops; two devices in one place take none."""
    ends = ((a, b) for a, b in itertools.permutations(("a", "b", HOST), 2) if HOST in (a, b))
    links = tuple(Link(*pair, 1.0) for pair in ends)
    builder = GraphBuilder()
    builder.add_op("x", "Op")
    builder.add_tensor(0, nbytes=1)
    graph = builder.build()
    for hosts, least in ((0, 3.0), (1, 1.5), (2, 0.0)):
        devices = (Device("a"), Device("b"), *(Device(f"cpu{k}", kind="cpu") for k in range(hosts)))
        cluster = Cluster(devices, links, "staged")
        transfer = np.zeros((1, len(cluster.class_bandwidth)))
        transfer[:, 1:] = 1.5
        costs = CostTable.given(np.ones((1, len(devices))), transfer)
        assert least_delays(Problem(graph, cluster, costs, OPERATOR)).tolist() == [least]


def test_the_bound_is_rounded_down():
    """Never above the exact sum of a chain of forks on links that are too slow to use."""
    for seed in seeds(8):
        rng = np.random.default_rng(seed)
        problem = fork(3, 1e3, layers=5)
        seconds = rng.uniform(0.1, 1.0, problem.n_ops)
        costs = CostTable.given(seconds[:, None].repeat(4, axis=1), problem.costs.transfer_seconds)
        exact = sum(map(Fraction, seconds.tolist()))
        bound = solve_intervals(problem.with_(costs=costs)).value
        assert float(exact) * (1 - 1e-4) < bound and Fraction(bound) <= exact


def reachable(problem: Problem) -> np.ndarray:
    """Which ops lead to which, by themselves or others [n, n]."""
    graph, reach = problem.graph, np.zeros((problem.n_ops, problem.n_ops), np.bool_)
    for op in reversed(range(problem.n_ops)):
        for tensor in range(graph.out_offsets[op], graph.out_offsets[op + 1]):
            for reader in graph.consumers_of(tensor).tolist():
                reach[op] |= reach[reader]
                reach[op, reader] = True
    return reach


def longest_by(ends: np.ndarray, table: np.ndarray) -> tuple[list[float], list[int]]:
    """When each op of a path ends at least, and the op before the last interval, pair by pair."""
    reach, came = [float(ends[0])], [0]
    for j in range(1, len(ends)):
        options = {i: reach[i] + float(table[i, j - i]) for i in range(j) if j - i < table.shape[1]}
        came.append(max(options, key=lambda i: options[i]))
        reach.append(options[came[-1]] + float(ends[j]))
    return reach, came


def test_intervals_hold_what_lies_between_their_ends():
    """Number, seconds, and seconds along the path, of every interval of random chains, op by op; what a chain proves
    before and after each op follows from any values of intervals, and those without a choice are solved.
    """
    forked = solved = 0
    for seed in seeds(160):
        problem = tangled_problem(seeded(seed), "operator", wide=seed % 2 == 0, n_ops=(6, 12))
        some = np.random.default_rng(seed).random(problem.n_ops) < 0.8
        problem = problem.with_(costs=replace(problem.costs, op_seconds=problem.costs.op_seconds * some[:, None]))
        chain = begin_chain(problem)
        if chain is None:
            continue
        reach, path, seconds = reachable(problem), chain._path, best_seconds(problem, np.arange(problem.n_devices))
        m, values = len(path), np.random.default_rng(seed).integers(0, 9, chain._value.shape) / 4
        for i, j in itertools.combinations(range(m), 2):
            inside = reach[path[i]] & reach[:, path[j]]
            most, along = float(seconds[inside].sum()), float(seconds[path[i + 1 : j]].sum())
            at = i, j - i
            assert (chain._count[at], chain._most[at], chain._along[at], chain._value[at]) == (
                inside.sum(), most, along, along
            )  # fmt: skip
            simple = inside.sum() == j - i - 1 or most <= along
            assert chain._level[at] == (SOLVED if simple else 0)
            forked, solved = forked + (not simple), solved + simple
        chain._value = values
        times, ends = chain.list_times(), seconds[path]
        back = np.array([[values[m - 1 - i - w, w] if i + w < m else 0.0 for w in range(values.shape[1])]
                         for i in range(m)])  # fmt: skip
        before, after = longest_by(ends, values)[0], longest_by(ends[::-1], back)[0][::-1]
        assert times.start == pytest.approx(np.array(before) - ends, rel=1e-9, abs=1e-12)
        assert times.rest == pytest.approx(np.array(after) - ends, rel=1e-9, abs=1e-12)
        assert times.value == pytest.approx(before[-1], rel=1e-9) and times.value <= before[-1]
        assert (times.start <= np.array(before) - ends).all() and (times.rest <= np.array(after) - ends).all()
        for band in {m - 1, max(m // 2, 1)}:
            found, came = _reach(ends, values[:, : band + 1])
            assert (found.tolist(), came.tolist()[1:]) == (
                longest_by(ends, values[:, : band + 1])[0], longest_by(ends, values[:, : band + 1])[1][1:]
            )  # fmt: skip
    assert forked > enough(100) and solved > enough(400)


def test_only_paths_of_three_ops_or_more_have_intervals(monkeypatch):
    """And no more than are worth the time, of ops that can all run."""
    assert begin_chain(toy().with_(objective=OPERATOR)) is None
    monkeypatch.setattr(intervals, "LONGEST", 5)
    for layers, found in ((0, False), (1, True), (2, True), (3, False)):
        problem = fork(1, 0.0, layers=layers)
        assert (begin_chain(problem) is not None) == found
        never = CostTable.given(np.full_like(problem.costs.op_seconds, np.inf), problem.costs.transfer_seconds)
        assert begin_chain(problem.with_(costs=never)) is None
