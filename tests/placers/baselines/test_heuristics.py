"""single, balanced, etf and auto: valid on random problems, right where the answer can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from plain_rules import keeps_the_rules, placements
from soak import examples
from strategies import problems

from placewise.errors import PlacerError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Floats, Ints
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import Reason
from placewise.placers.auto.placer import AutoPlacer
from placewise.placers.base import Budget, Hints, run_placer
from placewise.placers.baselines.balanced import BalancedPlacer
from placewise.placers.baselines.single import SinglePlacer
from placewise.placers.list_scheduling.etf import EtfOptions, EtfPlacer
from placewise.placers.pipeline_dp.placer import DpPlacer
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import interchangeable, relabel
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import evaluate, judge_placement, lower_bound

PLACERS = [SinglePlacer(), BalancedPlacer(), EtfPlacer(), EtfPlacer(EtfOptions(by="start")), AutoPlacer()]


def cluster(*devices: Device, transfers: str = "staged") -> Cluster:
    """Devices, each with a link of 1 byte/s to and from host memory, and, if direct, to each other."""
    ends = [device.name for device in devices if not device.is_host] + [HOST]
    pairs = [(a, b) for a in ends for b in ends if a != b and (transfers == "direct" or HOST in (a, b))]
    return Cluster(devices, tuple(Link(a, b, 1.0) for a, b in pairs), transfers)  # type: ignore[arg-type]


def chain(sizes: list[int], machines: Cluster, seconds: Floats, **options: object) -> Problem:
    """Ops in a row with these bytes of state, joined by tensors of one byte that take no time."""
    builder = GraphBuilder()
    for op, size in enumerate(sizes):
        builder.add_op(f"op{op}", "A", state_bytes=size)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    graph = builder.build()
    free = np.zeros((graph.n_tensors, len(machines.class_bandwidth)))
    return Problem(graph, machines, CostTable.given(seconds, free), **options)  # type: ignore[arg-type]


@examples(10)
@given(problems(max_ops=6))
def test_proposals_keep_the_rules(problem: Problem) -> None:
    """Whatever is proposed is valid, comes twice the same, and no proof of infeasibility is wrong."""
    for placer in PLACERS:
        if placer.supports(problem) is not None:
            continue
        proposal = run_placer(placer, problem, Budget(seed=1))
        assert proposal.placement == run_placer(placer, problem, Budget(seed=1)).placement
        if proposal.placement is None:
            assert proposal.notes or proposal.infeasible
            if proposal.infeasible:
                assert not any(keeps_the_rules(problem, device) for device, _ in placements(problem))
            continue
        kinds = {violation.kind for violation in judge_placement(problem, proposal.placement).violations}
        assert kinds <= ({"calls"} if placer is not PLACERS[-1] else set())


@examples(30)
@given(problems(max_ops=6))
def test_broken_agrees_with_the_judge(problem: Problem) -> None:
    """The quick look at the rules and the checker find fault with the same placements."""
    rng = np.random.default_rng(problem.n_ops)
    for _ in range(4):
        home = rng.integers(0, problem.n_devices, problem.n_blocks)
        device = home[problem.block].astype(np.int32)
        if rng.integers(0, 4) == 0:
            device = rng.integers(0, problem.n_devices, problem.n_ops).astype(np.int32)
        kinds = {violation.kind for violation in judge_placement(problem, Placement(device)).violations} - {"calls"}
        assert bool(find_broken_rule(problem, device)) == bool(kinds)


def test_single_takes_the_best_device_that_fits() -> None:
    """The quickest device is too small, the slowest is slow: the one between them is taken."""
    machines = cluster(Device("small", memory=5), Device("large", memory=50), Device("cpu", kind="cpu"))
    problem = chain([4, 4], machines, np.array([[1.0, 2.0, 9.0]] * 2), objective=Objective("throughput"))
    proposal = run_placer(SinglePlacer(), problem, Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [1, 1]
    assert proposal.notes == ()


def test_single_moves_what_the_device_may_not_run() -> None:
    """One op is pinned to the CPU: the rest stays together, and the note says so."""
    machines = cluster(Device("gpu"), Device("cpu", kind="cpu"))
    rules = Constraints(pins=(Rule("op1$", "cpu"),), forbidden=(Rule("op[02]$", "cpu"),))
    problem = chain([0, 0, 0], machines, np.array([[1.0, 9.0]] * 3), constraints=rules)
    proposal = run_placer(SinglePlacer(), problem, Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 1, 0]
    assert "1 on cpu" in proposal.notes[0]
    tight = problem.with_(
        objective=Objective("throughput"),
        constraints=Constraints(pins=rules.pins, forbidden=rules.forbidden, contiguous=True),
    )
    assert run_placer(SinglePlacer(), tight, Budget()).placement is None


def test_single_says_how_many_bytes_are_missing() -> None:
    """Where nothing fits there is no placement, and the reason names device and bytes."""
    problem = chain([8, 8], cluster(Device("a", memory=10), Device("b", memory=10)), np.ones((2, 2)))
    proposal = run_placer(SinglePlacer(), problem, Budget())
    assert proposal.placement is None and "short" in proposal.notes[0]


def test_balanced_splits_bytes_evenly() -> None:
    """1, 1, 3, 2, 3, 1 hundred bytes on three equal devices: in a row, 5 hundred is the least largest share."""
    machines = cluster(*(Device(f"gpu{i}") for i in range(3)), Device("cpu", kind="cpu"))
    problem = chain([100, 100, 300, 200, 300, 100], machines, np.ones((6, 4)))
    proposal = run_placer(BalancedPlacer(), problem, Budget())
    assert proposal.placement is not None
    device = proposal.placement.device
    assert device.tolist() == sorted(device.tolist()) and 3 not in device
    held = np.bincount(device, weights=problem.graph.ops.state_bytes, minlength=4)
    assert held.max() == 500


def test_balanced_finds_the_split_that_greedy_filling_misses() -> None:
    """2, 2, 3 on devices of 4 and 3 bytes in this order only: one fits exactly."""
    problem = chain(
        [2, 2, 3], cluster(Device("a", memory=4), Device("b", memory=3)), np.ones((3, 2)),
        objective=Objective("throughput", memory="sum"), constraints=Constraints(contiguous=True),
    )  # fmt: skip
    proposal = run_placer(BalancedPlacer(), problem, Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 0, 1]


def test_balanced_spills_to_the_host_as_little_as_it_can() -> None:
    """Two accelerators of 10 bytes and 26 bytes of model: the host takes one op of 6."""
    machines = cluster(Device("a", memory=10), Device("b", memory=10), Device("cpu", kind="cpu", memory=99))
    problem = chain([5, 5, 5, 5, 6], machines, np.ones((5, 3)), objective=Objective("throughput", memory="sum"))
    proposal = run_placer(BalancedPlacer(), problem, Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 0, 1, 1, 2]


def test_balanced_puts_what_only_the_host_can_run_on_the_host() -> None:
    """Ops that no accelerator runs are scattered over the model; the accelerators still share the rest."""
    machines = cluster(Device("a"), Device("b"), Device("cpu", kind="cpu"))
    seconds = np.ones((6, 3))
    seconds[[1, 4], :2] = math.inf
    proposal = run_placer(BalancedPlacer(), chain([9] * 6, machines, seconds), Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 2, 0, 1, 2, 1]


def test_one_op_that_no_accelerator_runs_goes_to_the_host() -> None:
    """A pipeline of a single op that only the host can run, or that fits nowhere else, runs there."""
    machines = cluster(Device("a", memory=5), Device("cpu", kind="cpu"))
    options = {"objective": Objective("throughput"), "constraints": Constraints(contiguous=True)}
    for problem in (
        chain([1], machines, np.array([[np.inf, 1.0]]), **options),
        chain([9], machines, np.array([[1.0, 3.0]]), **options),
    ):
        for placer in (BalancedPlacer(), DpPlacer(), AutoPlacer()):
            proposal = run_placer(placer, problem, Budget())
            assert proposal.placement is not None
            assert proposal.placement.device.tolist() == [1]
            assert lower_bound(problem).value > 0.99 * problem.costs.op_seconds[0, 1]


def test_etf_runs_branches_side_by_side() -> None:
    """Two chains without edges between them take one device each; the makespan is that of one chain."""
    builder = GraphBuilder()
    for op in range(6):
        builder.add_op(f"op{op}", "A")
        if op >= 2:
            builder.add_edge(op - 2, op)
        builder.add_tensor(op, nbytes=1)
    graph = builder.build()
    machines = cluster(Device("a"), Device("b"))
    costs = CostTable.given(np.ones((6, 2)), np.array([[0.0] + [1.0] * (len(machines.class_bandwidth) - 1)] * 6))
    problem = Problem(graph, machines, costs)
    proposal = run_placer(EtfPlacer(), problem, Budget())
    assert proposal.placement is not None and proposal.placement.device.tolist() == [0, 1] * 3
    assert evaluate(problem, proposal.placement.device[None]).tolist() == [3.0]


def test_etf_by_finish_leaves_the_slow_device_idle() -> None:
    """Two independent ops: by start the second goes to the idle CPU, by finish it waits for the accelerator."""
    builder = GraphBuilder()
    for op in range(2):
        builder.add_op(f"op{op}", "A")
    machines = cluster(Device("gpu"), Device("cpu", kind="cpu"))
    costs = CostTable.given(np.array([[1.0, 9.0]] * 2), np.zeros((0, len(machines.class_bandwidth))))
    problem = Problem(builder.build(), machines, costs)
    by = {
        rule: run_placer(EtfPlacer(EtfOptions(by=rule)), problem, Budget()).placement  # type: ignore[arg-type]
        for rule in ("finish", "start")
    }
    assert by["finish"] == Placement(np.array([0, 0]))
    assert by["start"] == Placement(np.array([0, 1]))


def test_etf_keeps_memory_and_says_when_it_runs_out() -> None:
    """A device that is full takes no more; if no device has room, what it would do is repaired, and a note says so."""
    machines = cluster(Device("a", memory=4), Device("b", memory=4))
    quick = np.array([[1.0, 8.0]] * 2)
    roomy = run_placer(EtfPlacer(), chain([3, 1], machines, quick, objective=Objective(memory="sum")), Budget())
    assert roomy.placement is not None and roomy.placement.device.tolist() == [0, 0]
    full = run_placer(EtfPlacer(), chain([3, 2], machines, quick, objective=Objective(memory="sum")), Budget())
    assert full.placement is not None and full.placement.device.tolist() == [0, 1]
    stuck = run_placer(
        EtfPlacer(),
        chain([2, 2, 3], machines, np.array([[1.0, 8.0], [8.0, 1.0], [1.0, 1.0]]), objective=Objective(memory="sum")),
        Budget(),
    )
    assert stuck.placement is not None and stuck.placement.device.tolist() in ([0, 0, 1], [1, 1, 0])
    assert "after 2 of 3 ops" in stuck.notes[0] and "moved" in stuck.notes[1]


def test_etf_options_are_refused_in_a_sentence() -> None:
    """An unknown rule is refused with the reason."""
    with pytest.raises(PlacerError, match="finish, start"):
        EtfOptions(by="luck")  # type: ignore[arg-type]


@examples(40)
@given(problems(max_ops=5))
def test_equal_devices_change_places_unnoticed(problem: Problem) -> None:
    """Relabelling keeps the value and every rule, and is the same for all names of a placement."""
    kind = interchangeable(problem)
    rng = np.random.default_rng(problem.n_ops)
    device = rng.integers(0, problem.n_devices, problem.n_ops).astype(np.int32)
    shuffled = np.arange(problem.n_devices, dtype=np.int32)
    for k in np.unique(kind):
        members = np.flatnonzero(kind == k)
        shuffled[members] = rng.permutation(members)
    other = shuffled[device]
    assert relabel(problem, device).tolist() == relabel(problem, other).tolist()
    renamed = relabel(problem, device)
    assert bool(find_broken_rule(problem, renamed)) == bool(find_broken_rule(problem, device))
    if np.isfinite(problem.costs.op_seconds[np.arange(problem.n_ops), device]).all():
        values = evaluate(problem, np.stack([device, renamed, other]))
        assert values[0] == pytest.approx(values[1]) == pytest.approx(values[2])


def test_fit_takes_back_what_activations_need() -> None:
    """A stage of 10 bytes and 2 of activations does not fit in 11: the budget of both equal devices shrinks by 1."""
    problem = chain([5, 5], cluster(Device("a", memory=11), Device("b", memory=11)), np.ones((2, 2)))
    asked: list[list[float]] = []

    def propose(capacity: Floats) -> Ints | None:
        asked.append(capacity.tolist())
        return np.array([0, 0] if capacity[0] >= 10 else [0, 1], np.int32)

    device, shrunk = fit_memory(problem, propose)
    assert device is not None and device.tolist() == [0, 1] and shrunk
    assert asked == [[11.0, 11.0], [9.0, 9.0]]
    assert fit_memory(problem, lambda capacity: None) == (None, False)


@examples(20)
@given(problems(kind="throughput", memory_model="sum", max_ops=5))
def test_auto_is_no_worse_than_what_it_tries(problem: Problem) -> None:
    """Its value is the best of its candidates'; what it proves is below the optimum."""
    proposal = run_placer(AutoPlacer(), problem, Budget())
    best = min((value for _, value in placements(problem)), default=math.inf)
    if proposal.bound is not None:
        assert proposal.bound.value <= best
    for placer in PLACERS[:2]:
        other = run_placer(placer, problem, Budget()).placement
        if other is not None:
            assert proposal.placement is not None
            values = evaluate(problem, np.stack([proposal.placement.device, other.device]))
            assert values[0] <= values[1]


