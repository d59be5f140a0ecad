"""Chains of moves in `operator` execution: what they say of a placement is what the judge says, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulate_problems import random_placement, random_problem, seeded
from test_simulate_memory import kinds_drawn
from twins.memory import peak_memory

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Ints
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget, Hints
from placewise.placers.common.rules import broken
from placewise.placers.heuristic.temper import TemperOptions, TemperPlacer
from placewise.placers.registry import create
from placewise.placers.schedules.desk import (
    BEST,
    FROM,
    HEAT,
    OFFERED,
    SLOTS,
    TRIED,
    VALUE,
    Board,
    Desk,
    board_of,
    desk_of,
)
from placewise.placers.schedules.events import run
from placewise.placers.schedules.levels import levels_of
from placewise.placers.schedules.peaks import peaks_fit
from placewise.placers.schedules.walk import AFRESH, DROP, walk
from placewise.simulate import evaluate, simulate
from placewise.simulate.memory import device_memory, resident_bytes

OPERATOR = Objective("latency", execution="operator")


def drawn(seed: int, *, max_ops: int = 14) -> tuple[Problem, Ints | None]:
    """A random problem and homes of its blocks [n_blocks] that support allows, if it has any."""
    choose = seeded(seed)
    problem = random_problem(
        choose, max_ops=max_ops, objective=OPERATOR, scarce=seed % 2 == 0, rules=seed % 3 == 0
    )  # fmt: skip
    problem = kinds_drawn(problem, seeded(seed))
    device = random_placement(problem, choose).device
    home = np.empty(problem.n_blocks, np.int32)
    home[problem.block] = device
    able = problem.allowed[np.arange(problem.n_ops), home[problem.block]].all()
    return problem, home if able else None


@pytest.mark.parametrize("seed", range(60))
def test_a_schedule_from_any_checkpoint_is_the_judges(seed):
    """From the beginning and from every checkpoint the value is the judge's, and so are starts and memory."""
    problem, home = drawn(seed)
    if home is None:
        return
    board, device = board_of(problem), home[problem.block]
    a, g, m, _ = board
    x = desk_of(board, home, seed)
    judged = simulate(problem, Placement(device))
    assert run(a, g, x, -1, np.inf, True) == judged.value
    assert judged.timeline is not None and x.start.tolist() == judged.timeline.start.tolist()
    assert x.used.tolist() == resident_bytes(problem, device).tolist()
    peak = device_memory(problem, Placement(device))[1]
    fits = bool((peak <= problem.capacity).all())
    for k in range(-1, int(x.tally[SLOTS])):
        assert run(a, g, x, k, np.inf, False) == judged.value
        assert run(a, g, x, k, judged.value, False) == judged.value
        if problem.objective.memory == "live":
            assert peaks_fit(a, g, x, x.trial_start, x.trial_sequence, m.capacity) == fits
            assert peaks_of(board, x, device) == peak.tolist()


def peaks_of(board: Board, x: Desk, device: Ints) -> list[float]:
    """The least whole bytes of each device [n_devices] with which the schedule that was recorded fits."""
    a, g, _, _ = board
    most = x.used + g.activations

    def fits(d: int, nbytes: float) -> bool:
        return peaks_fit(a, g, x, x.start, x.sequence, np.where(np.arange(len(most)) == d, nbytes, np.inf))

    used = set(device.tolist())
    return [
        float(
            next(size for size in range(int(x.used[d]), int(most[d]) + 1) if fits(d, size)) if d in used else x.used[d]
        )
        for d in range(len(most))
    ]


@pytest.mark.parametrize("seed", range(150))
def test_peaks_in_place_are_those_of_the_twin(seed):
    """Short chains with side branches, two sizes, kinds of which most work in place: found by trying every capacity."""
    choose, builder = seeded(seed), GraphBuilder()
    kinds = ("Relu", "Reshape", "Add", "Conv", "Softmax", "Op", "BatchNormalization")
    n, made = choose(3, 9), list[int]()
    for op in range(n):
        builder.add_op(f"op{op}", kinds[choose(0, 6)])
        side = choose(0, len(made) - 1) if made and choose(0, 2) == 0 else -1
        for tensor in sorted({*made[-1:], side} - {-1}):
            builder.add_edge(tensor, op)
        for _ in range(1 + (choose(0, 5) == 0)):
            made.append(builder.add_tensor(op, nbytes=choose(1, 2), output=choose(0, 6) == 0))
    names = ("cpu", "gpu") if choose(0, 1) else ("gpu", "gpu")
    devices = tuple(Device(f"{name}{row}", kind=name, memory=9.0) for row, name in enumerate(names))
    links = tuple(Link(*pair, 1.0) for device in devices for pair in ((device.name, HOST), (HOST, device.name)))
    graph, cluster = builder.build(), Cluster(devices, links)
    seconds = np.array([[choose(1, 3), choose(1, 3)] for _ in range(n)], np.float64)
    transfers = np.full((graph.n_tensors, len(cluster.class_bandwidth)), float(choose(0, 2)))
    transfers[:, 0] = 0.0
    problem = Problem(graph, cluster, CostTable.given(seconds, transfers), replace(OPERATOR, memory="live"))
    device = np.array([0 if choose(0, 3) else 1 for _ in range(n)], np.int32)
    board = board_of(problem)
    x = desk_of(board, device, seed)
    run(board.arrays, board.ground, x, -1, np.inf, True)
    assert peaks_of(board, x, device) == peak_memory(problem, Placement(device))


