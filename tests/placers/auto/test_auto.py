"""auto as a portfolio: what it remembers, what it passes on, when it stops, and what it says when it finds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from simulate_problems import random_problem, seeded
from soak import enough, later, seeds
from toy_problems import zoo

import placewise as pw
from placewise._native import StopFlag
from placewise.coarsen.scopes import join_parts
from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import Bound, Outcome, Proposal, Reason
from placewise.placers.auto.history import POOL, History
from placewise.placers.auto.placer import _Portfolio, _Searcher
from placewise.placers.auto.strategy import FEW_BLOCKS, Turn, by_parts
from placewise.placers.base import Budget, Hints, Placer, Progress, SearchContext, Stopwatch, ignore, run_placer
from placewise.placers.registry import create
from placewise.reporting.sentences import history_line
from placewise.simulate import Evaluator, judge_placement

SHAPES: tuple[dict[str, bool], ...] = ({"contiguous": False}, {"contiguous": False, "convex": True}, {})
OBJECTIVES = (Objective("throughput"), Objective("latency"), Objective("latency", execution="subgraph"))


def posed(seed: int, objective: Objective, max_ops: int = 14) -> Problem:
    """A random problem of a given objective."""
    return random_problem(seeded(seed), max_ops=max_ops, objective=objective, constraints=Constraints())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_history_says_who_improved_what_and_when(objective: Objective) -> None:
    """Values fall, seconds do not, the last value is the judge's, and a line of the report names the last finder."""
    for seed in seeds(12):
        result = place(posed(seed, objective), "auto", Budget(0.1))
        values, seconds = ([getattr(step, what) for step in result.history] for what in ("value", "seconds"))
        assert values[-1] == pytest.approx(result.value) and all(a > b for a, b in pairwise(values))
        assert all(a <= b for a, b in pairwise(seconds)) and seconds[-1] <= result.seconds
        assert result.history[-1].placer in (history_line(result) or result.history[-1].placer)


def test_progress_names_who_has_the_best_value() -> None:
    """What auto passes on is the best of everybody: its value never rises, its bound never falls, `by` has found it."""
    said: list[Progress] = []
    result = place(posed(3, OBJECTIVES[0], 30), "auto", Budget(0.5), on_progress=said.append)
    known = [state for state in said if state.value is not None and state.by]
    assert known and all(b.value <= a.value for a, b in pairwise(known))  # type: ignore[operator]
    assert known[-1].value >= result.value * (1 - 1e-9)  # type: ignore[operator]
    bounds = [state.bound for state in said if state.bound]
    assert all(bound <= result.value * (1 + 1e-9) for bound in bounds)


def test_stops_at_the_asked_gap() -> None:
    """With a gap that a naive answer keeps, nobody searches on: there is no more than one find."""
    problem = posed(0, OBJECTIVES[0], 30)
    result = place(problem, "auto", Budget(300.0, gap=0.99))
    assert 0.1 < result.gap <= 0.99 and result.status.reason is Reason.GAP
    assert len(result.history) == 1


def history_of(problem: Problem) -> History:
    budget = Budget(5.0)
    return History(problem, Evaluator(problem), Stopwatch(budget), ignore, True)


def test_history_keeps_claims_that_the_judge_confirms() -> None:
    """A claim below what the judge then says is dropped; one above it is a step on the way."""
    problem = posed(1, OBJECTIVES[1])
    on_first = Placement(np.zeros(problem.n_ops, np.int32))
    value = judge_placement(problem, on_first).value
    history = history_of(problem)
    for claim in (value * 3, value * 2, value / 2):
        history.report(Progress("someone", 0.0, "", claim))
    assert history.record("someone", Proposal(on_first))
    assert [step.value for step in history.history] == pytest.approx([value * 3, value * 2, value])


