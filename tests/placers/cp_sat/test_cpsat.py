"""cpsat: the published integer program against brute force over all placements, contiguous and free."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model
from plain_rules import optimum, placements
from simulate_problems import random_problem, seeded
from soak import examples, seeds
from strategies import MODES, problems

from placewise.core.place import place
from placewise.errors import PlacerError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Outcome, Reason
from placewise.placers.base import Budget, Hints, run_placer
from placewise.placers.cp_sat.placer import CpsatOptions, CpsatPlacer, on_machines
from placewise.placers.cp_sat.throughput_model import ThroughputModel, n_variables, unit_of
from placewise.placers.shared.stages.stage_costs import price_stages
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.contiguity import contract


@examples(40)
@given(problems(kind="throughput", memory_model="sum", transfers="staged", wires=False, max_ops=5))
def test_the_program_is_the_optimum(problem: Problem) -> None:
    """Contiguous, convex and free, in every mode: the brute-force optimum, proved, or the proof that there is none."""
    best, proposal = optimum(problem), run_placer(CpsatPlacer(), problem, Budget())
    if math.isinf(best):
        assert proposal.placement is None and proposal.infeasible and proposal.reason is Reason.PROVED
        return
    assert proposal.placement is not None and proposal.bound is not None
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid
    assert judged.value == pytest.approx(best, rel=1e-5)
    assert best * (1 - 1e-5) <= proposal.bound.value <= best


@examples(20)
@given(problems(kind="throughput", max_ops=5))
def test_bounds_hold_whatever_the_links_and_the_memory_model(problem: Problem) -> None:
    """Direct links, shared wires and live activations: bound ≤ optimum, and what is proposed keeps the rules."""
    best, proposal = optimum(problem), run_placer(CpsatPlacer(), problem, Budget())
    if proposal.bound is not None:
        assert proposal.bound.value <= best
    if proposal.infeasible:
        assert not any(judge_placement(problem, Placement(np.array(device))).valid for device, _ in placements(problem))
    if proposal.placement is not None:
        judged = judge_placement(problem, proposal.placement)
        assert judged.valid and judged.value >= best * (1 - 1e-12)


@examples(10)
@given(problems(kind="throughput", memory_model="sum", transfers="staged", wires=False, max_ops=5))
def test_coarse_units_cost_quality_and_never_the_proof(problem: Problem) -> None:
    """With sixteen units to a value the bound still holds, and a hint is never made worse."""
    found = list(placements(problem))
    best = min((value for _, value in found), default=math.inf)
    proposal = run_placer(CpsatPlacer(CpsatOptions(units=16)), problem, Budget())
    assert proposal.bound is None or proposal.bound.value <= best
    if proposal.placement is not None:
        again = run_placer(CpsatPlacer(CpsatOptions(units=16)), problem, Budget(), hints=Hints((proposal.placement,)))
        assert again.placement is not None
        values = [evaluate(problem, p.device[None])[0] for p in (proposal.placement, again.placement)]
        assert best <= values[1] <= values[0] * (1 + 1e-12)


ROUNDED = re.compile(r"whole units of (\S+) s; the load of a device may have lost (\S+) s(?:, (\S+) % of the value)?")


@examples(20)
@given(
    problems(kind="throughput", memory_model="sum", transfers="staged", wires=False, max_ops=5),
    st.sampled_from([16, 1000, 1 << 30]),
    st.integers(0, 1000),
)
def test_the_note_on_rounding_is_true(problem: Problem, units: int, seed: int) -> None:
    """Costs from 1e-9 s to 1e3 s: value and bound are within the stated loss of the optimum, which is what it says."""
    rng = np.random.default_rng(seed)
    stretch = 10.0 ** rng.uniform(-9, 3, (problem.n_ops, 1)) if seed % 2 else np.ones((problem.n_ops, 1))
    problem = problem.with_(costs=replace(problem.costs, op_seconds=problem.costs.op_seconds * stretch))
    best = min((value for _, value in placements(problem)), default=math.inf)
    proposal = run_placer(CpsatPlacer(CpsatOptions(units=units)), problem, Budget())
    if math.isinf(best):
        assert proposal.infeasible
        return
    assert proposal.placement is not None and proposal.bound is not None
    said = ROUNDED.search(" ".join(proposal.notes))
    assert said is not None and proposal.reason is Reason.FINISHED
    unit, lost = float(said[1]), float(said[2])
    value = judge_placement(problem, proposal.placement).value
    slack = 1e-11 * value
    assert best - lost - slack <= proposal.bound.value <= best + slack and best - slack <= value <= best + lost + slack
    assert lost <= 1.01 * unit * (problem.n_blocks + problem.graph.n_tensors) + slack
    if said[3] is not None:
        assert 0.99 * lost / value <= float(said[3]) / 100 <= 1.02 * lost / value + 1e-300


def test_coarse_units_are_told_and_bad_ones_refused() -> None:
    """A unit of half the value loses much, and the note says so; no units at all are no option."""
    proposal = run_placer(CpsatPlacer(CpsatOptions(units=2)), unequal(3), Budget())
    said = ROUNDED.search(" ".join(proposal.notes))
    assert said is not None and float(said[3]) > 10
    for options in ({"units": 0}, {"units": 1.5}, {"workers": 0}, {"units": 1 << 50}):
        with pytest.raises(PlacerError, match="give a whole number from 1 to"):
            CpsatOptions(**options)  # type: ignore[arg-type]


def unequal(seed: int, transfers: str = "staged") -> Problem:
    """Seven ops on three accelerators that are equal but for their links, of which one is much quicker."""
    rng, builder = np.random.default_rng(seed), GraphBuilder()
    for op in range(7):
        builder.add_op(f"x{op}", "Op", state_bytes=1)
        for source in rng.choice(op, min(op, 2), replace=False).tolist() if op else []:
            builder.add_edge(source, op)
        builder.add_tensor(op, nbytes=1, output=op == 6)
    devices = tuple(Device(f"d{i}", memory=3) for i in range(3))
    links = [Link(*ends, (1.0, 8.0, 2.0)[i]) for i in range(3) for ends in ((f"d{i}", HOST), (HOST, f"d{i}"))]
    if transfers == "direct":
        links += [Link(f"d{i}", f"d{j}", float(rng.integers(1, 9))) for i in range(3) for j in range(3) if i != j]
    graph, cluster = builder.build(), Cluster(devices, tuple(links), transfers)  # type: ignore[arg-type]
    moves = rng.integers(1, 5, (graph.n_tensors, 1)) / np.array([math.inf, *cluster.class_bandwidth[1:]])
    costs = CostTable.given(np.tile(rng.integers(1, 9, (7, 1)), 3).astype(float), moves)
    return Problem(graph, cluster, costs, Objective("throughput", memory="sum"))


@pytest.mark.parametrize("transfers", ["staged", "direct"])
def test_equal_devices_with_unequal_links_are_not_equal(transfers: str) -> None:
    """Telling equal machines apart cuts off no optimum: exact where staged; a bound, and no more, where direct."""
    for seed in seeds(12):
        for constraints in (Constraints(), Constraints(convex=True), Constraints(contiguous=True)):
            problem = unequal(seed, transfers).with_(constraints=constraints)
            best, proposal = optimum(problem), run_placer(CpsatPlacer(), problem, Budget())
            assert proposal.placement is not None and proposal.bound is not None
            value = judge_placement(problem, proposal.placement).value
            assert proposal.bound.value <= best <= value * (1 + 1e-12)
            if transfers == "staged":
                assert value == pytest.approx(best, rel=1e-8) and proposal.bound.value == pytest.approx(best, rel=1e-6)


@examples(40)
@given(problems(kind="throughput", memory_model="sum", transfers="staged", wires=False, max_ops=6))
def test_hints_are_solutions_of_the_program(problem: Problem) -> None:
    """Every placement, renamed as the program wants equal machines, is one: with it fixed the program has its load."""
    found = [device for device, _ in placements(problem)]
    if not found or len(found[0]) < 2:
        return
    device = np.array(found[len(found) // 2], np.int32)
    rules, graph = problem.constraints, contract(problem)
    group, n = (graph.component, graph.n) if rules.contiguous else (problem.block, problem.n_blocks)
    priced = price_stages(problem, group, n, problem.capacity)
    home = on_machines(priced, group, n, device)
    if (home < 0).any():
        return
    program = ThroughputModel(priced.costs, unit_of(priced, 0.0, 1 << 24))
    if rules.contiguous:
        program.chain(graph)
    else:
        program.order_by_compute()
        if rules.convex:
            program.convex(problem)
    program.start_from(home, graph if rules.contiguous else None)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    solver.parameters.num_workers, solver.parameters.catch_sigint_signal = 1, False
    assert solver.solve(program.model) == cp_model.OPTIMAL
    value, second = evaluate(problem, device[None])[0], program.unit / priced.scale
    assert solver.objective_value * second <= value * (1 + 1e-12)
    assert value <= solver.objective_value * second + program.lost / priced.scale * (1 + 1e-9) + 1e-12 * value


def test_tensors_that_move_together_are_one_in_the_program() -> None:
    """Forty tensors from one group of ops to another cost what one with their sum costs, and as many variables."""
    programs = []
    for count in (1, 40):
        builder = GraphBuilder()
        for name in ("a", "b", "c"):
            builder.add_op(name, "Op", state_bytes=1)
        for _ in range(count):
            tensor = builder.add_tensor(0, nbytes=1)
            for reader in (1, 2):
                builder.add_edge(tensor, reader)
        graph = builder.build()
        cluster = Cluster(
            tuple(Device(f"d{i}", memory=2) for i in range(2)),
            tuple(Link(*ends, 1.0) for i in range(2) for ends in ((f"d{i}", HOST), (HOST, f"d{i}"))),
        )
        seconds = np.array([math.inf, *cluster.class_bandwidth[1:]])
        costs = CostTable.given(np.ones((3, 2)), np.full((count, 1), 40 / count) / seconds)
        problem = Problem(graph, cluster, costs, Objective("throughput", memory="sum"))
        priced = price_stages(problem, problem.block, problem.n_blocks, problem.capacity)
        program = ThroughputModel(priced.costs, unit_of(priced, 0.0, 1 << 24))
        found = run_placer(CpsatPlacer(), problem, Budget())
        assert found.placement is not None and judge_placement(problem, found.placement).value == optimum(problem)
        programs.append((len(program.model.proto.variables), len(program.bundles), optimum(problem)))
    assert programs[0] == programs[1] and programs[0][1] == 1


def test_too_large_a_program_is_refused_with_its_size() -> None:
    """Before anything is built: about how many variables, how many are allowed, and what to use instead."""
    builder = GraphBuilder()
    for op in range(30_000):
        builder.add_op(f"x{op}", "Op")
        builder.add_tensor(op, nbytes=1)
    cluster = Cluster(tuple(Device(f"d{i}", kind="cpu") for i in range(8)))
    graph = builder.build()
    costs = CostTable.given(np.ones((30_000, 8)), np.zeros((30_000, 1)))
    problem = Problem(graph, cluster, costs, Objective("throughput"))
    for rules, size, instead in (
        (Constraints(), "720,000", "use auto or dpl"),
        (Constraints(contiguous=True), "720,000", "use dp or dpl"),
        (Constraints(convex=True), "960,000", "use dpl, whose"),
    ):
        refusal = CpsatPlacer().supports(problem.with_(constraints=rules))
        assert refusal is not None and f"about {size} variables" in refusal and "400,000" in refusal
        assert refusal.endswith(instead) or instead in refusal
    assert n_variables(problem) == 720_000


def test_without_a_budget_the_work_is_limited_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver's own measure of work ends the search, the same each time, and the notes say how to allow more."""
    monkeypatch.setattr("placewise.placers.cp_sat.placer.WORK", 1e-6)
    problem = unequal(1)
    first, again = (run_placer(CpsatPlacer(), problem, Budget()) for _ in range(2))
    assert first.reason is Reason.TIME_LIMIT and "a time limit allows more" in first.notes[-1]
    assert first.placement == again.placement and first.bound == again.bound
    timed = run_placer(CpsatPlacer(), problem, Budget(iterations=0))
    assert timed.reason is Reason.TIME_LIMIT and "after 0 units of its own work" in timed.notes[-1]