@pytest.mark.parametrize("seed", range(40))
def test_a_long_walk_keeps_the_judges_value_and_the_rules(seed):
    """After every one of many moves, hot and cold, value and rules are what they are from the beginning."""
    problem, home = drawn(seed, max_ops=24)
    if home is None or broken(problem, home[problem.block]):
        return
    board = board_of(problem)
    x = desk_of(board, home, seed)
    x.flat[BEST] = np.inf
    walk(*board, x, 0, 0, AFRESH)
    for tried in range(120):
        before = x.home.copy()
        x.flat[HEAT] = 0.5 if tried % 3 else 1e-9
        x.tally[TRIED] = 0
        assert not walk(*board, x, 1, 1 << 60, DROP)
        device = x.home[problem.block]
        assert x.flat[VALUE] == evaluate(problem, device[None])[0]
        if not np.array_equal(before, x.home):
            assert x.flat[OFFERED] == x.flat[VALUE]
            assert broken(problem, device) == ""
    assert x.flat[BEST] == evaluate(problem, x.best[problem.block][None])[0] <= x.flat[VALUE]


def test_moves_go_on_from_checkpoints():
    """In a chain of ops a move at its end is priced from a late checkpoint, one at its beginning from the first."""
    builder = GraphBuilder()
    for op in range(64):
        builder.add_op(f"op{op}", "Op")
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    cluster = Cluster((Device("a", kind="cpu"), Device("b", kind="cpu")))
    table = CostTable.given(np.ones((64, 2)), np.zeros((64, len(cluster.class_bandwidth))))
    board = board_of(Problem(builder.build(), cluster, table, OPERATOR))
    x = desk_of(board, np.zeros(64, np.int32), 1)
    x.flat[BEST] = np.inf
    walk(*board, x, 0, 0, AFRESH)
    x.tally[TRIED], x.flat[HEAT] = 0, 1e-9
    seen = set()
    for _ in range(60):
        x.tally[TRIED] = 0
        walk(*board, x, 1, 1 << 60, DROP)
        seen.add(int(x.tally[FROM]))
    assert len(seen) > 4


def test_levels_are_parts_of_the_model():
    """Layers, steps, a layer in all steps and a step in all layers are groups; what repeats another level is not."""
    builder = GraphBuilder()
    for layer in range(2):
        for step in range(3):
            for part in range(2):
                builder.add_op(f"{layer}.{step}.{part}", "Op", scope=f"layer.{layer}.step.{step}")
    cluster = Cluster((Device("a", kind="cpu"),))
    graph = builder.build()
    table = CostTable.given(np.ones((12, 1)), np.zeros((0, len(cluster.class_bandwidth))))
    levels = levels_of(Problem(graph, cluster, table, OPERATOR))
    groups = {
        frozenset(frozenset(np.flatnonzero(row == g).tolist()) for g in np.unique(row[row >= 0]))
        for row in levels.group
    }
    halves = frozenset({frozenset(range(6)), frozenset(range(6, 12))})
    thirds = frozenset(frozenset({2 * s, 2 * s + 1, 2 * s + 6, 2 * s + 7}) for s in range(3))
    sixths = frozenset(frozenset({2 * k, 2 * k + 1}) for k in range(6))
    assert groups == {halves, thirds, sixths}
    assert len(levels.group) == 3


@pytest.mark.parametrize("placer", ["temper"])
def test_same_work_same_answer(placer):
    """A budget of iterations or of evaluations and a seed say what comes out; another seed may find something else."""
    problem, home = drawn(4, max_ops=24)
    assert home is not None
    for budget in (Budget(iterations=5, seed=3), Budget(evaluations=500, seed=3)):
        first, again = (create(placer).propose(problem, budget).placement for _ in range(2))
        assert first == again


def test_without_a_bound_it_searches_at_once():
    """Where the bound is not asked for there is none but the trivial one, and the hint is still improved."""
    problem, home = drawn(9, max_ops=24)
    assert home is not None
    problem = problem.with_(objective=replace(OPERATOR, memory="sum"))
    hint = Placement(home[problem.block])
    if broken(problem, hint.device):
        return
    proposal = TemperPlacer(TemperOptions(bound=False)).propose(problem, Budget(iterations=20), hints=Hints((hint,)))
    assert proposal.bound is not None and proposal.bound.value == 0
    assert proposal.placement is not None
    assert simulate(problem, proposal.placement).value <= simulate(problem, hint).value


def test_desks_are_apart():
    """Two chains of one problem share no array that either writes."""
    problem, home = drawn(9)
    assert home is not None
    board = board_of(problem)
    one, other = desk_of(board, home, 1), desk_of(board, home, 2)
    shared = [name for name in Desk._fields if np.shares_memory(getattr(one, name), getattr(other, name))]
    assert shared == []
