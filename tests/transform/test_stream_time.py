"""A finite stream of samples through a pipeline: worked by hand, by its limits, and by the judge."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import judge_placement
from placewise.transform.stage_times import stage_times
from placewise.transform.stream_time import StageTime, steady_seconds, stream_seconds


@pytest.mark.parametrize(("samples", "stages"), [(1, 1), (1, 4), (5, 3), (16, 2), (3, 8)])
def test_equal_stages_fill_and_drain(samples: int, stages: int) -> None:
    """(samples + stages − 1) times the time of a stage, if transfers take no time."""
    times = [StageTime(0.0, 2.0, 0.0)] * stages
    assert stream_seconds(times, samples) == 2.0 * (samples + stages - 1)
    assert steady_seconds(times) == 2.0


def test_unequal_stages_by_hand() -> None:
    """Three stages, two samples: the second waits for the slowest stage."""
    times = [StageTime(0, 1, 1, 1), StageTime(1, 5, 2, 2), StageTime(2, 1, 0)]
    # sample 0: computed 1; in stage 1 from 2 to 7; in stage 2 at 9, out at 10
    # sample 1: computed 3 (after the send of sample 0); stage 1 is free at 9: there at 10, computed 15, there at 17
    assert stream_seconds(times, 1) == 10
    assert stream_seconds(times, 2) == 18
    assert steady_seconds(times) == 8


def test_values_that_rest_in_host_memory_wait_for_their_send() -> None:
    """A staged transfer takes the send and then the receive; a direct one takes both at once."""
    assert stream_seconds([StageTime(0, 1, 3, 3), StageTime(3, 1, 0)], 1) == 5
    assert stream_seconds([StageTime(0, 1, 3, 6), StageTime(3, 1, 0)], 1) == 8


@pytest.mark.parametrize("seed", range(20))
def test_each_further_sample_takes_the_steady_time(seed: int) -> None:
    """In the long run, exactly; and the whole is never less than the fill and a steady time for every other sample."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 20, (int(rng.integers(1, 6)), 3)).astype(float)
    times = [StageTime(a, b, c, max(c, rows[(at + 1) % len(rows)][0])) for at, (a, b, c) in enumerate(rows)]
    full, alone = steady_seconds(times), stream_seconds(times, 1)
    assert stream_seconds(times, 500) - stream_seconds(times, 400) == 100 * full
    for samples in (2, 3, 10):
        assert stream_seconds(times, samples) >= max(alone, samples * full)
        assert stream_seconds(times, samples) <= alone + (samples - 1) * sum(sum(row[:3]) for row in times)


def chain(kind: str, transfers: str, *, skip: bool = False) -> Problem:
    """Nine ops in a row on three accelerators, with an input and an output; with `skip`, the last reads the first."""
    rng, builder = np.random.default_rng(3), GraphBuilder()
    given = builder.add_tensor(-1, nbytes=50)
    for op in range(9):
        builder.add_op(f"op{op}", "Op")
        builder.add_edge(given if op == 0 else op, op)
        builder.add_tensor(op, nbytes=100 + op, output=op == 8)
    if skip:
        builder.add_edge(1, 8)
    devices = tuple(Device(f"acc{number}") for number in range(3))
    names = [device.name for device in devices]
    links = [Link(*ends, 100.0, 0.5) for name in names for ends in ((name, HOST), (HOST, name))]
    links += [Link(*ends, 30.0, 0.25) for ends in permutations(names, 2)] if transfers == "direct" else []
    cluster, graph = Cluster(devices, tuple(links), transfers), builder.build()  # type: ignore[arg-type]
    costs = CostTable.given(rng.uniform(1, 3, (9, 3)), transfer_seconds_of(graph, cluster))
    return Problem(graph, cluster, costs, Objective(kind, execution="sequential"))  # type: ignore[arg-type]


THREE = Placement(np.arange(9, dtype=np.int32) // 3)


@pytest.mark.parametrize("transfers", ["direct", "staged"])
def test_a_chain_is_priced_as_the_judge_prices_it(transfers: str) -> None:
    """Full: the judge's blocking throughput; one sample: its sequential latency."""
    problem = chain("throughput", transfers)
    times = stage_times(problem, THREE, (0, 1, 2))
    assert steady_seconds(times) == pytest.approx(judge_placement(problem, THREE).value, rel=1e-9)
    alone = judge_placement(chain("latency", transfers), THREE).value
    assert stream_seconds(times, 1) == pytest.approx(alone, rel=1e-9)


def test_a_value_that_skips_a_stage_passes_through_it() -> None:
    """The middle stage receives it and sends it on, with its own values."""
    plain, more = (stage_times(chain("throughput", "direct", skip=skip), THREE, (0, 1, 2)) for skip in (False, True))
    hop = 0.25 + 100 / 30
    assert [one.send - other.send for one, other in zip(more, plain, strict=True)] == pytest.approx([hop, hop, 0])
    assert [one.receive - other.receive for one, other in zip(more, plain, strict=True)] == pytest.approx([0, hop, hop])