def test_auto_without_time_still_answers() -> None:
    """A budget of nothing leaves the best single device."""
    problem = chain([1, 1], cluster(Device("a"), Device("b")), np.ones((2, 2)), objective=Objective("throughput"))
    proposal = run_placer(AutoPlacer(), problem, Budget(seconds=0.0), hints=Hints())
    assert proposal.placement is not None and proposal.reason in (Reason.FINISHED, Reason.TIME_LIMIT)


def test_auto_takes_a_hint_that_is_better() -> None:
    """A hinted placement that beats every placer is the answer; one that breaks a rule is not."""
    machines = cluster(Device("a"), Device("b"))
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op(f"op{op}", "A", state_bytes=op)
    seconds = np.array([[1.0, 8.0], [8.0, 1.0], [1.0, 8.0]])
    costs = CostTable.given(seconds, np.zeros((0, len(machines.class_bandwidth))))
    problem = Problem(builder.build(), machines, costs, constraints=Constraints(pins=(Rule("op0$", "a"),)))
    good, bad = Placement(np.array([0, 1, 0])), Placement(np.array([1, 1, 0]))
    proposal = run_placer(AutoPlacer(), problem, Budget(), hints=Hints((bad, good)))
    assert proposal.placement is not None
    value = evaluate(problem, np.stack([proposal.placement.device, good.device]))
    assert value[0] == value[1] == 2.0


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_nothing_is_placed_nowhere(kind: str) -> None:
    """A graph without ops has a placement without ops."""
    machines = cluster(Device("a"), Device("b"))
    none = CostTable.given(np.zeros((0, 2)), np.zeros((0, len(machines.class_bandwidth))))
    problem = Problem(GraphBuilder().build(), machines, none, Objective(kind))  # type: ignore[arg-type]
    for placer in (*PLACERS, DpPlacer()):
        if placer.supports(problem) is None:
            assert run_placer(placer, problem, Budget()).placement == Placement(np.zeros(0))
