"""cpsat for latency: its programs against every placement with every set of calls and every order."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from latency_brute_force import optimum
from simulate_problems import random_problem, seeded
from soak import seeds
from toy_problems import chains

from placewise.core.place import place
from placewise.errors import PlacerError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import Budget, Hints, SearchContext, run_placer
from placewise.placers.cp_sat.latency import LatencyLimits, improve
from placewise.placers.cp_sat.placer import CpsatOptions, CpsatPlacer
from placewise.placers.shared.schedule_models.incumbent import Incumbent
from placewise.simulate import judge_placement
from placewise.simulate.bounds.infeasible import why_infeasible


def from_nothing(problem: Problem, units: int = 1 << 30) -> Proposal:
    """What the program alone finds and proves: no hints, no search, no other bound."""
    missing = why_infeasible(problem)
    if missing:
        return Proposal(None, infeasible=missing)
    limits = LatencyLimits(units, 1, None)
    return improve(SearchContext(problem), Incumbent(problem, None, Bound(0.0, "none")), limits)


def small(seed: int, execution: str, constraints: Constraints | None = None) -> Problem:
    """A random problem of up to four ops on up to three devices: staged or direct, memory tight or not."""
    objective = Objective("latency", execution=execution)  # type: ignore[arg-type]
    problem = random_problem(
        seeded(seed), max_ops=4, max_devices=3, rules=seed % 3 == 0, scarce=seed % 2 == 0, objective=objective
    )
    return problem if constraints is None else problem.with_(constraints=constraints)


@pytest.mark.parametrize("execution", ["subgraph", "sequential"])
def test_the_program_is_the_optimum(execution):
    """Value, bound and brute force agree on random problems, and nothing is said to fit where nothing does."""
    solved = 0
    for seed in seeds(30):
        problem = small(seed, execution)
        best, proposal = optimum(problem), from_nothing(problem)
        if np.isinf(best):
            assert proposal.placement is None and proposal.infeasible
            continue
        assert proposal.placement is not None and proposal.bound is not None and not proposal.infeasible
        judged = judge_placement(problem, proposal.placement)
        assert judged.valid
        assert judged.value == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert best * (1 - 1e-6) <= proposal.bound.value <= best
        solved += best > 0
    assert solved > len(seeds(30)) / 2


def test_the_bound_holds_for_every_order():
    """`operator`: bound ≤ the best of all orders ≤ value, nearly always with equality."""
    solved = tried = 0
    for seed in seeds(16):
        problem = small(seed, "operator")
        best, proposal = optimum(problem), from_nothing(problem)
        if np.isinf(best):
            assert proposal.placement is None
            continue
        assert not proposal.infeasible and proposal.bound is not None
        assert proposal.bound.value <= best
        if proposal.placement is not None:
            judged = judge_placement(problem, proposal.placement)
            assert judged.valid and judged.value >= best * (1 - 1e-12)
            tried, solved = tried + 1, solved + (judged.value <= proposal.bound.value * (1 + 1e-6))
    assert tried > len(seeds(16)) / 2 and solved >= 0.9 * tried


@pytest.mark.parametrize("execution", ["subgraph", "sequential", "operator"])
@pytest.mark.parametrize("shape", [Constraints(contiguous=True), Constraints(convex=True)])
def test_shaped_stages(execution, shape):
    """Chains of stages and convex stages: the optimum of those that have the shape."""
    for seed in seeds(6):
        problem = small(seed, execution, shape)
        best, proposal = optimum(problem), from_nothing(problem)
        if np.isinf(best):
            assert proposal.placement is None
        elif execution == "operator":
            assert proposal.bound is not None and proposal.bound.value <= best
        else:
            assert proposal.placement is not None
            assert judge_placement(problem, proposal.placement).value == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_coarse_units_cost_quality_and_never_the_proof():
    """With sixteen units to a value the bound still holds."""
    for seed in seeds(12):
        problem = small(seed, ("subgraph", "sequential", "operator")[seed % 3])
        proposal = from_nothing(problem, units=16)
        if proposal.bound is not None:
            assert proposal.bound.value <= optimum(problem)


def test_calls_of_its_own():
    """Two branches on one accelerator: the host starts earlier if the first branch is a call of its own."""
    builder = GraphBuilder()
    for op, source in enumerate((None, None, 0)):
        builder.add_op(f"op{op}", "Op", state_bytes=0)
        builder.add_tensor(op, nbytes=1)
        if source is not None:
            builder.add_edge(source, op)
    cluster = Cluster((Device("acc"), Device("cpu", kind="cpu")), (Link("acc", HOST, 1.0), Link(HOST, "acc", 1.0)))
    seconds = np.array([[1.0, 20.0], [5.0, 20.0], [20.0, 6.0]])
    problem = Problem(
        builder.build(), cluster, CostTable.given(seconds, np.zeros((3, len(cluster.class_bandwidth)))),
        Objective(execution="subgraph", memory="sum"),
    )  # fmt: skip
    result = place(problem, "cpsat")
    assert result.value == 7.0 and str(result.status) == "optimal (proved)"
    assert result.placement is not None and result.placement.call is not None
    assert judge_placement(problem, Placement(result.placement.device)).value == 12.0


def test_more_calls_than_tried_leave_the_bound_to_others():
    """With one call per accelerator the program's optimum is no bound, and the note says so."""
    problem = small(5, "subgraph")
    known = Incumbent(problem, None, Bound(0.0, "none"))
    proposal = improve(SearchContext(problem), known, LatencyLimits(1 << 30, 1, 1))
    if max(problem.n_ops, 1) > 1:
        assert proposal.bound == Bound(0.0, "none")
        assert "calls per accelerator" in " ".join(proposal.notes)


