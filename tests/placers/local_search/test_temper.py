"""Chains of moves in `operator` execution: what they say of a placement is what the judge says, to the last bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from drawn_kinds import kinds_drawn
from simulate_problems import random_placement, random_problem, seeded
from soak import seeds
from twins.memory import peak_memory

from placewise import _native
from placewise.errors import InternalError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Ints
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget, Hints, run_placer
from placewise.placers.local_search.latency_chains import latency_search_problem, scope_levels
from placewise.placers.local_search.local import LocalOptions, LocalPlacer
from placewise.placers.registry import create
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.judge.memory import device_memory, resident_bytes

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


@pytest.mark.parametrize("seed", seeds(30))
def test_a_schedule_from_any_checkpoint_is_the_judges(seed):
    """From the beginning and from every checkpoint the value is the judge's, and so are starts and memory."""
    problem, home = drawn(seed)
    if home is None:
        return
    search, device = latency_search_problem(problem), home[problem.block]
    chain = _native.LatencyChain(search, home, seed)
    assert not chain.run(0)
    judged = judge_placement(problem, Placement(device))
    assert chain.value == judged.value
    assert judged.timeline is not None and chain.start.tolist() == judged.timeline.start.tolist()
    assert chain.used_bytes.tolist() == resident_bytes(problem, device).tolist()
    peak = device_memory(problem, Placement(device))[1]
    fits = bool((peak <= problem.capacity).all())
    for checkpoint in range(-1, chain.n_checkpoints):
        assert chain.price(checkpoint) == judged.value
        assert chain.price(checkpoint, judged.value) == judged.value
        if problem.objective.memory == "live":
            assert chain.fits(problem.capacity, priced=True) == fits
            assert peaks_of(search, chain, device) == peak.tolist()


def peaks_of(search: _native.LatencySearchProblem, chain: _native.LatencyChain, device: Ints) -> list[float]:
    """The least whole bytes of each device [n_devices] with which the schedule that was recorded fits."""
    used, places = chain.used_bytes, set(device.tolist())
    most = used + search.activation_bytes

    def fits(d: int, nbytes: float) -> bool:
        return chain.fits(np.where(np.arange(len(most)) == d, nbytes, np.inf))

    return [
        float(next(size for size in range(int(used[d]), int(most[d]) + 1) if fits(d, size)) if d in places else used[d])
        for d in range(len(most))
    ]


@pytest.mark.parametrize("seed", seeds(40))
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
    search = latency_search_problem(problem)
    chain = _native.LatencyChain(search, device, seed)
    chain.run(0)
    assert peaks_of(search, chain, device) == peak_memory(problem, Placement(device))


@pytest.mark.parametrize("seed", seeds(20))
def test_a_long_walk_keeps_the_judges_value_and_the_rules(seed):
    """After every one of many moves, hot and cold, value and rules are what they are from the beginning."""
    problem, home = drawn(seed, max_ops=24)
    if home is None or find_broken_rule(problem, home[problem.block]):
        return
    chain = _native.LatencyChain(latency_search_problem(problem), home, seed)
    chain.run(0)
    for tried in range(120):
        before = chain.assignment
        chain.temperature = 0.5 if tried % 3 else 1e-9
        assert not chain.run(1)
        device = chain.assignment[problem.block]
        assert chain.value == evaluate(problem, device[None])[0]
        if not np.array_equal(before, chain.assignment):
            assert chain.candidate_value == chain.value
            assert find_broken_rule(problem, device) == ""
    assert chain.best_value == evaluate(problem, chain.best[problem.block][None])[0] <= chain.value


