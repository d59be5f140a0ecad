"""windows for throughput: parts cut out exactly, rules kept, never worse than the start, optimal on small problems."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from plain_rules import valid_optimum
from simulate_problems import random_problem, seeded
from soak import enough, examples, seeds
from strategies import problems

from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Bound, Reason
from placewise.placers.base import Budget, Hints, Progress, SearchContext, run_placer
from placewise.placers.large_neighbourhood.choice import KINDS, choose_window
from placewise.placers.large_neighbourhood.subproblem import cut_window, movable_units
from placewise.placers.large_neighbourhood.throughput_windows import ThroughputWindows
from placewise.placers.large_neighbourhood.windows import WindowsOptions, WindowsPlacer
from placewise.simulate import judge_placement

SHAPES = (Constraints(), Constraints(contiguous=True))
FROM_HINTS = WindowsPlacer(WindowsOptions(search=0.0))


def states(problem: Problem, seed: int) -> list[Placement]:
    """Some placements of a problem that keep the rules."""
    rng = np.random.default_rng(seed)
    units = movable_units(problem)
    drawn = [np.zeros(units.n, int), rng.integers(problem.n_devices, size=units.n)]
    if problem.constraints.contiguous:
        drawn += [np.sort(row) for row in drawn]
    placed = [Placement(home[units.of].astype(np.int32)) for home in drawn]
    return [placement for placement in placed if judge_placement(problem, placement).valid]


@examples(8)
@given(problems(kind="throughput", max_ops=7))
def test_proposals_keep_the_rules_and_come_again(problem: Problem) -> None:
    """Whatever is proposed is valid, comes twice the same, is not below its bound and not above a hint."""
    if FROM_HINTS.supports(problem) is not None:
        return
    budget = Budget(iterations=2, seed=1)
    proposal = run_placer(FROM_HINTS, problem, budget)
    assert proposal.placement == run_placer(FROM_HINTS, problem, budget).placement
    if proposal.placement is None:
        assert proposal.notes or proposal.infeasible
        return
    judged = judge_placement(problem, proposal.placement)
    assert judged.valid and (proposal.bound is None or proposal.bound.value <= judged.value)
    for hint in states(problem, 3):
        again = run_placer(FROM_HINTS, problem, Budget(iterations=1), hints=Hints((hint,)))
        assert again.placement is not None
        assert judge_placement(problem, again.placement).value <= judge_placement(problem, hint).value


@pytest.mark.parametrize(("shape", "mode"), [*product(SHAPES, ("blocking", "overlap", "duplex"))])
def test_a_part_is_worth_what_it_says(shape: Constraints, mode: str) -> None:
    """Where transfers are staged, the part's value of any answer is the largest load of its devices in the whole."""
    told = 0
    for seed in seeds(10):
        objective = Objective("throughput", communication=mode, memory="sum")  # type: ignore[arg-type]
        problem = random_problem(
            seeded(seed), max_ops=14, max_devices=4, objective=objective, transfers="staged", wires=False,
            constraints=shape, training=False,
        )  # fmt: skip
        rng, units = np.random.default_rng(seed), movable_units(problem)
        for now in states(problem, seed):
            before = judge_placement(problem, now)
            loads = np.array([use.load for use in before.devices])
            kind = KINDS[int(rng.integers(len(KINDS)))]
            part = cut_window(
                problem, units, now, choose_window(kind, units, units.assignment(now.device), loads, 5, 2, rng)
            )
            assert part.lift(part.hint) == now
            small = part.coarse.problem
            for answer in (part.hint, *(Placement(draw(small, rng)) for _ in range(5))):
                inside = judge_placement(small, answer)
                outside = [d for d in range(problem.n_devices) if d not in part.devices]
                if not inside.valid or max((inside.devices[d].load for d in outside), default=0.0) == inside.value:
                    continue
                after = judge_placement(problem, part.lift(answer))
                assert after.valid and inside.value == pytest.approx(max(after.devices[d].load for d in part.devices))
                told += 1
    assert told > 12


