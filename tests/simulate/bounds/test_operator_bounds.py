"""Load between heads and tails, and ops that must share a device: by hand, and against every placement."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from bounded_problems import best_order, best_valid, climb, solve_intervals, tangled_problem
from latency_brute_force import optimum
from simulate_problems import random_problem, seeded
from soak import enough, seeds

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Bools, Floats
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.simulate import lower_bound
from placewise.simulate.blocks import best_seconds, block_bytes, block_seconds, device_classes
from placewise.simulate.bounds import sharing, windows
from placewise.simulate.bounds.bounds import possible_seconds
from placewise.simulate.bounds.intervals import PathTimes
from placewise.simulate.bounds.paths import path_bound
from placewise.simulate.problem_arrays import arrays_of

OPERATOR = Objective("latency", execution="operator", memory="sum")


class Bounds:
    """Every bound of a problem by itself; `quickly`, heads and tails are plain longest paths."""

    def __init__(self, problem: Problem, *, work: float = 0.03, quickly: bool = False) -> None:
        classes, paths = device_classes(problem), windows.bound_paths(problem)
        self.path = float(np.sum(paths, axis=0).max())
        known = solve_intervals(problem, work=0 if quickly else work)
        shared = problem, classes, possible_seconds(problem, classes), windows.bound_paths(problem, known)
        self.intervals = known.value
        self.sharing = sharing.sharing_bound(*shared, work=work).value
        self.load = windows.load_bound(*shared, work=work).value

    def is_largest(self, name: str) -> bool:
        """Whether this bound is above the critical path, and no other is above it."""
        own, others = getattr(self, name), (self.path, self.intervals, self.sharing, self.load)
        return own > self.path * (1 + 1e-6) and own >= max(others) * (1 - 1e-3)


def can_run(problem: Problem) -> bool:
    """Whether every block may run on some device that holds it."""
    devices = np.arange(problem.n_devices)
    fits = block_bytes(problem)[:, None] <= problem.capacity[devices]
    return bool((np.isfinite(block_seconds(problem, devices)) & fits).any(axis=1).all())


def test_no_placement_in_any_order_is_below_the_bounds():
    """Tangled and wide problems: either new bound is the largest one, above the critical path, in a fifth of them; all
    reach as much of the best values as ever, where what is shared counts only if it is above the path.
    """
    shares: dict[str, list[float]] = {"intervals": [], "sharing": [], "load": []}
    seen = {"bounded": 0, "sharing": 0, "load": 0, "tight": 0}
    for seed in seeds(200):
        problem = tangled_problem(seeded(seed), "operator", wide=seed % 3 > 0)
        best = best_valid(problem)
        if best == np.inf:
            continue
        bounds = Bounds(problem)
        assert max(bounds.intervals, bounds.sharing, bounds.load) <= best
        if np.isinf(problem.capacity).all():
            assert max(bounds.intervals, bounds.sharing, bounds.load) <= best_order(problem)
        seen["bounded"] += 1
        for name in ("sharing", "load"):
            seen[name] += bounds.is_largest(name)
        seen["tight"] += max(bounds.sharing, bounds.load) >= best * (1 - 1e-3)
        for name, own in shares.items():
            own += [getattr(bounds, name) / best] if seed < 50 else []
    reached = {name: float(np.mean(own)) for name, own in shares.items()}
    assert reached["intervals"] >= 0.833 and reached["sharing"] >= 0.237 and reached["load"] >= 0.890, reached
    assert seen["bounded"] >= enough(160)
    assert min(seen["sharing"], seen["load"]) >= seen["bounded"] / 5, seen
    assert seen["tight"] > seen["bounded"] / 10, seen


def test_bounds_hold_for_problems_of_all_kinds():
    """Streams, several hosts, unequal devices, rules, wires, phases, ties and zero times."""
    bounded = 0
    for seed in seeds(160):
        problem = random_problem(
            seeded(3000 + seed), max_ops=6, max_devices=3, objective=OPERATOR, rules=seed % 3 == 0, scarce=seed % 4 == 1
        )
        best = best_valid(problem) if can_run(problem) else np.inf
        if best < np.inf:
            bounds = Bounds(problem)
            assert max(bounds.sharing, bounds.load) <= best
            bounded += 1
    assert bounded > enough(80)


def test_a_search_never_gets_below_the_bounds():
    """Problems of 12 to 30 ops, without limits of memory: a search by single moves stays above, often within 10 %."""
    close = total = 0
    for seed in seeds(48):
        choose = seeded(8000 + seed)
        problem = tangled_problem(choose, "operator", wide=seed % 3 == 0, n_ops=(12, 30))
        if np.isinf(problem.capacity).all():
            bounds, value = Bounds(problem, work=0.2), climb(problem)
            assert max(bounds.intervals, bounds.sharing, bounds.load) <= value
            total, close = total + 1, close + (max(bounds.intervals, bounds.sharing, bounds.load) >= 0.9 * value)
    assert total >= enough(24)
    assert close > total / 5


def layers(
    sizes: list[int], *, link: float, devices: int = 2, host: float = 0.0, group: bool = False, seconds: float = 1.0
) -> Problem:
    """Ops in layers, each of which reads all of the layer before; `host`: a CPU so many times slower."""
    builder, last = GraphBuilder(), list[int]()
    for layer, size in enumerate(sizes):
        made = []
        for k in range(size):
            op = builder.add_op(f"{layer}.{k}", "Op", group=layer if group else -1)
            for tensor in last:
                builder.add_edge(tensor, op)
            made.append(builder.add_tensor(op, nbytes=1))
        last = made
    names = [f"d{k}" for k in range(devices)]
    own = tuple(Device(name) for name in names) + ((Device("cpu", kind="cpu"),) if host else ())
    ends = [(a, b) for a in (*names, HOST) for b in (*names, HOST) if a != b]
    cluster = Cluster(own, tuple(Link(*pair, 1.0) for pair in ends), "direct")
    graph = builder.build()
    transfer = np.zeros((graph.n_tensors, len(cluster.class_bandwidth)))
    transfer[:, 1:] = link
    row = [seconds] * devices + ([seconds * host] if host else [])
    return Problem(graph, cluster, CostTable.given(np.array([row] * graph.n_ops), transfer), OPERATOR)


def test_load_begins_after_a_head_and_ends_before_a_tail():
    """One op, eight on two devices with free links, one op: 1 + 8 / 2 + 1."""
    problem = layers([1, 8, 1], link=0.0)
    assert Bounds(problem).load == pytest.approx(6, rel=1e-6)
    assert lower_bound(problem).value == pytest.approx(6, rel=1e-6)


def test_a_host_takes_only_what_is_worth_its_transfers():
    """A host as quick as the device takes half of eight ops; not where each waits for a transfer of 4 s."""
    assert Bounds(layers([1, 8, 1], link=0.0, devices=1, host=1.0)).load == pytest.approx(6, rel=1e-6)
    costly = Bounds(layers([1, 8, 1], link=4.0, devices=1, host=1.0), work=1.0)
    assert 6.5 < costly.load <= best_valid(layers([1, 8, 1], link=4.0, devices=1, host=1.0))


def test_ops_that_cannot_wait_share_a_device():
    """Three ops between two: in turn where links are slow; on links of 1/2 s, no set has more to do than 4 s."""
    assert Bounds(layers([1, 3, 1], link=5.0), quickly=True).sharing == pytest.approx(5, rel=2e-3)
    assert Bounds(layers([1, 3, 1], link=0.5), quickly=True).sharing <= best_valid(layers([1, 3, 1], link=0.5)) == 4


def test_a_group_is_one_machine():
    """A layer of four that form a group takes 4 s between its ends, however quick the links."""
    assert Bounds(layers([1, 4, 1], link=0.0, group=True), quickly=True).sharing == pytest.approx(6, rel=2e-3)


def test_work_may_end_at_any_moment():
    """Less work or no time proves less, and nothing below what is known is looked for."""
    problem = layers([1, 8, 1, 8, 1], link=0.5)
    classes = device_classes(problem)
    shared = problem, classes, possible_seconds(problem, classes), windows.bound_paths(problem)
    assert sharing.sharing_bound(*shared, go_on=lambda: False).value == 0
    assert sharing.sharing_bound(*shared, above=100).value == 0
    assert windows.load_bound(*shared, go_on=lambda: False).value == 0
    assert windows.load_bound(*shared, above=100).value == 0
    values = [windows.load_bound(*shared, work=work).value for work in (1e-6, 0.01, 0.2)]
    assert values == sorted(values)


@pytest.mark.parametrize(("above", "looks"), [(6.0, False), (5.9, True)])
def test_a_window_that_promises_no_more_is_not_bounded(above: float, looks: bool) -> None:
    """One op, eight on two devices, one op promise 1 + 8 / 2 + 1: no prices are tried where 6 s are known already."""
    problem, asked = layers([1, 8, 1], link=0.0), list[None]()
    classes = device_classes(problem)
    shared = problem, classes, possible_seconds(problem, classes), windows.bound_paths(problem)
    windows.load_bound(*shared, above=above, go_on=lambda: not asked.append(None))
    assert (len(asked) > 1) == looks


class NoSpread:
    """Notes the windows that are bounded, and proves nothing: less than nothing if `worthless`."""

    asked: ClassVar[list[tuple[float, ...]]] = []

    def __init__(self, *_: object, worthless: bool = False) -> None:
        self._worthless = worthless

    def bound(self, h: float, q: float, least: float, work: float, _: object) -> tuple[float, float]:
        """So many seconds, for 0.1 of work."""
        self.asked.append((h, q, round(least, 9), round(work, 9)))
        return -h - q - 1 if self._worthless else 0.0, 0.1


def asked_windows(
    monkeypatch: pytest.MonkeyPatch, spread: object, *shared: object, **limits: float
) -> list[tuple[float, ...]]:
    """The windows that are bounded, in order: head, tail, what is known beyond them, and the work left."""
    NoSpread.asked.clear()
    monkeypatch.setattr(windows, "_Spread", spread)
    windows.load_bound(*shared, **limits)  # type: ignore[arg-type]
    return list(NoSpread.asked)


@pytest.mark.parametrize("host", [0.0, 1.0])
def test_windows_that_promise_most_are_bounded_first(monkeypatch: pytest.MonkeyPatch, host: float) -> None:
    """One op, eight on two devices, one op: 6 s from the eight alone, 5.5 s with either end, 5 s with both, 2.5 s for
    an end; nothing for the empty window, nor for what promises less than is known, and hosts do not count.
    """
    problem = layers([1, 8, 1], link=0.0, host=host)
    classes = device_classes(problem)
    shared = problem, classes, possible_seconds(problem, classes), windows.bound_paths(problem)
    order = [(1, 1, -2, 9.0), (0, 1, 1, 8.9), (1, 0, 1, 8.8), (0, 0, 2, 8.7), (0, 2, 0, 8.6), (2, 0, 0, 8.5)]
    assert asked_windows(monkeypatch, NoSpread, *shared, work=9.0) == order
    short = [(1, 1, -2, 0.25), (0, 1, 1, 0.15), (1, 0, 1, 0.05)]
    assert asked_windows(monkeypatch, NoSpread, *shared, work=0.25) == short
    assert asked_windows(monkeypatch, NoSpread, *shared, above=5.6) == [(1, 1, 3.6, 0.3)]


@pytest.mark.parametrize("turned", [False, True])
def test_windows_beside_one_that_is_bounded_are_left_out(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    """Of 64 heads, or tails, on two devices the last promises most; two beside it differ by too little to be asked."""
    problem = layers([64], link=0.0)
    classes, ends = device_classes(problem), (np.arange(64.0), np.zeros(64))
    paths = windows.PathBounds(np.ones(64), *(ends[::-1] if turned else ends))
    spread = partial(NoSpread, worthless=True)
    found = asked_windows(monkeypatch, spread, problem, classes, possible_seconds(problem, classes), paths, work=9.0)
    assert [row[1 if turned else 0] for row in found] == list(range(63, -1, -3))


@pytest.mark.parametrize("count", [7, 300])
def test_windows_hold_the_ops_between_their_ends(count: int) -> None:
    """The load of every window, op by op; where there are many heads, 96 of them from the first to the last."""
    rng = np.random.default_rng(count)
    head, tail, seconds = rng.permutation(count) / 2.0, rng.integers(0, 4, count) / 1.0, rng.integers(0, 5, count) / 1.0
    found = windows.list_windows(windows.PathBounds(seconds, head, tail))
    assert found.tails.tolist() == sorted(set(tail.tolist()))
    assert len(found.heads) == min(count, 96) and {found.heads[0], found.heads[-1]} == {0.0, (count - 1) / 2}
    assert set(found.heads.tolist()) <= set(head.tolist()) and (np.diff(found.heads) > 0).all()
    inside = (head >= found.heads[:, None, None]) & (tail >= found.tails[None, :, None])
    assert found.load.tolist() == (inside * seconds).sum(axis=2).tolist()


def test_a_window_counts_what_is_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any window, op by op and tensor by tensor: seconds of ops that may run inside, tensors that are made after it
    begins and read before it ends, and outputs only where it ends with everything.
    """
    given: list[tuple[list[float], list[bool], list[bool]]] = []

    def seen(problem: Problem, _: object, times: Floats, traffic: tuple[Bools, Bools]) -> None:
        totals = np.where(np.isfinite(times), times, 0.0).sum(axis=0)
        given.append((totals.tolist(), traffic[0].tolist(), traffic[1].tolist()))
        raise StopIteration

    monkeypatch.setattr(windows, "list_traffic", lambda _, counted, leaving: (counted, leaving))
    monkeypatch.setattr(windows, "Sides", seen)
    for seed in seeds(120):
        problem = tangled_problem(seeded(seed), "operator")
        classes, paths = device_classes(problem), windows.bound_paths(problem)
        times = block_seconds(problem, classes.example)
        if not np.isfinite(times).all():
            continue
        rng, a = np.random.default_rng(seed), arrays_of(problem)
        h, q = float(rng.choice(paths.head)), float(rng.choice([0.0, *paths.tail]))
        with pytest.raises(StopIteration):
            windows._Spread(problem, classes, times, classes.count, paths).bound(h, q, 0.0, 1.0, lambda: True)
        inside = [op for op in range(problem.n_ops) if paths.head[op] >= h and paths.tail[op] >= q]
        ends = [float(paths.head[op] + paths.seconds[op]) if op >= 0 else 0.0 for op in a.producer.tolist()]
        uses = zip(a.consumed.tolist(), a.consumers.tolist(), strict=True)
        counted = [ends[t] >= h and paths.tail[op] + paths.seconds[op] >= q for t, op in uses]
        leaving = [bool(a.output[t]) and ends[t] >= h and q <= 0 for t in range(len(ends))]
        totals = [float(problem.costs.op_seconds[inside, d].sum()) for d in classes.example.tolist()]
        assert given.pop() == (pytest.approx(totals), counted, leaving)


