"""Guided search: probabilities of devices as hints, what is drawn from them, and searches that hear them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_brute_force import optimum as least_latency
from plain_rules import optimum as least_load
from simulate_problems import problems, random_problem, seeded
from soak import examples, seeds

from placewise import _native
from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget, Hints, run_placer
from placewise.placers.local_search.latency_chains import latency_search_problem
from placewise.placers.registry import create
from placewise.placers.shared import starting_placements
from placewise.placers.shared.move_space import build_move_space
from placewise.placers.shared.priors import draw_placements, empty_priors, match_labels, pick_quantiles, read_priors
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator, judge_placement
from placewise.zoo.random import random_graph

OPERATOR = Objective("latency", execution="operator")
OBJECTIVES = (OPERATOR, Objective("latency", execution="sequential"), Objective("throughput"))


def zoo_problem(objective: Objective = OPERATOR, devices: str = "3xP100", n_ops: int = 60) -> Problem:
    """A random graph of the zoo on devices that are alike."""
    graph, cluster = random_graph("branchy", n_ops, 905, size=64), read_cluster(devices)
    return Problem(graph, cluster, cost_table(graph, cluster), objective)


def certain(problem: Problem, device: Ints) -> Floats:
    """Probabilities [n_ops, n_devices] that leave no doubt."""
    sure: Floats = np.eye(problem.n_devices)[device]
    return sure


@st.composite
def rows(draw: st.DrawFn, n_devices: int = 4) -> Floats:
    """Probabilities [n, n_devices], many of them zero."""
    weights = draw(st.lists(st.lists(st.integers(0, 3), min_size=n_devices, max_size=n_devices), min_size=1))
    counts = np.array(weights, np.float64) + (np.sum(weights, axis=1, keepdims=True) == 0)
    shares: Floats = counts / counts.sum(axis=1, keepdims=True)
    return shares


@examples(80)
@given(problems(rules=True), st.integers(0, 1000))
def test_probabilities_of_blocks_are_shares_of_what_is_allowed(problem: Problem, seed: int) -> None:
    """Rows of blocks are never below zero, add up to 1 where the block may run, and are the sums of their ops'."""
    given_ = np.random.default_rng(seed).integers(0, 3, (problem.n_ops, problem.n_devices)).astype(np.float64)
    likely = read_priors(problem, Hints(probabilities=given_))
    assert likely.shape == (problem.n_blocks, problem.n_devices) and (likely >= 0).all()
    for block in range(problem.n_blocks):
        ops = np.flatnonzero(problem.block == block)
        able = problem.allowed[ops].all(axis=0)
        weight = given_[ops].sum(axis=0) * able
        if able.any():
            expected = weight / weight.sum() if weight.any() else able / able.sum()
            assert likely[block] == pytest.approx(expected)


def test_what_is_no_probability_is_refused() -> None:
    """Another shape, a NaN and a number below zero are refused in words by every search; no hint is no row."""
    problem = zoo_problem(n_ops=20)
    right = np.ones((problem.n_ops, problem.n_devices))
    broken_ones = (right[1:], right[:, 1:], np.where(np.arange(3) == 1, np.nan, right), -right)
    for probabilities in broken_ones:
        with pytest.raises(PlacerError, match=f"{problem.n_ops} × 3 numbers"):
            run_placer(create("temper"), problem, Budget(iterations=1), hints=Hints(probabilities=probabilities))
    assert read_priors(problem, Hints()).shape == empty_priors(3).shape == (0, 3)


@examples(80)
@given(rows())
def test_draws_are_as_frequent_as_their_probabilities(likely: Floats) -> None:
    """Of 400 evenly spread marks each group is on each device as often as it says, give or take one."""
    marks = (np.arange(400) + 0.5) / 400
    counts = sum(np.eye(4)[pick_quantiles(likely, mark)] for mark in marks.tolist())
    assert np.abs(counts - 400 * likely).max() <= 1 + 1e-6


