"""What the dynamic programs over ideals are given: how many sets there may be, and how many devices are of use."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import frozen
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Reason
from placewise.placers.shared.stages import ideals
from placewise.placers.shared.stages.dp_driver import MAX_CELLS, search_chains
from placewise.placers.shared.stages.ideals import Ideals, enumerate_ideals, list_prefixes
from placewise.placers.shared.stages.line_split import MAX_WORK, count_segments, find_best_split
from placewise.placers.shared.stages.phase_dp import price_phases, search_phases
from placewise.placers.shared.stages.replicated_stages import (
    bound_sync,
    build_replica_column,
    compute_member_load,
    compute_sync_paces,
    count_usable,
)
from placewise.placers.shared.stages.stage_costs import NEVER, price_stages
from placewise.simulate.contiguity import contract


@pytest.mark.parametrize(("n", "words"), [(64, 1), (65, 2)])
def test_ideals_stay_within_their_memory(monkeypatch: pytest.MonkeyPatch, n: int, words: int) -> None:
    """A row of n ops has n + 1 ideals, each of a bit per op in whole words and as much again for its steps."""
    graph = contract(boxes([0] * n, [1.0]))
    for spare in (0, -1):
        monkeypatch.setattr(ideals, "MAX_BYTES", (n + 1) * 16 * words + spare)
        found = enumerate_ideals(graph, 10**6)
        assert isinstance(found, Ideals) == (spare == 0)
        assert (len(found) if isinstance(found, Ideals) else found) == n + 1


def test_stages_use_no_more_devices_than_there_are_components() -> None:
    """Per component as many devices of a class as may share a stage, but no more than there are."""
    classes = ((0, 1, 2), (3, 4, 5, 6, 7))
    for n, usable in ((0, [1, 2]), (1, [1, 2]), (2, [2, 4]), (3, [3, 5]), (9, [3, 5])):
        assert count_usable(classes, np.array([1, 2], np.int32), n).tolist() == usable


@pytest.mark.parametrize(("mode", "alone", "shared"), [(0, 23, 7 + 3), (1, 13, 4 + 3), (2, 10, 2 + 3)])
def test_members_of_a_stage_share_its_load(mode: int, alone: int, shared: int) -> None:
    """10 units of work, 5 to receive and 8 to send, by three members that synchronize for 3, in whole units: one after
    the other, communication beside the work, and each direction beside it.
    """
    assert compute_member_load(10, 5, 8, 0, 1, mode) == alone
    assert compute_member_load(10, 5, 8, 3, 3, mode) == shared
    assert compute_member_load(60, 5, 8, 3, 3, mode) == (24 + 3 if mode == 0 else 20)


def test_no_device_means_no_chain() -> None:
    """Where nothing may run anywhere, the search is over at once: there is no chain below the value to beat."""
    problem = boxes([1, 1], [9.0])
    costs = CostTable.given(np.full((2, 1), np.inf), problem.costs.transfer_seconds)
    priced = price_stages(problem.with_(costs=costs), np.arange(2, dtype=np.int32), 2, problem.capacity)
    result = search_chains(priced, list_prefixes(2), lambda *_: True, 77)
    assert (result.chain, result.reason, result.floor) == (None, Reason.FINISHED, 77)


@pytest.mark.parametrize(
    ("left", "go_on", "seconds", "reason"),
    [
        (math.inf, True, 4.0, Reason.FINISHED),
        (0.0, True, 5.0, Reason.TIME_LIMIT),
        (math.inf, False, 5.0, Reason.TIME_LIMIT),
    ],
)
def test_no_order_is_begun_without_time(left: float, go_on: bool, seconds: float, reason: Reason) -> None:
    """Ops of 3, 1, 1 and 3 s on two devices: 5 s where the long ones follow each other, 4 s with one at each end."""
    problem = boxes([1] * 4, [9.0, 9.0])
    costs = CostTable.given(np.repeat([[3.0], [1.0], [1.0], [3.0]], 2, axis=1), problem.costs.transfer_seconds)
    op = np.arange(4, dtype=np.int32)
    split = find_best_split(
        problem.with_(costs=costs), op, (np.array([0, 2, 3, 1], np.int32), op), problem.capacity,
        lambda _done, _all, best: go_on or math.isinf(best), left=lambda: left,
    )  # fmt: skip
    assert split.value == pytest.approx(seconds, rel=1e-9) and split.reason is reason
    assert split.device is not None and sorted(np.bincount(split.device)) == ([2, 2] if seconds == 4 else [1, 3])


def flushing(n: int, devices: int) -> Problem:
    """A training step of n forward ops in a row and the backward op of each, on equal devices; transfers are free."""
    builder = GraphBuilder()
    for op in range(2 * n):
        builder.add_op(f"op{op}", "Op", backward=op >= n, group=min(op, 2 * n - 1 - op))
        if op:
            builder.add_edge(builder.add_tensor(op - 1, nbytes=1), op)
    plain = boxes([0], [9.0] * devices)
    costs = CostTable.given(np.ones((2 * n, devices)), np.zeros((2 * n - 1, 2)))
    objective = Objective("throughput", memory="sum", schedule="gpipe")
    return Problem(builder.build(), plain.cluster, costs, objective, Constraints(contiguous=True))


@pytest.mark.parametrize("seed", [0, 1, 2, 73])  # 73: the optimum is all that is left of an interval
def test_pipelines_that_flush_are_exact_to_the_unit(seed: int) -> None:
    """In whole units, for any value to beat: the least sum of both phases' largest loads, or none and the proof."""
    n, devices = 5, 3
    problem, rng = flushing(n, devices), np.random.default_rng(seed)
    graph = contract(problem)
    priced = price_phases(problem, graph.component, n, problem.capacity)
    both = rng.integers(0, 7, (n, 2))  # backward and forward units of each component
    priced = priced._replace(costs=priced.costs._replace(seconds=frozen(both, np.int64)), scale=1.0)
    line = both[graph.component[:n]]
    splits = [
        (0, *cuts, n) for count in range(devices) for cuts in itertools.combinations(range(1, n), count)
    ]  # fmt: skip
    loads = [np.array([line[a:b].sum(axis=0) for a, b in itertools.pairwise(cuts)]).max(axis=0) for cuts in splits]
    best = int(min(load.sum() for load in loads))
    ideals = enumerate_ideals(graph, 100)
    assert isinstance(ideals, Ideals)
    for beat in (NEVER, *range(max(best - 1, 1), best + 9)):
        result = search_phases(priced, ideals, lambda *_: True, beat)
        assert result.reason is Reason.FINISHED and result.floor == min(best, beat)
        assert (None if result.chain is None else result.chain.value) == (best if best < beat else None)