def test_history_remembers_the_best_once_each() -> None:
    """The pool is sorted, has each placement once and no more than a few; the bound is the highest."""
    problem = random_problem(seeded(2), max_ops=14, objective=OBJECTIVES[1], constraints=Constraints(), max_devices=4)
    history, rng = history_of(problem), np.random.default_rng(0)
    for number in range(20):
        device = rng.integers(0, problem.n_devices, problem.n_blocks).astype(np.int32)[problem.block]
        for _ in range(2):
            history.record("someone", Proposal(Placement(device), Bound(float(number), "a test")))
    values = [held.value for held in history.pool]
    assert values == sorted(values) and 0 < len(values) <= POOL
    assert len({held.proposal.placement.device.tobytes() for held in history.pool}) == len(values)  # type: ignore[union-attr]
    assert history.bound is not None and history.bound.value == 19.0


def test_goes_on_from_a_hint() -> None:
    """The optimum as a hint stays the answer, also without time."""
    problem = posed(7, OBJECTIVES[0])
    best = place(problem, "auto", Budget(0.5))
    assert best.placement is not None
    again = place(problem, "auto", Budget(0.0), hints=Hints((best.placement,)))
    assert again.value <= best.value * (1 + 1e-12)


def test_unknown_says_what_was_tried() -> None:
    """Where nothing was found and nothing proved, the status is unknown and a note names who tried."""
    for seed in seeds(200):
        problem = random_problem(seeded(seed), max_ops=12, scarce=True, objective=OBJECTIVES[0])
        result = place(problem, "auto", Budget(0.0))
        if result.status.outcome is Outcome.UNKNOWN:
            assert any("was found by" in note for note in result.notes)
            return
    pytest.fail("no problem of these is hard enough")


def posed_with_choices() -> Problem:
    """A problem of latency on several devices that is too large to try everything."""
    drawn = (posed(seed, OBJECTIVES[1], 60) for seed in range(50))
    return next(problem for problem in drawn if problem.n_devices > 1 and problem.n_blocks > FEW_BLOCKS)


def started_until_searches(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, **paces: float
) -> tuple[list[str], float]:
    """The placers that auto starts before its first search, and its value; `paces` replace its expected seconds."""
    for name, pace in paces.items():
        monkeypatch.setattr(f"placewise.placers.auto.placer.{name}", pace)
    stop, started = StopFlag(), list[str]()

    def listen(state: Progress) -> None:
        if state.message == "starting":
            started.append(state.placer)
        if state.placer in ("windows", "local", "paths", "pack"):
            stop.set()

    return started, place(problem, "auto", Budget(120.0, stop=stop), on_progress=listen).value


def test_a_list_scheduler_runs_though_quick_placers_have_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each quick placer would take too long, only heft runs, and the answer is no worse than its own."""
    problem = posed_with_choices()
    started, value = started_until_searches(problem, monkeypatch, QUICK_PACE=1e6)
    assert started[:1] == ["heft"] and "etf" not in started
    assert value <= place(problem, "heft").value * (1 + 1e-9)


def test_no_list_scheduler_runs_that_cannot_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list scheduler that is expected to take longer than the time that is left never starts."""
    problem = posed_with_choices()
    started, _ = started_until_searches(problem, monkeypatch, QUICK_PACE=1e6, NEEDED_PACE=1e6)
    assert "heft" not in started and "etf" not in started


