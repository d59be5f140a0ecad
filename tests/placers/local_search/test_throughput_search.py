"""Local search for throughput: sums that stay the judge's whatever moves, on problems of every kind."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate_problems import OBJECTIVES, random_problem, seeded
from soak import examples

from placewise import _native
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import InternalError
from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.shared.throughput_search.annealing import NO_PAIRS, Annealer, AnnealingRound, clusters
from placewise.placers.shared.throughput_search.pipeline_costs import PipelineCosts, costs_of, native_costs
from placewise.simulate import evaluate
from placewise.simulate.judge.memory import resident_bytes

PIPELINES = [objective for objective in OBJECTIVES if objective.kind == "throughput"]


@st.composite
def pipelines(draw: st.DrawFn, max_ops: int = 12) -> Problem:
    """Any problem of throughput: staged, direct, hosts, wires, phases, training graphs, both schedules."""
    objective = draw(st.sampled_from(PIPELINES))
    objective = replace(objective, schedule=draw(st.sampled_from(["1f1b", "gpipe"])), memory="sum")
    options = {"max_ops": max_ops, "scarce": draw(st.booleans()), "rules": draw(st.booleans())}
    return random_problem(seeded(draw(st.integers(0, 1 << 30))), objective=objective, **options)


def able_homes(problem: Problem, rng: np.random.Generator) -> tuple[Ints, list[list[int]]] | None:
    """A random device per block where all its ops may run, and all such devices; None if some block has none."""
    allowed = np.ones((problem.n_blocks, problem.n_devices), np.bool_)
    np.logical_and.at(allowed, problem.block, problem.allowed)
    if not allowed.any(axis=1).all():
        return None
    choices = [np.flatnonzero(row).tolist() for row in allowed]
    return np.array([rng.choice(row) for row in choices], np.int32), choices


@examples(80)
@given(pipelines())
def test_sums_are_those_of_the_judge_after_any_moves(problem: Problem) -> None:
    """Moves one after the other: value and memory are the judge's to the last bit, sums those of a fresh state."""
    rng = np.random.default_rng(problem.n_ops)
    homes = able_homes(problem, rng)
    if homes is None:
        return
    home, choices = homes
    columns, scale = costs_of(problem, problem.block, problem.n_blocks)
    costs = native_costs(columns)
    state = _native.PipelineState(costs, home)
    for _ in range(25):
        assert state.max_load / scale == evaluate(problem, state.assignment[problem.block][None])[0]
        assert (state.memory == resident_bytes(problem, state.assignment[problem.block])).all()
        assert state.missing_bytes == np.maximum(state.memory - columns.capacity, 0).sum()
        fresh = _native.PipelineState(costs, state.assignment)
        assert np.array_equal(state.sums, fresh.sums) and np.array_equal(state.counts, fresh.counts)
        block = int(rng.integers(problem.n_blocks))
        there = int(rng.choice(choices[block]))
        if there != state.assignment[block]:
            state.move(block, there)


@examples(100)
@given(pipelines())
def test_looking_at_a_move_changes_nothing(problem: Problem) -> None:
    """What a move would cost is what it costs when it is made, and looking at it leaves everything else alone."""
    rng = np.random.default_rng(problem.n_ops)
    homes = able_homes(problem, rng)
    if homes is None:
        return
    home, choices = homes
    costs = native_costs(costs_of(problem, problem.block, problem.n_blocks)[0])
    state, before = _native.PipelineState(costs, home), _native.PipelineState(costs, home)
    block = int(rng.integers(problem.n_blocks))
    there = int(rng.choice(choices[block]))
    if there == home[block]:
        return
    trial = state.try_move(block, there)
    for name in ("assignment", "counts", "sums"):
        assert np.array_equal(getattr(state, name), getattr(before, name))
    home[block] = there
    assert np.array_equal(trial, _native.PipelineState(costs, home).sums)