@pytest.mark.parametrize("second", [1e-15, 1.0, 1e15])
def test_units_are_fine_and_their_sum_is_in_range(second: float) -> None:
    """Whatever the size of the costs: a billionth of the whole is many units, and the whole stays below 2^60."""
    problem = boxes([1] * 4, [9.0, 9.0])
    seconds = np.full((4, 2), second)
    seconds[1, 0] = math.inf
    op = np.arange(4, dtype=np.int32)
    for move in (0.0, second / 4):
        table = CostTable.given(seconds, np.array([[0.0, move]] * 3))
        priced = price_stages(problem.with_(costs=table), op, 4, problem.capacity)
        units, able = priced.costs.seconds, priced.costs.seconds < NEVER
        moved = priced.costs.enter.max(axis=1, initial=0).sum() + priced.costs.leave.max(axis=1, initial=0).sum()
        assert 2**50 < int(np.where(able, units, 0).max(axis=1).sum()) + int(moved) < 2**60
        assert (~able).sum() == 1 and units[able] / priced.scale == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("replicas", [1, 0])
def test_lines_have_as_many_segments_as_memory_and_work_allow(replicas: int) -> None:
    """On three equal devices four states of each of n + 1 ideals; where stages are shared, any may reach to the end."""
    problem = boxes([1] * 4, [9.0] * 3, constraints=Constraints(contiguous=True, replicas=replicas))
    priced = price_phases(problem, np.arange(4, dtype=np.int32), 4, problem.capacity)
    most = count_segments(priced.costs)
    if replicas == 1:
        assert 4 * (most + 1) <= MAX_CELLS < 4 * (most + 2)
    else:
        assert 3 * most**2 <= MAX_WORK < 3 * (most + 1) ** 2


def test_replicas_repeat_the_stage_of_the_first_member() -> None:
    """Every other device has its own; without shared stages there is no column."""
    column = build_replica_column(((3, 1), (2, 4)), 6)
    assert column is not None and column.tolist() == [0, 3, 2, 3, 2, 5]
    assert build_replica_column((), 6) is None


def test_lines_longer_than_their_segments_are_cut_first() -> None:
    """Six equal ops on two devices take 3 s; in two segments, which end where least crosses, 5 s."""
    problem, line = boxes([1] * 6, [9.0, 9.0]), np.arange(6, dtype=np.int32)
    costs = CostTable.given(problem.costs.op_seconds, np.array([[0.0, 0.0]] + [[0.0, 1e-9]] * 4))
    for segments, seconds in ((1, 5.0), (5, 3.0), (6, 3.0)):
        split = find_best_split(
            problem.with_(costs=costs), line, (line,), problem.capacity, lambda *_: True, segments=segments
        )
        assert split.value == pytest.approx(seconds, rel=1e-6)


def test_synchronization_of_stages_by_hand() -> None:
    """Four bytes of weights at 2 B/s: of r members, each sends 2 (r - 1) / r of them per step of four samples, or of r;
    at most twice all of them per step of two. Nothing without replicas or without backward ops.
    """
    for backward, replicas, samples in itertools.product((False, True), (1, 0, 2), (0, 4)):
        builder = GraphBuilder()
        op = builder.add_op("op", "Op", backward=backward)
        builder.use_weight(builder.add_weight("w", shape=(4,), dtype="int8"), op)
        devices = tuple(Device(f"d{d}") for d in range(3))
        links = tuple(Link(*ends, 2.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name)))
        cluster = Cluster(devices, links)
        costs = CostTable.given(np.ones((1, 3)), np.zeros((0, len(cluster.class_bandwidth))))
        objective = Objective("throughput", memory="sum", step_samples=samples)
        problem = Problem(builder.build(), cluster, costs, objective, Constraints(replicas=replicas))
        most, works = {1: 1, 0: 3, 2: 2}[replicas], backward
        paces = [2 * (r - 1) / r / (samples or r) / 2 if works and r > 1 else 0.0 for r in range(most + 1)]
        assert compute_sync_paces(problem, ((0, 1, 2),)).tolist() == [pytest.approx(paces)]
        assert bound_sync(problem) == (2 / (samples or 2) * 4 / 2 if works and replicas != 1 else 0.0)
        assert bound_sync(problem) >= max(paces) * 4