def test_queues_between_devices_and_host_are_machines() -> None:
    """Two devices have two ways each way, one where they share a wire, and none for a device that may run nothing."""
    problem = layers([1, 2], link=1.0, host=1.0)
    shared = tuple(replace(link, shared="bus") if link.target == HOST else link for link in problem.cluster.links)
    wired = problem.with_(cluster=replace(problem.cluster, links=shared))
    alone = problem.with_(constraints=Constraints(forbidden=(Rule(".", "d1"),)))
    for own, ways in ((problem, [2, 2]), (wired, [1, 2]), (alone, [1, 1])):
        classes = device_classes(own)
        machines = classes.count
        spread = windows._Spread(own, classes, possible_seconds(own, classes), machines, windows.bound_paths(own))
        assert spread._machines.tolist() == [*machines.tolist(), *ways]


def heads_by_hand(problem: Problem, seconds: Floats, known: PathTimes) -> Floats:
    """Heads op by op: after all that is read, and on the path after what is proved."""
    head, start = np.zeros(problem.n_ops), dict(zip(known.path.tolist(), known.start.tolist(), strict=True))
    for op in range(problem.n_ops):
        head[op] = max(head[op], start.get(op, 0.0))
        for tensor in range(problem.graph.out_offsets[op], problem.graph.out_offsets[op + 1]):
            for reader in problem.graph.consumers_of(tensor).tolist():
                head[reader] = max(head[reader], head[op] + seconds[op])
    return head


