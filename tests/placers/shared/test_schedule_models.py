"""What the exact models are made of: literals by their truth tables, and schedules small enough to know by heart."""

from __future__ import annotations

import itertools
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model
from toy_problems import toy

from placewise import _native
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import Budget, Hints, SearchContext, Stopwatch
from placewise.placers.cp_sat.latency import LatencyLimits, improve
from placewise.placers.shared.schedule_models import incumbent as incumbents
from placewise.placers.shared.schedule_models.assignment import OpGroups, canonical_assignment, hop_count
from placewise.placers.shared.schedule_models.incumbent import Incumbent, find_incumbent
from placewise.placers.shared.schedule_models.model_builder import ModelBuilder
from placewise.placers.shared.solve import solve_model, solve_models, solver_parameters
from placewise.placers.shared.stages.phase_dp import _sum_weights
from placewise.placers.shared.starting_placements import StartingPlacements
from placewise.simulate import judge_placement


def feasible(kind: str, made: list[bool], constant: list[bool], want: bool | None) -> bool:
    """Whether a helper's answer may be `want` (None: whether the model holds) where its literals are `made`.

    `constant` says which of them are constants, the others are variables.
    """
    builder = ModelBuilder()
    literals: list[Any] = []
    for value, fixed in zip(made, constant, strict=True):
        literals.append(value if fixed else builder.literal())
        if not fixed:
            builder.model.add(literals[-1] == value)
    helpers = {
        "one_of": lambda: builder.one_of(literals), "either": lambda: builder.either(literals),
        "unless": lambda: builder.unless(literals[:-1], literals[-1]), "both": lambda: builder.both(*literals[:2]),
        "unless_all": lambda: builder.unless_all(literals[0], literals[1:]),
    }  # fmt: skip
    answer = helpers[kind]()
    if isinstance(answer, bool):
        if want is not None and answer != want:
            return False
    elif want is not None:
        builder.model.add(answer == want)
    return cp_model.CpSolver().solve(builder.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


@pytest.mark.parametrize("constant", list(itertools.product([False, True], repeat=3)))
def test_literals_mean_what_they_say(constant: tuple[bool, ...]) -> None:
    """Constants and variables alike: one of them, either, this unless that, both."""
    fixed = list(constant)
    for made in map(list, itertools.product([False, True], repeat=3)):
        if sum(value and known for value, known in zip(made, constant, strict=True)) <= 1 and (
            any(made) or not all(constant)
        ):
            assert feasible("one_of", made, fixed, None) == (sum(made) == 1)
        if sum(made) <= 1:
            assert feasible("either", made, fixed, any(made))
            assert not feasible("either", made, fixed, not any(made))
        must = {
            "unless": (made[0] or made[1]) and not made[2],
            "unless_all": made[0] and not (made[1] and made[2]),
            "both": made[0] and made[1],
        }
        for kind, needed in must.items():
            assert not (needed and feasible(kind, made, fixed, False)), (kind, made)
            assert not needed or feasible(kind, made, fixed, True), (kind, made)


def pinned_chain(execution: str, transfers: str, *, output: bool = False, back: bool = False) -> Problem:
    """a (2 s, d0) → b (3 s, the CPU, or d1 with `back`), a tensor of 1 s per hop; each op runs in one place only."""
    builder = GraphBuilder()
    builder.add_op("a", "Op", state_bytes=0)
    builder.add_op("b", "Op", state_bytes=0)
    builder.add_edge(builder.add_tensor(0, nbytes=1), 1)
    builder.add_tensor(1, nbytes=1, output=output)
    devices = (Device("d0"), Device("d1"), Device("cpu", kind="cpu"))
    ends = [("d0", HOST), (HOST, "d0"), ("d1", HOST), (HOST, "d1")]
    ends += [("d0", "d1"), ("d1", "d0")] if transfers == "direct" else []
    cluster = Cluster(devices, tuple(Link(*pair, 1.0) for pair in ends), transfers)  # type: ignore[arg-type]
    never = np.inf
    seconds = np.array([[2.0, never, never], [never, 3.0, never] if back else [never, never, 3.0]])
    moves = np.zeros((2, len(cluster.class_bandwidth)))
    moves[:, 1:] = 1.0
    objective = Objective("latency", execution=execution, memory="sum")  # type: ignore[arg-type]
    return Problem(builder.build(), cluster, CostTable.given(seconds, moves), objective)


def solved_alone(problem: Problem) -> Proposal:
    return improve(
        SearchContext(problem), Incumbent(problem, None, Bound(0.0, "none")), LatencyLimits(1 << 30, 1, None)
    )


@pytest.mark.parametrize("execution", ["operator", "subgraph", "sequential"])
@pytest.mark.parametrize(
    ("transfers", "output", "back", "seconds"),
    [
        ("staged", False, False, 2 + 1 + 3),  # one hop to the host
        ("direct", False, False, 2 + 1 + 3),
        ("staged", False, True, 2 + 1 + 1 + 3),  # over the host to the other accelerator
        ("direct", False, True, 2 + 1 + 3),
        ("staged", True, True, 2 + 1 + 1 + 3 + 1),  # and home
        ("direct", True, True, 2 + 1 + 3 + 1),
    ],
)
def test_a_chain_whose_ops_have_one_place_each(
    execution: str, transfers: str, output: bool, back: bool, seconds: float
) -> None:
    """The program alone finds and proves the only schedule there is; between calls, one sends and then one receives."""
    seconds += execution == "subgraph" and transfers == "direct" and back
    found = solved_alone(pinned_chain(execution, transfers, output=output, back=back))
    assert found.bound is not None and found.placement is not None
    assert found.bound.value == pytest.approx(seconds, rel=1e-5) and found.bound.value <= seconds
    assert found.placement.device.tolist() == [0, 1 if back else 2]


def test_between_two_calls_of_a_device_a_tensor_goes_through_the_host() -> None:
    """a (2 s, d0) → b (3 s, CPU) → c (2 s, d0), which reads a too: two sends of 1 s, two receipts, 11 s in all."""
    plain = pinned_chain("subgraph", "direct")
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op("abc"[op], "Op", state_bytes=0)
        builder.add_tensor(op, nbytes=1)
    for tensor, reader in ((0, 1), (1, 2), (0, 2)):
        builder.add_edge(tensor, reader)
    never, moves = np.inf, np.ones((3, len(plain.cluster.class_bandwidth)))
    moves[:, 0] = 0.0
    seconds = np.array([[2.0, never, never], [never, never, 3.0], [2.0, never, never]])
    problem = plain.with_(graph=builder.build(), costs=CostTable.given(seconds, moves))
    assert judge_placement(problem, Placement(np.array([0, 2, 0], np.int32))).value == 11
    found = solved_alone(problem)
    assert found.bound is not None and found.bound.value == pytest.approx(11, rel=1e-5) and found.bound.value <= 11


def test_hops_are_counted_by_the_way_that_tensors_take() -> None:
    """Two tensors and three devices: over the host up or down each, or between any two locations."""
    assert hop_count(pinned_chain("operator", "staged")) == 2 * 2 * 3
    assert hop_count(pinned_chain("operator", "direct")) == 2 * 3 * 4


def test_hosts_outside_a_domain_are_replaced_and_nothing_else() -> None:
    """Of three equal hosts one stands for all; an accelerator stays, in its domain or not."""
    hosts = tuple(Device(f"cpu{i}", kind="cpu") for i in range(2))
    links = tuple(Link(*ends, 1.0) for ends in (("gpu", HOST), (HOST, "gpu")))
    cluster = Cluster(
        (Device("gpu"), *hosts, Device("tpu", memory=7)), (*links, Link("tpu", HOST, 2.0), Link(HOST, "tpu", 2.0))
    )
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op(f"op{op}", "Op")
    seconds = np.array([[1.0, 1.0, 2.0, 1.0]] * 3)
    table = CostTable.given(seconds, np.zeros((0, len(cluster.class_bandwidth))))
    problem = Problem(builder.build(), cluster, table, Objective("latency", execution="operator"))
    groups = OpGroups(np.arange(3, dtype=np.int32), 3, ((0, 1), (0, 1), (1, 2)), None)
    assert canonical_assignment(problem, groups, np.array([3, 2, 2], np.int32)).tolist() == [3, 1, 2]


def test_the_bound_of_starting_placements_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a placer proved on the way counts, if it is higher; where none proved anything, what was known stays."""
    problem = toy().with_(objective=Objective("latency", memory="sum"))
    for told in (Bound(0.0, "less"), Bound(1e9, "more"), None):
        starts = StartingPlacements(bound=told)
        monkeypatch.setattr(incumbents, "find_starting_placements", lambda *_, starts=starts, **__: starts)
        bound = find_incumbent(SearchContext(problem), 0.5).bound
        assert (bound == told) == (told is not None and told.value > 1) and bound.value >= 1


def test_an_interrupt_keeps_what_hints_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while placers are asked for starts: the hint stays the best, and the reason is said."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(incumbents, "find_starting_placements", interrupt)
    problem = toy().with_(objective=Objective("latency", memory="sum"))
    hint = Placement(np.array([0, 1], np.int32))
    found = find_incumbent(SearchContext(problem, hints=Hints((hint,))), 0.5)
    assert found.best == hint and found.reason is Reason.INTERRUPTED and found.bound.value > 0


@pytest.mark.parametrize("execution", ["operator", "subgraph", "sequential"])
@pytest.mark.parametrize(
    ("shape", "seconds"), [({}, 3.0), ({"convex": True}, 12.0), ({"contiguous": True}, 12.0)], ids=str
)
def test_no_path_leaves_a_device_and_returns(execution: str, shape: dict[str, bool], seconds: float) -> None:
    """a → b → c with a and c at home on d0 (1 s, else 10 s) and b on d1: going there and back is 3 s, staying 12 s."""
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op("abc"[op], "Op", state_bytes=0)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    ways = [(d, HOST) for d in ("d0", "d1")] + [(HOST, d) for d in ("d0", "d1")]
    cluster = Cluster((Device("d0"), Device("d1")), tuple(Link(*way, 1.0) for way in ways))
    table = CostTable.given(
        np.array([[1.0, 10.0], [10.0, 1.0], [1.0, 10.0]]), np.zeros((3, len(cluster.class_bandwidth)))
    )
    objective = Objective("latency", execution=execution, memory="sum")  # type: ignore[arg-type]
    found = solved_alone(Problem(builder.build(), cluster, table, objective, Constraints(**shape)))
    assert found.bound is not None and found.bound.value == pytest.approx(seconds, rel=1e-5)


def test_weights_of_a_stage_count_once() -> None:
    """Two components that share a storage of 7 bytes, with 1, 2 and 4 bytes of their own."""
    costs: Any = SimpleNamespace(
        storage_offsets=np.array([0, 1, 2, 2]), storages=np.array([0, 0]), storage_bytes=np.array([7]),
        weight=np.array([1, 2, 4]),
    )  # fmt: skip
    for inside, total in (([1, 0, 0], 8), ([1, 1, 0], 10), ([0, 0, 1], 4), ([1, 1, 1], 14), ([0, 0, 0], 0)):
        assert _sum_weights(costs, np.array(inside, np.bool_)) == total


def test_a_model_without_solutions_has_no_bound() -> None:
    """The solver's bound is that of the only solution; −1 and nothing found where there is none."""
    model = cp_model.CpModel()
    number = model.new_int_var(0, 9, "")
    model.add(number >= 7)
    model.minimize(number)
    limits = {"num_workers": 1, "max_time_in_seconds": 60.0}
    solved = solve_model(model, limits)
    assert solved.finished and solved.found and solved.bound == solved.solver.value(number) == 7
    model.add(number <= 6)
    solved = solve_model(model, limits)
    assert solved.finished and not solved.found and solved.bound == -1


def pigeons(holes: int) -> cp_model.CpModel:
    """One pigeon more than holes: no solution, and no quick proof."""
    model = cp_model.CpModel()
    inside = [[model.new_bool_var("") for _ in range(holes)] for _ in range(holes + 1)]
    for row in inside:
        model.add_bool_or(row)
    for hole in range(holes):
        for one, other in itertools.combinations(range(holes + 1), 2):
            model.add_bool_or([~inside[one][hole], ~inside[other][hole]])
    return model


def test_an_interrupt_reaches_python_while_the_solver_runs() -> None:
    """Ctrl-C is Python's, not the solver's: it ends the search, which says so."""
    limits = {"num_workers": 1, "max_time_in_seconds": 60.0, "cp_model_presolve": False, "symmetry_level": 0}
    once = (signal.raise_signal(signal.SIGINT) for _ in range(1))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # solvers of other tests may have taken it away
    try:
        solved = solve_model(pigeons(12), limits, lambda _: next(once, None))
    finally:
        signal.signal(signal.SIGINT, before)
    assert solved.interrupted and not solved.found


def test_a_stop_from_another_thread_ends_every_model() -> None:
    """A flag that is up ends the search at its next look, with nothing found; the listener hears no more of it."""
    limits = {"num_workers": 1, "max_time_in_seconds": 60.0, "cp_model_presolve": False, "symmetry_level": 0}
    stop, heard = _native.StopFlag(), list[object]()
    stop.set()
    solved = solve_models([pigeons(12), pigeons(12)], limits, heard.append, threads=1, stop=stop)
    assert [(one.interrupted, one.found, one.finished) for one in solved] == [(True, False, False)] * 2 and not heard


@pytest.mark.parametrize(
    ("budget", "most_work", "work"),
    [
        (Budget(5.0, seed=3, gap=0.1), 7.0, None),
        (Budget(5.0, iterations=9), 7.0, 9.0),
        (Budget(iterations=9), 7.0, 9.0),
        (Budget(), 7.0, 7.0),
    ],
)
def test_budgets_become_parameters(budget: Budget, most_work: float, work: float | None) -> None:
    """Seconds, gap and seed as they are; deterministic work where it is asked for, or where nothing else ends it."""
    values = solver_parameters(Stopwatch(budget), workers=2, most_work=most_work)
    assert (values["num_workers"], values["random_seed"], values["relative_gap_limit"]) == (2, budget.seed, budget.gap)
    assert 0 < values["max_time_in_seconds"] <= budget.seconds
    assert values.get("max_deterministic_time") == work


def test_what_fails_in_the_solver_is_raised_to_the_caller() -> None:
    """An error in the thread of a model is no result."""
    broken: Any = None
    with pytest.raises(AttributeError):
        solve_model(broken, {"max_time_in_seconds": 1.0})


@pytest.mark.parametrize("execution", ["operator", "subgraph", "sequential"])
@pytest.mark.parametrize("transfers", ["staged", "direct"])
def test_a_tensor_goes_only_where_a_reader_is(execution: str, transfers: str) -> None:
    """a (2 s, CPU) is read by b, on the CPU or 100 s away on d0, and by c (3 s), which is 1 s away on d1: 6 s."""
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op("abc"[op], "Op", state_bytes=0)
    tensor = builder.add_tensor(0, nbytes=1)
    for reader in (1, 2):
        builder.add_edge(tensor, reader)
    rates = {"d0": 1.0, "d1": 2.0}
    links = tuple(Link(*ends, rate) for d, rate in rates.items() for ends in ((d, HOST), (HOST, d)))
    cluster = Cluster((Device("d0"), Device("d1"), Device("cpu", kind="cpu")), links, transfers)  # type: ignore[arg-type]
    moves = np.zeros((1, len(cluster.class_bandwidth)))
    moves[0, cluster.link_class[3, 0]], moves[0, cluster.link_class[3, 1]] = 100.0, 1.0
    never = np.inf
    seconds = np.array([[never, never, 2.0], [0.0, never, 0.0], [never, 3.0, never]])
    objective = Objective("latency", execution=execution, memory="sum")  # type: ignore[arg-type]
    found = solved_alone(Problem(builder.build(), cluster, CostTable.given(seconds, moves), objective))
    assert found.placement is not None and found.placement.device.tolist() == [2, 2, 1]
    assert found.bound is not None and found.bound.value == pytest.approx(6.0, rel=1e-5) and found.bound.value <= 6.0
