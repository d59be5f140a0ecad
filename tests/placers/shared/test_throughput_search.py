"""Local search for throughput: which phase a tensor belongs to, and what moves as one."""

from __future__ import annotations

import time

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Ints
from placewise.model.costs import CostTable
from placewise.model.problem import Objective, Problem
from placewise.placers.shared.stages.stage_costs import NEVER
from placewise.placers.shared.throughput_search.annealing import Annealer, AnnealingRound, WalksStopped, clusters
from placewise.placers.shared.throughput_search.pipeline_costs import costs_of, native_costs
from placewise.simulate.phases import two_phases


def test_tensors_belong_to_the_phase_of_their_maker() -> None:
    """A gradient that is made before any forward op, one made late, an activation and an input of the model."""
    builder = GraphBuilder()
    builder.add_op("ones", "Op", backward=True)
    builder.add_op("forward", "Op")
    builder.add_op("gradient", "Op", backward=True)
    builder.add_op("update", "Op", backward=True)
    tensors = {maker: builder.add_tensor(maker, nbytes=1) for maker in (-1, 0, 1, 2)}
    for maker, reader in ((-1, 1), (0, 2), (1, 2), (2, 3)):
        builder.add_edge(tensors[maker], reader)
    links = tuple(Link(*ends, 1.0) for d in ("d0", "d1") for ends in ((d, HOST), (HOST, d)))
    cluster = Cluster((Device("d0"), Device("d1")), links)
    table = CostTable.given(np.ones((4, 2)), np.repeat([[0.0, 1.0]], 4, axis=0))
    problem = Problem(builder.build(), cluster, table, Objective("throughput", schedule="gpipe"))
    assert two_phases(problem)
    costs, _ = costs_of(problem, np.arange(4, dtype=np.int32), 4)
    assert dict(zip(costs.producer.tolist(), costs.phase.tolist(), strict=True)) == {-1: 0, 0: 1, 1: 0, 2: 1}


def test_the_most_expensive_tensors_are_merged_first() -> None:
    """Sixteen equal ops in a row on two devices: clusters of two are joined by the expensive tensors."""
    problem = boxes([0] * 16, [9.0, 9.0])
    transfer = np.zeros((15, 2))
    transfer[:, 1] = np.where(np.arange(15) % 2, 5.0, 1.0)
    problem = problem.with_(costs=CostTable.given(problem.costs.op_seconds, transfer))
    costs, _ = costs_of(problem, np.arange(16, dtype=np.int32), 16)
    merged = clusters(costs)
    levels = [row for row in merged.labels.tolist() if len(set(row)) not in (1, 16)]
    pairs = max(levels, key=lambda row: len(set(row)))
    assert [pairs[op] == pairs[op + 1] for op in range(15)] == [op % 2 == 1 for op in range(15)]
    assert native_costs(costs).n_devices == 2


def annealer(threads: int) -> tuple[Annealer, list[tuple[Ints, None]]]:
    """Two walks from one device over eight ops in a row, whose best max-load is four."""
    problem = boxes([1] * 8, [9.0, 9.0])
    costs, _ = costs_of(problem, np.arange(8, dtype=np.int32), 8)
    return Annealer(native_costs(costs), clusters(costs), time.monotonic, threads=threads), [
        (np.zeros(8, np.int32), None)
    ] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_walks_report_the_best_value_so_far(threads: int) -> None:
    """By the clock, while walks go on: what is heard is never below what comes out, and all moves are counted."""
    own, starts = annealer(threads)
    heard: list[int] = []
    walks = own.run(starts, AnnealingRound(1.0, 0.1, until=time.monotonic() + 0.25), [0, 1], heard.append)
    values = [walk.feasible_max_load for walk in walks if walk.feasible_max_load is not None]
    assert len(values) == 2 and heard and min(heard) >= min(values)
    assert own.moves == sum(walk.n_evaluated for walk in walks) > 0


def test_an_interrupt_keeps_the_walks() -> None:
    """Ctrl-C while walks go on: they stop, and come with the error as they are."""
    own, starts = annealer(2)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(WalksStopped) as stopped:
        own.run(starts, AnnealingRound(1.0, 0.1, until=time.monotonic() + 60), [0, 1], interrupt)
    assert len(stopped.value.walks) == 2 and all(walk.n_evaluated for walk in stopped.value.walks)


@pytest.mark.parametrize("second", [1e-15, 1.0, 1e15])
def test_units_are_fine_and_their_sum_is_in_range(second: float) -> None:
    """Whatever the size of the costs: a billionth of the whole is many units, and the whole stays below 2^60."""
    problem = boxes([1] * 4, [9.0, 9.0])
    seconds = np.full((4, 2), second)
    seconds[1, 0] = np.inf
    table = CostTable.given(seconds, np.array([[0.0, second / 4]] * 3))
    costs, scale = costs_of(problem.with_(costs=table), np.arange(4, dtype=np.int32), 4)
    able = costs.seconds < NEVER
    assert (
        2**50 < int(np.where(able, costs.seconds, 0).max(axis=1).sum() + 3 * costs.transfer.max(axis=1).sum()) < 2**60
    )
    assert (~able).sum() == 1 and costs.seconds[able] / scale == pytest.approx(second, rel=1e-9)
    assert costs.transfer[:, 1] / scale == pytest.approx(second / 4, rel=1e-9)