def plain_clusters(columns: PipelineCosts) -> list[set[frozenset[int]]]:
    """The clusters of every size: the makers and readers of tensors joined, the dearest first, as work allows it."""
    n, sets = len(columns.size), [{group} for group in range(len(columns.size))]
    work = columns.seconds.reshape(n, columns.n_phases, -1).sum(axis=1)
    least = [float(min(row[row < 1 << 61], default=np.iinfo(np.int64).max)) for row in work]
    found = []
    for size in (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2):
        for tensor in np.argsort(-columns.transfer.max(axis=1, initial=0), kind="stable").tolist():
            maker = int(columns.producer[tensor])
            first, last = columns.consumer_offsets[tensor : tensor + 2].tolist()
            for reader in columns.consumers[first:last].tolist() if maker >= 0 else ():
                both = sets[maker] | sets[reader]
                if sum(least[group] for group in both) <= sum(least) / len(columns.capacity) * size:
                    for group in both:
                        sets[group] = both
        found.append({frozenset(groups) for groups in sets})
    return found


@examples(100)
@given(pipelines())
def test_clusters_are_joined_along_the_dearest_tensors(problem: Problem) -> None:
    """At every size they part the groups, and are those of plain sets; their groups ascend."""
    columns, _ = costs_of(problem, problem.block, problem.n_blocks)
    joined = clusters(columns)
    for labels, expected in zip(joined.labels, plain_clusters(columns), strict=True):
        assert {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())} == expected
        for label in set(labels.tolist()):
            assert joined.groups(label).tolist() == np.flatnonzero(labels == label).tolist()


@examples(100)
@given(pipelines(), st.integers(0, (1 << 62) - 1))
def test_the_incumbent_is_what_a_walk_says(problem: Problem, seed: int) -> None:
    """Its quality is that of a fresh state, it is never worse than the start, and groups stay where they may run."""
    homes = able_homes(problem, np.random.default_rng(problem.n_ops))
    if homes is None:
        return
    home, choices = homes
    columns, scale = costs_of(problem, problem.block, problem.n_blocks)
    costs = native_costs(columns)
    start = _native.PipelineState(costs, home)
    for walk in Annealer(costs, clusters(columns), float).run(
        [(home, None)] * 2, AnnealingRound(0.02, 2e-5, 500), [seed, 7], print
    ):
        state = _native.PipelineState(costs, walk.incumbent)
        assert walk.quality == (state.missing_bytes, state.max_load) <= (start.missing_bytes, start.max_load)
        assert walk.quality[1] / scale == evaluate(problem, walk.incumbent[problem.block][None])[0]
        assert walk.feasible_max_load == (None if walk.quality[0] else walk.quality[1])
        assert walk.n_evaluated <= 500
        assert all(device in able for device, able in zip(walk.incumbent.tolist(), choices, strict=True))


def many_ops() -> tuple[PipelineCosts, Ints]:
    """A problem that no walk finishes soon, and a start."""
    problem = build("zoo:random-layered", "4xP100", ProblemOptions("throughput", contiguous=False, dims={"n_ops": 400}))
    columns, _ = costs_of(problem, problem.block, problem.n_blocks)
    return columns, np.zeros(problem.n_blocks, np.int32)


def test_threads_change_nothing_where_work_is_limited() -> None:
    """The same seeds give the same walks, one after the other or side by side."""
    columns, home = many_ops()
    found = []
    for threads in (1, 2, 3, 5):
        field = Annealer(native_costs(columns), clusters(columns), float, threads=threads)
        walks = field.run([(home, None)] * 3, AnnealingRound(0.02, 2e-5, 40_000), range(3), lambda _: None)
        found.append([(walk.quality, walk.n_evaluated, walk.incumbent.tolist()) for walk in walks])
    assert found[0] == found[1] == found[2] == found[3]
    assert len({tuple(home) for _, _, home in found[0]}) > 1


@pytest.mark.parametrize("threads", [1, 2])
def test_walks_share_the_time_of_a_round(threads: int) -> None:
    """By the clock, every walk has its turn, and the round ends when it should."""
    columns, home = many_ops()
    field = Annealer(native_costs(columns), clusters(columns), time.monotonic, threads=threads)
    begun = time.monotonic()
    walks = field.run([(home, None)] * 4, AnnealingRound(0.02, 2e-5, until=begun + 0.4), range(4), lambda _: None)
    assert time.monotonic() - begun > 0.35
    assert all(walk.n_evaluated > 0 for walk in walks)