def test_the_shape_of_stages_awaits_a_verdict():
    """What is refused is taken back; with the verdicts of the rules a chain of contiguous stages remains one."""
    refused = 0
    for seed in range(6):
        problem = drawn(seed, max_ops=24)[0]
        constraints = replace(problem.constraints, contiguous=True)
        problem = problem.with_(objective=replace(OPERATOR, memory="sum"), constraints=constraints)
        start = run_placer(create("single"), problem, Budget()).placement
        if start is None:
            continue
        home = np.empty(problem.n_blocks, np.int32)
        home[problem.block] = start.device
        chain = _native.LatencyChain(latency_search_problem(problem), home, seed)
        chain.temperature = 1e3
        waits = chain.run(100)
        while waits:
            refused += 1
            waits = chain.resolve(valid=False)
        assert chain.n_tried == 100 and not chain.awaits_verdict
        assert chain.assignment.tolist() == home.tolist()
        waits = chain.run(300)
        while waits:
            waits = chain.resolve(find_broken_rule(problem, chain.assignment[problem.block]) == "")
            device = chain.best[problem.block]
            assert find_broken_rule(problem, device) == "" and chain.best_value == evaluate(problem, device[None])[0]
    assert refused > 50


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
    search = latency_search_problem(Problem(builder.build(), cluster, table, OPERATOR))
    chain = _native.LatencyChain(search, np.zeros(64, np.int32), 1)
    chain.temperature = 1e-9
    seen = set()
    for _ in range(60):
        chain.run(1)
        seen.add(chain.checkpoint)
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
    levels = scope_levels(Problem(graph, cluster, table, OPERATOR))
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
        first, again = (run_placer(create(placer), problem, budget).placement for _ in range(2))
        assert first == again


def test_without_a_bound_it_searches_at_once():
    """Where the bound is not asked for there is none but the trivial one, and the hint is still improved."""
    problem, home = drawn(9, max_ops=24)
    assert home is not None
    problem = problem.with_(objective=replace(OPERATOR, memory="sum"))
    hint = Placement(home[problem.block])
    if find_broken_rule(problem, hint.device):
        return
    proposal = run_placer(LocalPlacer(LocalOptions(bound=False)), problem, Budget(iterations=20), hints=Hints((hint,)))
    assert proposal.bound is not None and proposal.bound.value == 0
    assert proposal.placement is not None
    assert judge_placement(problem, proposal.placement).value <= judge_placement(problem, hint).value


def trace(search: _native.LatencySearchProblem, home: Ints, seed: int) -> list[tuple[float, bytes]]:
    """Where a chain of shapeless moves is after each of some short runs."""
    chain = _native.LatencyChain(search, home, seed)
    chain.temperature, seen = 0.5, []
    for _ in range(40):
        chain.run(25)
        seen.append((chain.value, chain.assignment.tobytes()))
    return seen


def test_chains_are_apart():
    """Chains of one problem that run side by side on threads go where they go alone."""
    problem, home = drawn(10, max_ops=40)
    assert home is not None
    search = latency_search_problem(problem)
    alone = [trace(search, home, seed) for seed in range(8)]
    assert len({places[-1] for places in alone}) > 1
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: trace(search, home, seed), range(8)))
    assert together == alone


def test_a_run_that_is_stopped_goes_on_later():
    """A stop flag or a deadline ends a run at once, wherever it is; the chain stays what the judge says of it."""
    problem, home = drawn(10, max_ops=40)
    assert home is not None
    chain, stop = _native.LatencyChain(latency_search_problem(problem), home, 1), _native.StopFlag()
    stop.set()
    for _ in range(3):
        chain.run(1 << 31, stop=stop)
        chain.run(1 << 31, seconds=0.0)
    stop.clear()
    chain.temperature = 0.1
    for _ in range(5):
        chain.run(1 << 31, seconds=0.01, stop=stop)
        chain.run(1, stop=stop)
        assert chain.value == evaluate(problem, chain.assignment[problem.block][None])[0]
        assert chain.best_value == evaluate(problem, chain.best[problem.block][None])[0]
    assert chain.n_tried > 5


def test_nonsense_is_refused():
    """Assignments of another length or to no device, checkpoints that there are not, and other types raise."""
    problem, home = drawn(9)
    assert home is not None
    search = latency_search_problem(problem)
    chain = _native.LatencyChain(search, home, 1)
    for wrong in (home[1:], home + problem.n_devices, home - problem.n_devices):
        with pytest.raises(InternalError):
            _native.LatencyChain(search, wrong, 1)
        with pytest.raises(InternalError):
            chain.begin(wrong)
    with pytest.raises(InternalError, match="checkpoint"):
        chain.price(99)
    with pytest.raises(TypeError):
        chain.begin(home.astype(np.int64))
