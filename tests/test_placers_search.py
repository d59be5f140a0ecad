"""Local search for throughput: sums that stay the judge's whatever moves, on problems of every kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_problems import OBJECTIVES, random_problem, seeded

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.search.costs import costs_of
from placewise.placers.search.state import charge, memory_of, settle, state_of, value_of
from placewise.simulate import evaluate
from placewise.simulate.kernels import kernel
from placewise.simulate.memory import resident_bytes

PIPELINES = [objective for objective in OBJECTIVES if objective.kind == "throughput"]


@st.composite
def pipelines(draw: st.DrawFn, max_ops: int = 12) -> Problem:
    """Any problem of throughput: staged, direct, hosts, wires, phases, training graphs, both schedules."""
    objective = draw(st.sampled_from(PIPELINES))
    objective = replace(objective, schedule=draw(st.sampled_from(["1f1b", "gpipe"])), memory="sum")
    options = {"max_ops": max_ops, "scarce": draw(st.booleans()), "rules": draw(st.booleans())}
    return random_problem(seeded(draw(st.integers(0, 1 << 30))), objective=objective, **options)


@kernel
def _move(c, s, group, there):  # type: ignore[no-untyped-def]
    charge(c, s, group, there)
    settle(c, s, group, there)
    s.sums[:] = s.trial


@kernel
def _look(c, s, group, there):  # type: ignore[no-untyped-def]
    charge(c, s, group, there)


def able_homes(problem: Problem, rng: np.random.Generator) -> tuple[Ints, list[list[int]]] | None:
    """A random device per block where all its ops may run, and all such devices; None if some block has none."""
    allowed = np.ones((problem.n_blocks, problem.n_devices), np.bool_)
    np.logical_and.at(allowed, problem.block, problem.allowed)
    if not allowed.any(axis=1).all():
        return None
    choices = [np.flatnonzero(row).tolist() for row in allowed]
    return np.array([rng.choice(row) for row in choices], np.int32), choices


@settings(max_examples=300, deadline=None)
@given(pipelines())
def test_sums_are_those_of_the_judge_after_any_moves(problem: Problem) -> None:
    """Moves one after the other: value and memory are the judge's to the last bit, sums those of a fresh state."""
    rng = np.random.default_rng(problem.n_ops)
    homes = able_homes(problem, rng)
    if homes is None:
        return
    home, choices = homes
    costs, scale = costs_of(problem, problem.block, problem.n_blocks)
    state = state_of(costs, home)
    for _ in range(25):
        assert value_of(costs, state) / scale == evaluate(problem, state.home[problem.block][None])[0]
        assert (memory_of(costs, state) == resident_bytes(problem, state.home[problem.block])).all()
        for kept, fresh in zip(state, state_of(costs, state.home), strict=True):
            assert np.array_equal(kept, fresh)
        block = int(rng.integers(problem.n_blocks))
        there = int(rng.choice(choices[block]))
        if there != state.home[block]:
            _move(costs, state, block, there)


@settings(max_examples=100, deadline=None)
@given(pipelines())
def test_looking_at_a_move_changes_nothing_but_the_trial(problem: Problem) -> None:
    """What a move would cost is what it costs when it is made, and looking at it leaves everything else alone."""
    rng = np.random.default_rng(problem.n_ops)
    homes = able_homes(problem, rng)
    if homes is None:
        return
    home, choices = homes
    costs, _ = costs_of(problem, problem.block, problem.n_blocks)
    state, before = state_of(costs, home), state_of(costs, home)
    block = int(rng.integers(problem.n_blocks))
    there = int(rng.choice(choices[block]))
    if there == home[block]:
        return
    _look(costs, state, block, there)
    for name in ("home", "readers", "held", "filled", "sums"):
        assert np.array_equal(getattr(state, name), getattr(before, name))
    home[block] = there
    assert np.array_equal(state.trial, state_of(costs, home).sums)