def test_heads_and_tails_follow_what_is_proved():
    """Op by op the same heads; with a tail, no op exceeds the best value; intervals make some of them longer."""
    longer = 0
    for seed in seeds(120):
        problem = tangled_problem(seeded(500 + seed), "operator")
        seconds = best_seconds(problem, np.arange(problem.n_devices))
        known = solve_intervals(problem, work=0.03)
        _, head, tail = windows.bound_paths(problem, known)
        assert head == pytest.approx(heads_by_hand(problem, seconds, known), abs=1e-9)
        assert (head + seconds + tail).max() <= best_valid(problem) * (1 + 1e-9)
        plain = windows.bound_paths(problem)
        assert (head >= plain.head - 1e-9).all() and (tail >= plain.tail - 1e-9).all()
        longer += bool((head > plain.head + 1e-6).any() and (tail > plain.tail + 1e-6).any())
    assert longer > enough(10)


def test_sets_are_joined_and_find_their_neighbours() -> None:
    """Random pairs join what they connect, under the number of a member; an op must be in a set beside it where, coming
    after all that it reads from there and before all that reads it there, it would end too late.
    """
    for seed in range(20):
        rng = np.random.default_rng(seed)
        one, other = rng.integers(0, 12, (2, 7))
        joined = sharing.join_sets(np.arange(12), one, other)
        whole = np.eye(12, dtype=bool)
        whole[one, other] = whole[other, one] = True
        for _ in range(4):
            whole = whole @ whole
        assert ((joined[:, None] == joined) == whole).all() and whole[np.arange(12), joined].all()
        op, beside = rng.integers(0, 5, (2, 9))
        before, after, times = rng.integers(0, 9, 9), rng.integers(0, 9, 9), rng.integers(0, 6, (3, 5))
        seconds, head, tail = times.tolist()
        late = {
            (v, s)
            for v, s in zip(op.tolist(), beside.tolist(), strict=True)
            if max(head[v], *before[(op == v) & (beside == s)]) + seconds[v]
            + max(tail[v], *after[(op == v) & (beside == s)]) > 15
        }  # fmt: skip
        found = sharing._find_neighbours(op, beside, before, after, tuple(times), 15)
        assert set(zip(*(column.tolist() for column in found), strict=True)) == late