def draw(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """Every block on a random device that may run it."""
    allowed = np.ones((problem.n_blocks, problem.n_devices), bool)
    np.logical_and.at(allowed, problem.block, problem.allowed)
    home = [int(rng.choice(np.flatnonzero(row))) if row.any() else 0 for row in allowed]
    return np.array(home, np.int32)[problem.block]


@pytest.mark.parametrize("shape", SHAPES)
def test_small_problems_are_solved_from_a_bad_start(shape: Constraints) -> None:
    """From everything on one device, windows lead to the optimum over all placements."""
    tried = solved = 0
    for seed in seeds(16):
        objective = Objective("throughput", memory="sum")
        problem = random_problem(
            seeded(seed), max_ops=6, max_devices=3, objective=objective, transfers="staged", wires=False,
            constraints=shape, alike=seed % 2 == 0,
        )  # fmt: skip
        start = [Placement.on(d, problem.n_ops) for d in range(problem.n_devices)]
        search = searching(problem, start, Budget(iterations=8))
        if search.answer().placement is None:
            continue
        search.run()
        placement = search.answer().placement
        assert placement is not None
        value, best = judge_placement(problem, placement).value, valid_optimum(problem)
        assert value >= best * (1 - 1e-9)
        tried, solved = tried + 1, solved + (value <= best * (1 + 1e-6))
    assert tried > enough(8) and solved == tried


def searching(problem: Problem, starts: list[Placement], budget: Budget, size: int = 16) -> ThroughputWindows:
    """A search from given placements, one window at a time."""
    hints = Hints(tuple(starts), bound=Bound(0.0, "none"))
    search = ThroughputWindows(SearchContext(problem, budget, hints), size=size, together=1)
    search.start(0.0)
    return search


def large(n: int) -> Problem:
    """A random problem of more than n ops on three devices or more."""
    objective = Objective("throughput", memory="sum")
    drawn = (
        random_problem(seeded(seed), max_ops=2 * n, max_devices=4, objective=objective, wires=False, training=False)
        for seed in range(1000)
    )
    return next(problem for problem in drawn if problem.n_ops > n and problem.n_devices > 2)


def test_time_and_interruption() -> None:
    """No time leaves the hint, Ctrl-C the best so far, and who found what is in the history."""
    problem = large(30)
    hint = states(problem, 0)[0]
    before = judge_placement(problem, hint).value
    none = run_placer(FROM_HINTS, problem, Budget(seconds=0), hints=Hints((hint,)))
    assert none.placement is not None and judge_placement(problem, none.placement).value == before
    assert none.reason is Reason.TIME_LIMIT

    def impatient(progress: Progress) -> None:
        raise KeyboardInterrupt

    done = run_placer(FROM_HINTS, problem, Budget(seconds=5), hints=Hints((hint,)), on_progress=impatient)
    assert done.placement is not None and judge_placement(problem, done.placement).value <= before
    assert [step.value for step in done.history] == sorted((step.value for step in done.history), reverse=True)


def test_large_windows_take_groups() -> None:
    """Of a graph much larger than a window, chunks hold every op of their devices, and the part stays small."""
    for shape in SHAPES:
        problem = large(80).with_(constraints=shape)
        units, now = movable_units(problem), states(problem, 1)[0]
        loads = np.array([use.load for use in judge_placement(problem, now).devices])
        window = choose_window("chunks", units, units.assignment(now.device), loads, 12, 3, np.random.default_rng(0))
        part = cut_window(problem, units, now, window)
        assert part.coarse.problem.n_blocks < 40 < problem.n_ops and part.lift(part.hint) == now
        assert (window.group[np.isin(units.assignment(now.device), window.devices)] >= 0).all()


def test_stages_that_share_devices() -> None:
    """Replicas of a pipeline stay or change with the devices of the window, and the answer is no worse."""
    better = 0
    for seed in seeds(12):
        objective = Objective("throughput", memory="sum")
        shape = Constraints(contiguous=True, replicas=0)
        problem = random_problem(
            seeded(seed), max_ops=10, max_devices=4, objective=objective, transfers="staged", wires=False,
            alike=True, constraints=shape,
        )  # fmt: skip
        start = Placement.on(0, problem.n_ops)
        if not judge_placement(problem, start).valid:
            continue
        found = run_placer(FROM_HINTS, problem, Budget(iterations=3), hints=Hints((start,)))
        assert found.placement is not None and judge_placement(problem, found.placement).valid
        assert judge_placement(problem, found.placement).value <= judge_placement(problem, start).value
        better += found.placement.replicas is not None
    assert better