def test_a_quick_placer_without_time_left_keeps_no_list_scheduler_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no single device holds the model, `single` comes first, has no time, and heft still runs."""
    problem = posed_with_choices()
    monkeypatch.setattr("placewise.placers.auto.placer.QUICK_PACE", 1e6)
    start = place(problem, "topo").placement
    assert start is not None
    stop, started = StopFlag(), list[str]()

    def listen(state: Progress) -> None:
        started.extend([state.placer] if state.message == "starting" else [])
        if len(started) > 1:
            stop.set()

    run_placer(create("auto"), problem, Budget(120.0, stop=stop), hints=Hints((start,)), on_progress=listen)
    assert started[0] == "heft"


@pytest.mark.parametrize(("max_ops", "seed"), [(60, 49), later(60, 67)])
def test_a_freer_problem_has_no_worse_answer(max_ops: int, seed: int) -> None:
    """Without a time limit: any sets of ops ≤ convex ones ≤ a chain of stages, also where searches alone miss that."""
    tight = random_problem(
        seeded(seed), max_ops=max_ops, objective=Objective("throughput", "duplex"), rules=True,
        constraints=Constraints(contiguous=True), scarce=seed % 2 == 0,
    )  # fmt: skip
    posed_as = [tight.with_(constraints=replace(tight.constraints, **rules)) for rules in SHAPES]
    results = [place(problem, "auto", Budget(iterations=1, evaluations=1)) for problem in posed_as]
    free, convex, chain = (result.value for result in results)
    assert free <= convex * (1 + 1e-9) and convex <= chain * (1 + 1e-9) and free < chain
    for result in results:
        assert result.notes[0].removeprefix("auto took the placement of ") == result.history[-1].placer
        assert all(later.value < earlier.value for earlier, later in pairwise(result.history))
        assert all(earlier.seconds <= later.seconds for earlier, later in pairwise(result.history))


@pytest.mark.parametrize(("kind", "contiguous"), [("latency", False), ("throughput", False), ("throughput", True)])
def test_more_work_never_gives_a_worse_answer(kind: Literal["latency", "throughput"], contiguous: bool) -> None:
    """With one seed, a budget of more iterations finds what each smaller one finds, or better.

    At times it is better, but for chains of stages: `dp` solves those of this size with any budget.
    """
    better = 0
    for seed in seeds(12):
        problem = random_problem(
            seeded(seed), max_ops=24, objective=Objective(kind), constraints=Constraints(contiguous=contiguous)
        )
        values = [place(problem, "auto", Budget(iterations=most, seed=seed)).value for most in (0, 1, 4)]
        assert all(later <= earlier for earlier, later in pairwise(values)), f"seed {seed}: {values}"
        better += values[-1] < values[0]
    assert better or contiguous


def test_restarts_go_back_to_the_beginning_and_keep_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search of a latency begins at the quick placers' placements; the answer is the best of all searches."""
    for name, value in {"WORTH_GOING_ON": 1.0, "FEW_ROUNDS": 0, "SECONDS_PER_OP": 0.0}.items():
        monkeypatch.setattr(f"placewise.placers.auto.placer.{name}", value)
    pools: list[list[str]] = []
    reached: list[float] = []

    def converge(portfolio: _Portfolio, searchers: Sequence[_Searcher]) -> None:
        pools.append([candidate.placer for candidate in portfolio.history.recent])
        search(portfolio, searchers)
        reached.append(portfolio.history.recent_value)
        if len(reached) > 1:
            stop.set()

    search, stop = _Portfolio._converge, StopFlag()
    monkeypatch.setattr(_Portfolio, "_converge", converge)
    result = place(zoo("layered", 400, 0, "4xP100"), "auto", Budget(10.0, stop=stop))
    assert len(reached) > 1 and all(pool == pools[0] for pool in pools) and "local" not in pools[0]
    assert result.value <= min(reached) * (1 + 1e-12)