@pytest.mark.parametrize("execution", ["subgraph", "operator", "sequential"])
def test_a_time_limit_leaves_the_best_so_far(execution):
    """Out of time the answer is at least as good as the hint, with a bound below it."""
    problem = chains(3, 8, execution)
    hint = Placement.on(4, problem.n_ops)
    begun = time.monotonic()
    proposal = run_placer(CpsatPlacer(), problem, Budget(seconds=0.5), hints=Hints((hint,)))
    assert time.monotonic() - begun < 100
    assert proposal.placement is not None and proposal.bound is not None
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid and proposal.bound.value <= judged.value <= judge_placement(problem, hint).value
    assert proposal.reason in (Reason.TIME_LIMIT, Reason.FINISHED)


def test_too_large_is_said_before_it_starts():
    """The refusal has an estimate and names what to use; bad options are refused."""
    problem = chains(40, 100, "subgraph")
    refusal = str(CpsatPlacer(CpsatOptions(calls=30)).supports(problem))
    assert "literals" in refusal and "local" in refusal
    for execution in ("operator", "sequential"):
        assert CpsatPlacer().supports(chains(50, 500, execution)) is not None
    with pytest.raises(PlacerError, match="calls=0"):
        CpsatOptions(calls=0)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("execution", ["subgraph", "operator"])
def test_ctrl_c_returns_the_best_so_far(execution):
    """A real SIGINT while the solver works ends it at once with the incumbent and the bound."""
    problem = chains(3, 12, execution)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # other tests may have solved something with OR-Tools' own
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    def interrupt(progress):
        if progress.message == "solving":
            timer.start()

    hints, placer = Hints((Placement.on(4, problem.n_ops),)), CpsatPlacer(CpsatOptions(search=0.0))
    proposal = run_placer(placer, problem, Budget(seconds=120), hints=hints, on_progress=interrupt)
    timer.cancel()
    assert proposal.reason is Reason.INTERRUPTED
    assert proposal.placement is not None and proposal.bound is not None


def test_auto_proves_small_problems():
    """Problems of a few ops come out of auto with the optimum and its proof, calls of their own included."""
    for seed in seeds(5):
        problem = small(seed, ("subgraph", "sequential")[seed % 2])
        best, result = optimum(problem), place(problem, "auto")
        if np.isinf(best):
            assert result.placement is None
            continue
        assert result.value == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert result.gap <= 1e-6


def test_memory_models_and_measurements():
    """Live activations only ever make it worse; a measurement may stand in for the judge."""
    for seed in (2 * number for number in seeds(24)):
        problem = small(seed, "subgraph")
        free = problem.with_(objective=replace(problem.objective, memory="sum"))
        tight = problem.with_(objective=replace(problem.objective, memory="live"))
        assert optimum(free) <= optimum(tight)
        last = problem.n_devices - 1
        proposal = run_placer(
            CpsatPlacer(),
            free,
            Budget(iterations=20),
            evaluate=lambda rows, last=last: 1e9 + (rows != last).sum(axis=1),
        )
        assert proposal.placement is None or judge_placement(free, proposal.placement).valid