def test_no_calls_are_below_what_must_share_one():
    """In `subgraph` execution, against every placement and, where they are few, every way to cut calls."""
    bounded = larger = 0
    for seed in seeds(400):
        problem = tangled_problem(seeded(91_000 + seed), "subgraph", wide=seed % 4 == 0, n_ops=(4, 4 + seed % 3))
        classes, paths = device_classes(problem), windows.bound_paths(problem)
        best = optimum(problem) if seed % 3 == 0 else best_valid(problem)
        if best == np.inf:
            continue
        shared = sharing.sharing_bound(problem, classes, possible_seconds(problem, classes), paths, above=1e-9)
        assert max(shared.value, lower_bound(problem).value) <= best
        assert shared.method == "ops that must share a call"
        bounded, larger = bounded + 1, larger + (shared.value > path_bound(problem).value * (1 + 1e-6))
    assert bounded > enough(300)
    assert larger > enough(10)


def test_subgraph_schedules_are_no_operator_schedules():
    """Ten ops of 1 s on a host take 10 s one after the other, and 1 s at once in `subgraph` execution."""
    builder = GraphBuilder()
    for op in range(10):
        builder.add_op(f"op{op}", "Op")
    cluster = Cluster((Device("cpu", kind="cpu"),))
    costs = CostTable.given(np.ones((10, 1)), np.zeros((0, 1)))
    problem = Problem(builder.build(), cluster, costs, OPERATOR)
    assert lower_bound(problem).value == pytest.approx(10, rel=1e-9)
    calls = problem.with_(objective=Objective("latency", execution="subgraph"))
    assert lower_bound(calls).value == pytest.approx(1, rel=1e-9)
    assert best_valid(calls) == 1


def test_an_op_of_a_call_waits_for_all_of_the_call():
    """b and c (3 s each) read a (1 s), which takes 2 s to send and 2 s to receive: one call of 7 s, not of a and c."""
    builder = GraphBuilder()
    for name in "abc":
        builder.add_op(name, "Op")
    tensor = builder.add_tensor(0, nbytes=1)
    builder.add_edge(tensor, 1)
    builder.add_edge(tensor, 2)
    names = ("acc0", "acc1")
    cluster = Cluster(
        tuple(map(Device, names)), tuple(Link(*pair, 1.0) for n in names for pair in ((n, HOST), (HOST, n)))
    )
    costs = CostTable.given(np.array([[1.0] * 2, [3.0] * 2, [3.0] * 2]), np.array([[0.0, 2.0]]))
    problem = Problem(builder.build(), cluster, costs, Objective("latency", execution="subgraph"))
    assert path_bound(problem).value == pytest.approx(1 + 3 + 2, rel=1e-9)
    bound = lower_bound(problem)
    assert bound.method == "ops that must share a call" and bound.value == pytest.approx(7, rel=1e-3)
    assert best_valid(problem) == 7