def is_under_way(walk: _native.ThroughputWalk) -> bool:
    """Whether another thread runs the walk."""
    try:
        return walk.n_evaluated < 0
    except InternalError:
        return True


def test_a_walk_ends_when_it_is_told() -> None:
    """A deadline or a flag end a walk of too many steps; meanwhile it can be asked for its value alone."""
    columns, home = many_ops()
    along = np.arange(4, dtype=np.int32)
    walk = _native.ThroughputWalk(native_costs(columns), clusters(columns), home, 1, along, NO_PAIRS)
    begun = time.monotonic()
    walk.run(1 << 40, 0.02, 2e-5, seconds=0.1)
    assert time.monotonic() - begun > 0.09
    stop = _native.StopFlag()
    thread = threading.Thread(target=walk.run, args=(1 << 40, 0.02, 2e-5), kwargs={"stop": stop})
    thread.start()
    while not is_under_way(walk):
        time.sleep(0.001)
    assert walk.feasible_max_load is not None
    for name in ("incumbent", "quality", "n_evaluated"):
        with pytest.raises(InternalError, match="under way"):
            getattr(walk, name)
    with pytest.raises(InternalError, match="under way"):
        walk.run(1, 0.02, 2e-5)
    stop.set()
    thread.join(60)
    assert not thread.is_alive() and walk.quality == (0, walk.feasible_max_load)


def test_nonsense_is_refused() -> None:
    """Columns that do not belong together, and arguments that name what does not exist."""
    columns, home = many_ops()
    costs, joined = native_costs(columns), clusters(columns)
    for change in (
        {"producer": columns.producer + np.int32(1 << 20)},
        {"uses": columns.uses[1:]},
        {"use_offsets": columns.use_offsets[::-1].copy()},
        {"location": columns.location + np.int32(9)},
        {"link_class": columns.link_class[1:]},
        {"wire": columns.wire + np.int32(1)},
        {"n_phases": 3},
        {"mode": 7},
        {"phase": columns.phase[1:]},
        {"readers": columns.readers + np.int32(1)},
        {"uses": columns.uses[::-1].copy()},
        {"makes": columns.makes[::-1].copy()},
        {"seconds": -columns.seconds},
        {"transfer": columns.transfer + (1 << 60)},
        {"size": columns.size + (1 << 61)},
        {"storages": np.full(1, 1 << 20, np.int32), "storage_offsets": np.repeat([0, 1], [len(home), 1])},
    ):
        with pytest.raises(InternalError):
            native_costs(columns._replace(**change))  # type: ignore[arg-type]
    along = np.arange(4, dtype=np.int32)
    for wrong in (home[1:], home + np.int32(4), home - np.int32(1)):
        with pytest.raises(InternalError):
            _native.PipelineState(costs, wrong)
        with pytest.raises(InternalError):
            _native.ThroughputWalk(costs, joined, wrong, 0, along, NO_PAIRS)
    for arguments in (
        (along * 0, NO_PAIRS),
        (along[1:], NO_PAIRS),
        (along, np.array([[0, 4]], np.int32)),
    ):
        with pytest.raises(InternalError):
            _native.ThroughputWalk(costs, joined, home, 0, *arguments)
    walk = _native.ThroughputWalk(costs, joined, home, 0, along, NO_PAIRS)
    for steps, hot, cold in ((-1, 0.1, 0.01), (1, 0.0, 0.01), (1, 0.1, math.nan)):
        with pytest.raises(InternalError):
            walk.run(steps, hot, cold)
    state = _native.PipelineState(costs, home)
    for group, device in ((-1, 1), (len(home), 1), (0, 4), (0, 0)):
        with pytest.raises(InternalError):
            state.move(group, device)
    with pytest.raises(InternalError):
        state.loads(1)
    pair = np.zeros(1, np.int32)
    with pytest.raises(InternalError):
        _native.Clusters(pair, pair + 5, np.ones(2), np.ones(1))
