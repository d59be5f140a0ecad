"""windows: valid on random problems, never worse than where it starts, optimal where the whole is one window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from latency_brute_force import optimum
from ortools.sat.python.cp_model import OPTIMAL, CpSolver
from simulate_problems import random_problem, seeded
from soak import examples, seeds
from strategies import problems
from toy_problems import chains

from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Bound, Reason
from placewise.placers.base import Budget, Hints, Progress, SearchContext, run_placer
from placewise.placers.large_neighbourhood.latency_rounds import LatencyWindows
from placewise.placers.large_neighbourhood.latency_windows import count_in_steps, operator_window, window_state
from placewise.placers.large_neighbourhood.windows import WindowsOptions, WindowsPlacer
from placewise.placers.shared.schedule_models.assignment import op_groups
from placewise.placers.shared.schedule_models.incumbent import Incumbent
from placewise.placers.shared.schedule_models.model_builder import time_scale
from placewise.simulate import judge_placement


@examples(6)
@given(problems(kind="latency", max_ops=6))
def test_proposals_keep_the_rules(problem: Problem) -> None:
    """Whatever is proposed is valid, comes twice the same, and its bound is below it."""
    placer, budget = WindowsPlacer(), Budget(iterations=3, seed=1)
    if placer.supports(problem) is not None:
        return
    proposal = run_placer(placer, problem, budget)
    assert proposal.placement == run_placer(placer, problem, budget).placement
    if proposal.placement is None:
        assert proposal.notes or proposal.infeasible
        return
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid
    assert proposal.bound is not None and proposal.bound.value <= judged.value


@pytest.mark.parametrize("execution", ["subgraph", "operator"])
def test_small_problems_are_solved_from_a_bad_start(execution):
    """From everything on one device, windows of the whole problem lead to the optimum over calls and orders."""
    solved = tried = 0
    for seed in seeds(8):
        objective = Objective(execution=execution, memory="sum")
        problem = random_problem(seeded(seed), max_ops=4, max_devices=3, objective=objective)
        problem = problem.with_(objective=objective)
        known = Incumbent(problem, None, Bound(0.0, "none"))
        for d in range(problem.n_devices):
            known.offer(Placement.on(d, problem.n_ops))
        if known.best is None:
            continue
        LatencyWindows(SearchContext(problem, Budget(iterations=6)), known, size=16, together=2).run()
        best = optimum(problem)
        assert known.value >= best * (1 - 1e-12)
        tried, solved = tried + 1, solved + (known.value <= best * (1 + 1e-6))
    assert tried > len(seeds(8)) / 2 and solved >= 0.9 * tried


def test_a_window_is_solved_in_steps() -> None:
    """The solver counts steps of the horizon, and gains no single units; its answer is less than a step away."""
    problem, hint = chains(2, 3, "operator"), Placement(np.arange(6, dtype=np.int32) % 2)
    groups = op_groups(problem)
    now = window_state(problem, groups, hint)
    free = np.ones(groups.n, np.bool_)
    found = {}
    for share in (0.0, 0.25):
        model = operator_window(problem, groups, now, free, time_scale(problem, now.value, 1 << 22))
        count_in_steps(model, share)
        solver = CpSolver()
        assert solver.solve(model.builder.model) == OPTIMAL
        found[share] = solver.value(model.makespan)
    assert found[0.0] <= found[0.25] < found[0.0] + 0.25 * model.horizon
    assert solver.objective_value <= 4


@pytest.mark.parametrize("execution", ["subgraph", "operator"])
def test_windows_improve_what_they_start_from(execution):
    """A bad hint of a larger problem gets better, and is never lost."""
    problem = chains(2, 6, execution)
    hint = Placement(np.arange(problem.n_ops, dtype=np.int32) // 4)
    before = judge_placement(problem, hint)
    known = Incumbent(problem, None, Bound(0.0, "none"))
    assert known.offer(hint) and before.valid
    LatencyWindows(SearchContext(problem, Budget(iterations=1)), known, size=8, together=2).run()
    assert known.value < before.value
    assert known.best is not None and judge_placement(problem, known.best).value == known.value


def test_time_interruption_and_refusals():
    """No time leaves the hint, Ctrl-C the best so far; what it cannot do is said."""
    problem = chains(3, 6, "subgraph")
    hint = Hints((Placement.on(4, problem.n_ops),))
    assert run_placer(WindowsPlacer(), problem, Budget(seconds=0), hints=hint).placement is not None

    def impatient(progress: Progress) -> None:
        if progress.placer == "windows":
            raise KeyboardInterrupt

    proposal = run_placer(WindowsPlacer(), problem, Budget(seconds=2), hints=hint, on_progress=impatient)
    assert proposal.placement is not None and proposal.reason in (Reason.INTERRUPTED, Reason.FINISHED)
    shaped = problem.with_(constraints=Constraints(contiguous=True))
    assert "contiguous" in str(WindowsPlacer().supports(shaped))
    assert "sequential" in str(WindowsPlacer().supports(problem.with_(objective=Objective(execution="sequential"))))
    assert "local" in str(WindowsPlacer().supports(chains(40, 100, "subgraph")))
    with pytest.raises(PlacerError, match="size=0"):
        WindowsOptions(size=0)