@examples(60)
@given(rows(), st.floats(0, 1, exclude_max=True))
def test_kernels_draw_what_numpy_draws(likely: Floats, mark: float) -> None:
    """A mark is the same device inside kernels, but for rounding; elsewhere is home only where nothing else may be."""
    space = space_with(likely)
    for group, expected in enumerate(pick_quantiles(likely, mark).tolist()):
        found = space.prior_device(group, mark)
        assert found == expected or abs(likely[group, : min(found, expected) + 1].sum() - mark) < 1e-9
        for home in range(4):
            other = space.prior_other_device(group, home, mark)
            assert (other == home) == (likely[group, home] == 1 or likely[group].sum() == likely[group, home])
            assert other == home or likely[group, other] > 0


def space_with(likely: Floats) -> _native.MoveSpace:
    """Blocks [n] that need nothing and have no neighbours, and their probabilities [n, 4]."""
    n, none = len(likely), np.zeros(0, np.int32)
    return _native.MoveSpace(
        allowed=np.ones((n, 4), np.bool_),
        devices=np.arange(4, dtype=np.int32),
        capacity=np.full(4, np.inf),
        state_bytes=np.zeros(n, np.int64),
        storage_bytes=np.zeros(0, np.int64),
        storage_offsets=np.zeros(n + 1, np.int64),
        storages=none,
        user_offsets=np.zeros(1, np.int64),
        users=none,
        neighbour_offsets=np.zeros(n + 1, np.int64),
        neighbours=none,
        priors=likely,
    )


@examples(25)
@given(problems(rules=True, scarce=True), st.integers(0, 1000))
def test_what_is_drawn_keeps_the_rules(problem: Problem, seed: int) -> None:
    """Placements that are drawn are valid and different; the most probable one comes first where it is valid."""
    told = np.random.default_rng(seed).random((problem.n_ops, problem.n_devices))
    likely = read_priors(problem, Hints(probabilities=told))
    found = draw_placements(problem, likely, 6, seed)
    assert len(found) <= 6 and len({device.tobytes() for device in found}) == len(found)
    assert not any(find_broken_rule(problem, device) for device in found)
    likeliest = likely.argmax(axis=1).astype(np.int32)[problem.block]
    if not find_broken_rule(problem, likeliest):
        assert np.array_equal(found[0], likeliest)


@examples(50)
@given(problems(alike=True), st.integers(0, 1000))
def test_names_that_agree_change_no_value(problem: Problem, seed: int) -> None:
    """Devices that are alike are renamed, and the judge sees no difference."""
    rng = np.random.default_rng(seed)
    likely = read_priors(problem, Hints(probabilities=rng.random((problem.n_ops, problem.n_devices))))
    homes = rng.integers(0, problem.n_devices, (3, problem.n_blocks)).astype(np.int32)
    named = match_labels(problem, likely, homes)
    before, after = (Evaluator(problem)(each[:, problem.block]) for each in (homes, named))
    assert np.array_equal(before, after, equal_nan=True)


def test_a_placement_with_other_names_gets_those_of_the_probabilities() -> None:
    """Where only the names differ, they are the same afterwards."""
    problem = zoo_problem()
    home = np.random.default_rng(0).integers(0, 3, problem.n_blocks).astype(np.int32)
    likely = read_priors(problem, Hints(probabilities=certain(problem, home[problem.block])))
    assert np.array_equal(match_labels(problem, likely, np.array([2, 0, 1], np.int32)[home][None])[0], home)


def wandered(problem: Problem, likely: Floats | None, home: Ints) -> list[Ints]:
    """Where a chain of `operator` moves is after each of 300, all accepted."""
    chain, seen = _native.LatencyChain(latency_search_problem(problem, likely), home, 1), []
    chain.temperature = 1e9
    for _ in range(300):
        chain.run(1)
        seen.append(chain.assignment)
    return seen


def stepped(problem: Problem, likely: Floats | None, home: Ints) -> list[Ints]:
    """The same for the moves that are priced by somebody else."""
    proposer, seen = _native.MoveProposer(build_move_space(problem, likely), np.array([7], np.uint64)), [home]
    for _ in range(300):
        seen.append(proposer.propose(seen[-1][None])[0])
    return seen