@pytest.mark.parametrize("ahead", [True, False])
def test_searches_begin_at_whole_parts_where_these_are_ahead(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of whole parts and the usual one have a turn each; the better goes on from what it found."""
    problem = pw.build("zoo:rnnlm-2", "2xL4", pw.ProblemOptions(objective="latency", dims={"steps": 12}))
    good, bad = np.zeros(problem.n_ops, np.int32), np.arange(problem.n_ops, dtype=np.int32) % 2
    start = np.array((*bad[:-20], *good[-20:]), np.int32)

    def rotate(run: _Portfolio, turns: Sequence[_Searcher], _until: float, _patience: float) -> None:
        joined = all(searcher.turn.shape == "parts" for searcher in turns)
        run.history.record("a search", Proposal(Placement(good if joined == ahead else bad)))

    monkeypatch.setattr(_Portfolio, "_rotate", rotate)
    run, usual = _Portfolio(SearchContext(problem, Budget(100.0))), _Searcher(Turn("local"), 1.0)
    usual.idle = 1
    run.history.record("before", Proposal(Placement(start)))
    parts = run._try_parts([usual])
    assert [searcher.turn.placer for searcher in parts] == (["multilevel", "local"] if ahead else [])
    assert usual.idle == (0 if ahead else 1)
    kept = [good] if ahead else [good, start]
    assert list(run.history.placements) == [Placement(device) for device in kept]


def test_a_rule_that_parts_a_part_is_no_proof() -> None:
    """Two ops of one step, pinned to different devices."""
    pins = tuple(Rule(f"layer.0.step.3/{op}$", f"cuda:{d}") for d, op in enumerate(("Mul", "Tanh")))
    options = pw.ProblemOptions(objective="latency", dims={"steps": 12})
    problem = pw.build("zoo:rnnlm-2", "2xL4", options)
    joined = join_parts(problem.with_(constraints=replace(problem.constraints, pins=pins)))
    assert joined.n_blocks > join_parts(problem).n_blocks
    assert place(joined, "local", Budget(iterations=1)).status.outcome is not Outcome.INFEASIBLE


def test_parts_of_many_blocks_are_searched_as_a_whole() -> None:
    """Steps of a recurrent network are; ops of one scope each, and graphs without scopes, have no such search."""
    options = pw.ProblemOptions(objective="latency", dims={"steps": 12})
    assert [turn.placer for turn in by_parts(pw.build("zoo:rnnlm-2", "2xL4", options))] == ["multilevel", "local"]
    assert not by_parts(pw.build("zoo:bert-base", "2xL4", pw.ProblemOptions(objective="latency", dims={"layers": 2})))
    assert not by_parts(zoo("layered", 400, 0))


def test_windows_go_on_from_the_chain_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """On large graphs with stages of any sets a chain is searched from scratch, then windows improve on it."""
    problem = zoo("layered", 60, 0, "2xP100").with_(objective=Objective("throughput"), constraints=Constraints())
    chain = Placement((np.arange(problem.n_ops) >= problem.n_ops // 2).astype(np.int32))
    given: list[tuple[str, tuple[Placement, ...]]] = []

    def run(placer: Placer, posed: Problem, _budget: Budget, *, hints: Hints, **_: Any) -> Proposal:
        """Only placers of chains find something."""
        if posed.constraints.contiguous:
            given.append((placer.info.name, hints.placements))
        return Proposal(chain if posed.constraints.contiguous else None)

    monkeypatch.setattr("placewise.placers.auto.strategy.MANY_OPS", 0)
    monkeypatch.setattr("placewise.placers.auto.placer.run_placer", run)
    monkeypatch.setattr(_Portfolio, "_search", lambda *_: None)
    _Portfolio(SearchContext(problem, Budget(100.0))).run_pass(None)
    assert given == [("multilevel", ()), ("windows", (chain,))]


def test_what_no_sets_reach_bounds_chains_of_stages() -> None:
    """The proof for stages of any shape adds a bound, valid for the best chain, and no placement."""
    raised = 0
    for seed in seeds(12):
        problem = random_problem(seeded(700 + seed), max_ops=8, max_devices=3, objective=Objective("throughput"))
        problem = problem.with_(constraints=Constraints(contiguous=True))
        optimum = place(problem, "exhaustive")
        if optimum.placement is None:
            continue
        context = SearchContext(problem, Budget(iterations=3), Hints(), Evaluator(problem), ignore)
        portfolio = _Portfolio(context)
        portfolio.history.bounds.append(Bound(0.0, "nonnegative costs"))
        portfolio._take(Turn("cover", shape="any"), 10.0)
        bound = portfolio.history.bound
        assert portfolio.history.best is None
        assert bound is not None and bound.value <= optimum.value * (1 + 1e-9)
        raised += bound.value > 0
    assert raised > enough(4)