@pytest.mark.parametrize("mode", MODES)
def test_two_exact_methods_agree(mode: str) -> None:
    """dp and cpsat on contiguous problems that are too large for brute force: the same optimum, proved twice."""
    for seed in seeds(12):
        objective = Objective("throughput", communication=mode, memory="sum")  # type: ignore[arg-type]
        problem = random_problem(
            seeded(7000 + seed), max_ops=16, max_devices=4, objective=objective, scarce=seed % 2 == 0,
            alike=seed % 3 == 0, rules=seed % 4 == 0, transfers="staged", wires=False,
            constraints=Constraints(contiguous=True),
        )  # fmt: skip
        one, other = place(problem, "dp"), place(problem, "cpsat")
        assert one.status == other.status and one.status.reason is Reason.PROVED, seed
        assert (one.placement is None and other.placement is None) or one.value == pytest.approx(other.value, rel=2e-6)


def test_auto_proves_convex_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stages must be convex and placements are too many to try, auto asks cpsat for the optimum and the proof."""
    monkeypatch.setattr("placewise.placers.auto.strategy.FEW_BLOCKS", 0)
    problem = unequal(2).with_(constraints=Constraints(convex=True))
    result = place(problem)
    assert result.status.outcome is Outcome.OPTIMAL and result.value == pytest.approx(optimum(problem), rel=1e-6)
    assert result.bound.method == "integer program (CP-SAT)"


def test_a_program_that_takes_too_long_to_build_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best start is the answer, with a note."""
    monkeypatch.setattr("placewise.placers.cp_sat.placer.BUILD_PACE", 10.0)
    problem = random_problem(seeded(2), max_ops=60).with_(objective=Objective("throughput"))
    proposal = run_placer(CpsatPlacer(), problem, Budget(seconds=10.0))
    assert proposal.placement is not None and proposal.reason is Reason.TIME_LIMIT and proposal.bound is None
    assert any("too short to build the integer program" in note for note in proposal.notes)