@pytest.mark.parametrize("moved", [wandered, stepped])
def test_moves_lean_where_probabilities_are(moved: Callable[..., list[Ints]]) -> None:
    """Of moves that are all accepted, those with priors lead to what is probable more often than the others."""
    problem, rng = zoo_problem(), np.random.default_rng(3)
    shares = np.zeros((8, 2))
    for row in shares:
        wanted = rng.integers(0, 3, problem.n_blocks).astype(np.int32)
        likely = read_priors(problem, Hints(probabilities=0.9 * certain(problem, wanted[problem.block]) + 0.1 / 3))
        row[:] = [(np.stack(moved(problem, each, wanted)[100:]) == wanted).mean() for each in (likely, None)]
    told, alone = shares.mean(axis=0)
    assert told > alone + 0.03, shares


def test_untold_moves_are_what_they_always_were() -> None:
    """Without probabilities a seed gives the same moves for ever."""
    problem = zoo_problem(n_ops=20)
    home = (np.arange(problem.n_blocks) % 3).astype(np.int32)
    assert "".join(map(str, stepped(problem, None, home)[-1].tolist())) == "11111111110211011112"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_search_begins_at_the_likeliest_placement(objective: Objective) -> None:
    """A search with hardly any budget is as good as what it was told for sure."""
    problem = zoo_problem(objective, n_ops=40)
    name = "temper" if objective.kind == "latency" else "local"
    best = run_placer(create(name), problem, Budget(seed=2)).placement
    assert best is not None
    hints = Hints(probabilities=certain(problem, best.device))
    found = run_placer(create(name), problem, Budget(evaluations=20), hints=hints).placement
    assert found is not None and judge_placement(problem, found).value <= judge_placement(problem, best).value * (
        1 + 1e-12
    )


@pytest.mark.parametrize("seed", seeds(6))
def test_wrong_probabilities_hide_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told for sure to use the worst placement, searches still find the optimum of small problems."""
    monkeypatch.setattr(starting_placements, "DRAWN", 1)
    objective = replace(OBJECTIVES[seed % 3], memory="sum")
    problem = random_problem(seeded(seed), max_ops=5, max_devices=3, objective=objective)
    best = (least_latency if objective.kind == "latency" else least_load)(problem)
    device = np.full(problem.n_ops, seed % problem.n_devices, np.int32)
    hints = Hints(probabilities=certain(problem, device))
    found = run_placer(create("temper" if objective.kind == "latency" else "local"), problem, Budget(), hints=hints)
    assert (found.placement is None) == bool(np.isinf(best))
    if found.placement is not None:
        assert judge_placement(problem, found.placement).value == pytest.approx(best, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", ["temper", "multilevel", "windows", "auto"])
def test_whoever_searches_hears_probabilities(name: str) -> None:
    """With a sure and good hint every search ends at least as good, in next to no time; and the same twice."""
    problem = zoo_problem(n_ops=40)
    best = run_placer(create("temper"), problem, Budget(iterations=20, seed=2)).placement
    assert best is not None
    hints = Hints(probabilities=certain(problem, best.device))
    found = [run_placer(create(name), problem, Budget(iterations=2), hints=hints).placement for _ in range(2)]
    assert found[0] is not None and found[0] == found[1]
    assert judge_placement(problem, found[0]).value <= judge_placement(problem, best).value * (1 + 1e-12)


def test_other_quick_placers_are_asked_where_hints_say_who_made_them() -> None:
    """A poor hint by somebody else is no reason not to ask those who are quick."""
    problem = zoo_problem()
    poor = run_placer(create("single"), problem, Budget()).placement
    assert poor is not None
    alone, beside = (
        run_placer(create("temper"), problem, Budget(iterations=0), hints=Hints((poor,), by=by)).placement
        for by in ((), ("somebody",))
    )
    assert alone is not None and beside is not None
    assert (
        judge_placement(problem, beside).value
        < judge_placement(problem, alone).value
        == judge_placement(problem, poor).value
    )
