"""topo, sct, heft, critical_path: schedules worked out by hand, the linear program against brute force, tight memory.

Every link moves a byte in a second, and devices send to each other directly unless a test says otherwise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rules import keeps_the_rules, placements
from published import WORKLOADS, needs_workloads
from soak import examples
from strategies import problems

from placewise import _native
from placewise.errors import PlacerError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Floats
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers.base import Budget, Stopwatch, run_placer
from placewise.placers.list_scheduling.favourite_child import (
    find_favourite_children,
    list_pairs,
    select_favourites,
    solve_relaxation,
)
from placewise.placers.list_scheduling.fewer_devices import keep_best_devices, rank_devices
from placewise.placers.registry import create
from placewise.placers.shared.partitions import repair_and_select
from placewise.placers.shared.rules import find_broken_rule
from placewise.readers.workload import read_workload
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.judge.ranks import mean_op_seconds

LISTS = ("critical_path", "etf", "heft", "sct", "topo")
SUM = Objective(memory="sum")


def cluster(*devices: Device) -> Cluster:
    """Devices with a link of 1 byte/s between any two, and to and from host memory."""
    ends = [device.name for device in devices if not device.is_host] + [HOST]
    links = tuple(Link(a, b, 1.0) for a in ends for b in ends if a != b)
    return Cluster(devices, links, "direct")


def gpus(count: int, memory: float = math.inf) -> Cluster:
    """Equal accelerators."""
    return cluster(*(Device(f"gpu{i}", memory=memory) for i in range(count)))


def problem_of(
    machines: Cluster,
    seconds: Floats | list[list[float]],
    edges: dict[tuple[int, int], int],
    *,
    sizes: list[int] | None = None,
    **options: object,
) -> Problem:
    """Ops with these seconds, joined by tensors of so many bytes and seconds, that need `sizes` bytes of state."""
    builder, table = GraphBuilder(), np.asarray(seconds, np.float64)
    for op in range(len(table)):
        builder.add_op(f"op{op}", "A", state_bytes=sizes[op] if sizes else 0)
    for (source, target), size in edges.items():
        builder.add_edge(builder.add_tensor(source, nbytes=size), target)
    graph = builder.build()
    transfer = np.outer(graph.tensors.bytes, np.arange(len(machines.class_bandwidth)) > 0).astype(np.float64)
    return Problem(graph, machines, CostTable.given(table, transfer), **options)  # type: ignore[arg-type]


def placed(problem: Problem, name: str, **options: object) -> list[int]:
    """What a placer proposes."""
    proposal = run_placer(create(name, options), problem, Budget())
    assert proposal.placement is not None, proposal
    return proposal.placement.device.tolist()


def test_heft_fills_gaps() -> None:
    """The device that waits for a transfer runs a short op meanwhile, although that has the lowest rank.

    Means: op0 1, op1 2, op2 2 (only on gpu1, pinned), op3 1. Ranks: op0 1 + 4 + 2 = 7, op1 2, op2 2, op3 1. op0 goes
    to gpu0 (0 to 1), op1 to gpu0 (1 to 3), op2 waits on gpu1 for 4 s (5 to 7). op3 then finds gpu1 idle from 0 to 5:
    it ends at 1 there and at 4 behind op1.
    """
    rules = Constraints(pins=(Rule("op[01]$", "gpu0"), Rule("op2$", "gpu1")))
    table = [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
    problem = problem_of(gpus(2), table, {(0, 2): 4}, constraints=rules)
    assert placed(problem, "heft") == [0, 0, 1, 1]
    assert evaluate(problem, np.array([[0, 0, 1, 1]], np.int32)).tolist() == [7.0]


def test_heft_weighs_transfers_against_waiting() -> None:
    """op0 (1 s) feeds op1 and op2 (3 s each): op2 goes elsewhere if its tensor takes less than op1, else it waits.

    After op0 and op1 gpu0 is busy until 4. On gpu1, op2 starts at 1 + bytes and ends at 4 + bytes, on gpu0 at 7.
    """
    for size, home in ((2, 1), (3, 0), (4, 0)):
        problem = problem_of(gpus(2), [[1.0, 1.0], [3.0, 3.0], [3.0, 3.0]], {(0, 1): size, (0, 2): size})
        assert placed(problem, "heft") == [0, 0, home]


def test_critical_path_keeps_the_path_together() -> None:
    """The path op0, op2, op3 goes to the device that runs it in the least time, op1 where it ends first.

    Means: op0 2, op1 1, op2 4, op3 2; a transfer takes 1 s. The path is 2 + 1 + 4 + 1 + 2 = 10 long, by op1 it is 7.
    fast runs it in 2 + 2 + 1 = 5 s, slow in 2 + 6 + 3 = 11 s. op2 is on fast from 2 to 4; op1 ends there
    at 5, and on slow at 2 + 1 + 1 = 4.
    """
    machines = cluster(Device("slow"), Device("fast"))
    table = [[2.0, 2.0], [1.0, 1.0], [6.0, 2.0], [3.0, 1.0]]
    problem = problem_of(machines, table, {(0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 3): 1})
    assert placed(problem, "critical_path") == [1, 0, 1, 1]


def test_critical_path_goes_on_where_its_device_is_full() -> None:
    """A path of 3 bytes per op and devices of 4: each op has a device of its own, whichever is the best for all."""
    problem = problem_of(gpus(2, memory=4), [[1.0, 1.0]] * 2, {(0, 1): 1}, sizes=[3, 3], objective=SUM)
    assert sorted(placed(problem, "critical_path")) == [0, 1]


def test_sct_waits_for_its_favourite_child() -> None:
    """The device of op0 is kept for op2 until that is ready; etf, by start, gives it to op3 as soon as it is idle.

    op0 (1 s) and op1 (2 s) feed op2 (4 s) with tensors of 8 and 1 s: op2 is the favourite of op0. op3 reads op0 over a
    tensor of 2 s, and is ready on gpu0 at 1 but elsewhere at 3: it is not urgent until then. With sct, op2 is on gpu0
    from 3 to 7, and op3 on gpu1 from 3. By etf op3 is on gpu0 from 1 to 6, before op2.
    """
    table = [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [5.0, 5.0]]
    problem = problem_of(gpus(2), table, {(0, 2): 8, (1, 2): 1, (0, 3): 2})
    child, note = find_favourite_children(problem, Stopwatch(Budget()))
    assert child.tolist() == [2, -1, -1, -1] and not note
    assert placed(problem, "sct", by="start") == [0, 1, 0, 1]
    assert placed(problem, "etf", by="start") == [0, 1, 0, 0]


@examples(25)
@given(problems(max_ops=6, kind="latency"))
def test_the_linear_program_marks_what_it_may(problem: Problem) -> None:
    """No op has two favourite children or two favourite parents, its optimum is no more than any marking's makespan.

    A marking gives every pair an x of 0 or 1; its makespan is the longest path with the transfers that are left.
    """
    pairs, seconds = list_pairs(problem), mean_op_seconds(problem)
    sent = solve_relaxation(problem.n_ops, pairs, seconds, math.inf)
    assert sent is not None and ((sent > -1e-9) & (sent < 1 + 1e-9)).all()
    chosen = select_favourites(sent)
    assert len(set(pairs.tail[chosen].tolist())) == len(set(pairs.head[chosen].tolist())) == len(chosen)
    costly = np.flatnonzero(pairs.seconds > 0).tolist()
    for ends in (pairs.tail, pairs.head):
        for op in range(problem.n_ops):
            here = [row for row in costly if ends[row] == op]
            assert sum(sent[row] for row in here) >= len(here) - 1 - 1e-6
    whole = []
    for marks in product((0, 1), repeat=len(costly)):
        kept = [row for row, mark in zip(costly, marks, strict=True) if mark == 0]
        ends = [pairs.tail[kept].tolist(), pairs.head[kept].tolist()]
        if all(len(set(end)) == len(end) for end in ends):
            x = np.zeros(len(pairs.tail))
            x[costly] = marks
            whole.append(longest(problem, x))
    assert longest(problem, sent) <= min(whole) * (1 + 1e-6) + 1e-9


def longest(problem: Problem, sent: Floats) -> float:
    """The longest path where the transfer of every pair takes its share of its seconds."""
    pairs, seconds = list_pairs(problem), mean_op_seconds(problem)
    end = np.zeros(problem.n_ops)
    for op in range(problem.n_ops):
        rows = np.flatnonzero(pairs.head == op)
        ready = end[pairs.tail[rows]] + pairs.seconds[rows] * sent[rows]
        end[op] = ready.max(initial=0.0) + seconds[op]
    return float(end.max(initial=0.0))


def test_sct_matches_greedily_where_the_program_is_too_large() -> None:
    """A ladder of 3,000 pairs without a limit of time: a note says so, and the long branch is the favourite."""
    count = 1500
    edges = {(2 * i, 2 * i + 1): 1 for i in range(count)} | {(2 * i, 2 * i + 2): 2 for i in range(count - 1)}
    problem = problem_of(gpus(2), [[1.0, 1.0]] * (2 * count), edges)
    child, note = find_favourite_children(problem, Stopwatch(Budget()))
    assert "greedily" in note
    assert child[: 2 * count - 2 : 2].tolist() == list(range(2, 2 * count, 2))
    assert "greedily" in run_placer(create("sct"), problem, Budget()).notes[0]


def test_topo_fills_up_to_an_even_share() -> None:
    """4, 3, 2, 2, 1, 6 bytes and three devices: a share is 18 / 3 + 6 = 12, with a byte more for each op 15.

    5 + 4 + 3 + 3 = 15 are on the first, 2 + 7 on the second, and nothing is left for the third.
    """
    problem = problem_of(
        gpus(3), [[1.0] * 3] * 6, {(i, i + 1): 1 for i in range(5)}, sizes=[4, 3, 2, 2, 1, 6], objective=SUM
    )
    assert placed(problem, "topo") == [0, 0, 0, 0, 1, 1]


def test_topo_takes_larger_shares_where_devices_are_unequal() -> None:
    """Four ops of 4 bytes on devices of 4 and 12: an even share of 8 + 4 fills what they hold, contiguously."""
    shape = Constraints(contiguous=True)
    problem = problem_of(
        cluster(Device("a", memory=4), Device("b", memory=12)), [[1.0, 1.0]] * 4, {(i, i + 1): 1 for i in range(3)},
        sizes=[4] * 4, objective=Objective("throughput", memory="sum"), constraints=shape,
    )  # fmt: skip
    assert placed(problem, "topo") == [0, 1, 1, 1]


def test_topo_sends_what_no_accelerator_runs_to_the_host() -> None:
    """One op in the middle only runs on the CPU: the accelerators still share the rest evenly."""
    machines = cluster(Device("a"), Device("b"), Device("cpu", kind="cpu"))
    table = np.ones((7, 3))
    table[3, :2] = math.inf
    problem = problem_of(machines, table, {(i, i + 1): 1 for i in range(6)}, sizes=[9] * 7, objective=SUM)
    assert placed(problem, "topo") == [0, 0, 0, 2, 0, 1, 1]


@pytest.mark.parametrize("name", ["critical_path", "etf", "heft", "sct"])
def test_tight_memory_is_repaired(name: str) -> None:
    """Ops of 3, 3, 2, 2, 2 bytes fill devices of 6 exactly, and a list that spreads the first two is stuck: mended."""
    problem = problem_of(gpus(2, memory=6), [[1.0, 1.0]] * 5, {}, sizes=[3, 3, 2, 2, 2], objective=SUM)
    proposal = run_placer(create(name), problem, Budget())
    assert proposal.placement is not None and not find_broken_rule(problem, proposal.placement.device)
    assert proposal.placement.device.tolist() == [0, 0, 1, 1, 1]
    assert any("ran out of memory" in note for note in proposal.notes) and len(proposal.notes) == 2


@pytest.mark.parametrize("name", LISTS)
def test_fewer_devices_are_used_if_asked(name: str) -> None:
    """Twelve ops side by side: three devices, or two or one, and the quick ones; the answer without says nothing."""
    machines = cluster(Device("slow"), Device("quick0"), Device("quick1"), Device("cpu", kind="cpu"))
    problem = problem_of(machines, [[3.0, 2.0, 2.0, 9.0]] * 12, {}, sizes=[1] * 12, objective=SUM)
    for count, used in ((1, {1}), (2, {1, 2}), (3, {0, 1, 2})):
        assert set(placed(problem, name, devices=count)) == used
    with pytest.raises(PlacerError, match="devices"):
        create(name, {"devices": -1})


def test_what_cannot_be_done_without_is_kept() -> None:
    """An op that only the CPU runs keeps the CPU; too little memory keeps it too; two pins keep both accelerators."""
    machines = cluster(Device("a", memory=8), Device("b", memory=8), Device("cpu", kind="cpu"))
    table = np.array([[1.0, 1.0, 9.0]] * 3)
    options = {"sizes": [4, 4, 4], "objective": SUM}
    assert rank_devices(problem_of(machines, table, {}, **options)).tolist() == [0, 1, 2]  # type: ignore[arg-type]

    def kept(problem: Problem) -> list[bool]:
        return [device.available for device in keep_best_devices(problem, 1).cluster]

    assert kept(problem_of(machines, table, {}, **options)) == [True, False, True]  # type: ignore[arg-type]
    assert kept(problem_of(machines, table, {}, sizes=[1, 1, 1], objective=SUM)) == [True, False, False]
    table[1, :2] = math.inf
    assert kept(problem_of(machines, table, {}, sizes=[1, 1, 1], objective=SUM)) == [True, False, True]
    pinned = Constraints(pins=(Rule("op1$", "a"), Rule("op2$", "b")))
    table[1, :2] = 1.0
    problem = problem_of(machines, table, {}, sizes=[1, 1, 1], objective=SUM, constraints=pinned)
    assert kept(problem) == [True, True, False]
    assert keep_best_devices(problem, 0) is problem and keep_best_devices(problem, 3) is problem


@examples(12)
@given(problems(max_ops=6))
def test_lists_keep_the_rules(problem: Problem) -> None:
    """Whatever is proposed is valid and comes twice the same, and no proof of infeasibility is wrong."""
    for name in LISTS:
        for options in ({}, {"devices": 1}):
            placer = create(name, options)
            if placer.supports(problem) is not None:
                continue
            proposal = run_placer(placer, problem, Budget(seed=1))
            assert proposal == run_placer(placer, problem, Budget(seed=1))
            if proposal.placement is not None:
                kinds = {violation.kind for violation in judge_placement(problem, proposal.placement).violations}
                assert kinds <= {"calls"}, (name, kinds)
                continue
            assert proposal.notes or proposal.infeasible
            if proposal.infeasible:
                assert not any(keeps_the_rules(problem, device) for device, _ in placements(problem))


def test_gaps_are_found_filled_and_forgotten() -> None:
    """A resource taken from 2 to 4 and from 7 to 9: 0, 4 and 9 are the first times for 2, 3 and 4 seconds."""
    idle = _native.IdleIntervals(most_gaps=1024)
    idle.book(2.0, 2.0)
    idle.book(7.0, 2.0)
    assert [idle.first_fit(0.0, seconds) for seconds in (2.0, 3.0, 4.0)] == [0.0, 4.0, 9.0]
    assert [idle.first_fit(ready, 1.0) for ready in (1.5, 4.0, 6.5, 8.0, 20.0)] == [4.0, 4.0, 9.0, 9.0, 20.0]
    idle.book(4.5, 1.0)
    assert idle.first_fit(3.0, 1.5) == 5.5
    assert idle.first_fit(3.0, 0.5) == 4.0
    idle.book(5.5, 1.5)
    idle.book(0.0, 2.0)
    assert len(idle) == 1 and idle.first_fit(0.0, 0.5) == 4.0
    for k in range(2000):
        idle.book(10.0 + 2 * k, 1.0)
    assert len(idle) == 1024
    assert [idle.first_fit(*wish) for wish in ((4000.0, 1.0), (4000.0, 1.5), (0.0, 0.5))] == [
        4001.0,
        4009.0,
        1961.0,
    ]


def test_schedules_are_made_chains() -> None:
    """Two diamonds in a row, 9 s each op: free schedules leave a device and come back, chains have 4 ops at most.

    The larger stage takes 4 · 9 s, and two tensors of 1 s come in or go out.
    """
    edges = {(0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 3): 1, (3, 4): 1, (3, 5): 1, (4, 6): 1, (5, 6): 1}
    free = problem_of(gpus(2), [[9.0, 9.0]] * 7, edges, objective=Objective("throughput", memory="sum"))
    for shape in (Constraints(contiguous=True), Constraints(convex=True)):
        problem = free.with_(constraints=shape)
        for name in LISTS[:-1]:
            assert find_broken_rule(problem, np.array(placed(free, name), np.int32))
            proposal = run_placer(create(name), problem, Budget())
            assert proposal.placement is not None and not find_broken_rule(problem, proposal.placement.device)
            assert "the schedule was made a chain of stages" in proposal.notes
            assert sorted(np.bincount(proposal.placement.device).tolist()) == [3, 4]
            assert evaluate(problem, proposal.placement.device[None]).tolist() == [38.0]


@examples(12)
@given(problems(max_ops=6), st.booleans())
def test_chains_keep_the_rules(problem: Problem, contiguous: bool) -> None:
    """Contiguous or convex, whatever is proposed keeps the shape and every rule, or words say what was tried."""
    shaped = problem.with_(constraints=replace(problem.constraints, contiguous=contiguous, convex=not contiguous))
    for name in LISTS[:-1]:
        assert create(name).supports(shaped) is None
        proposal = run_placer(create(name), shaped, Budget(seed=1))
        assert proposal == run_placer(create(name), shaped, Budget(seed=1))
        if proposal.placement is not None:
            assert not find_broken_rule(shaped, proposal.placement.device)
        else:
            assert proposal.notes or proposal.infeasible
        if proposal.infeasible:
            assert not any(keeps_the_rules(shaped, device) for device, _ in placements(shaped))


def test_long_chains_are_split_between_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve ops of 1 s in a row as four segments, cut where little crosses: two stages of 6 ops and 1 s to send."""
    edges = {(op, op + 1): 1 if op == 5 else 2 for op in range(11)}
    shape, pace = Constraints(contiguous=True), Objective("throughput", memory="sum")
    problem = problem_of(gpus(2), [[1.0, 1.0]] * 12, edges, objective=pace, constraints=shape)
    monkeypatch.setattr(repair_and_select, "LONG", 11)
    monkeypatch.setattr(repair_and_select, "SEGMENTS", 4)
    for name in LISTS[:-1]:
        device = np.array(placed(problem, name), np.int32)
        assert not find_broken_rule(problem, device) and evaluate(problem, device[None]).tolist() == [7.0]
        assert sorted(np.bincount(device).tolist()) == [6, 6]


@needs_workloads
def test_chains_on_a_published_workload() -> None:
    """BERT-24 by layers, contiguous: every list scheduler answers, no better than the optimum and within half of it."""
    read = read_workload(WORKLOADS / "throughput" / "LayerGraphs" / "bert24_inference.json").problem
    assert read is not None
    problem = read.with_(constraints=Constraints(contiguous=True))
    optimum = run_placer(create("dp"), problem, Budget()).placement
    assert optimum is not None
    least = evaluate(problem, optimum.device[None])[0]
    for name in LISTS[:-1]:
        proposal = run_placer(create(name), problem, Budget())
        assert proposal.placement is not None and not find_broken_rule(problem, proposal.placement.device)
        seconds = evaluate(problem, proposal.placement.device[None])[0]
        assert least * (1 - 1e-9) <= seconds <= least * 1.5
