"""Placements made to fit: against plain sums, brute force, and packings that were planted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rules import keeps_the_rules
from soak import examples
from strategies import problems
from toy_problems import boxes

from placewise.model.builder import GraphBuilder
from placewise.model.columns import Longs
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem
from placewise.placers.shared.repair import build_packing_instance, repair, repair_memory
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.judge.memory import resident_bytes


def planted(rng: np.random.Generator, bins: int, per: int, room: int) -> list[int]:
    """Sizes that fill `bins` devices of `room` bytes to the last byte, `per` on each, in random order."""
    cuts = [np.sort(rng.choice(np.arange(1, room), per - 1, replace=False)) for _ in range(bins)]
    sizes = np.concatenate([np.diff([0, *row.tolist(), room]) for row in cuts])
    shuffled: Longs = rng.permutation(sizes)
    return shuffled.tolist()


@examples(25)
@given(problems(max_ops=7), st.integers(0, 100))
def test_a_repaired_placement_keeps_the_rules(problem: Problem, seed: int) -> None:
    """Support, pins, colocation and memory hold afterwards; what held before stays as it is."""
    free = problem.with_(constraints=Constraints(pins=problem.constraints.pins, headroom=problem.constraints.headroom))
    device = np.random.default_rng(seed).integers(0, problem.n_devices, problem.n_ops).astype(np.int32)
    fixed = repair(free, device, seed=seed)
    if fixed is not None:
        assert find_broken_rule(free, fixed) == ""
        assert keeps_the_rules(free, fixed)
        again = repair(free, fixed)
        assert again is not None and again.tolist() == fixed.tolist()


@examples(20)
@given(problems(max_ops=7), st.integers(0, 100))
def test_settle_counts_bytes_as_the_judge_does(problem: Problem, seed: int) -> None:
    """Where it says that all fits, resident bytes with shared weights are within the room, and every block may be."""
    cargo = build_packing_instance(problem)
    if not cargo.runs.any(axis=1).all():
        return
    rng = np.random.default_rng(seed)
    home = rng.integers(0, problem.n_devices, problem.n_blocks).astype(np.int32)
    room = rng.integers(0, 12, problem.n_devices).astype(np.float64)
    fits = repair_memory(cargo, home, room, seed=seed, work=20_000)
    assert cargo.runs[np.arange(problem.n_blocks), home].all()
    assert fits == bool((resident_bytes(problem, home[problem.block]) <= room).all())


@pytest.mark.parametrize(
    ("bins", "per", "slack"), [(4, 3, 0.0), (4, 5, 0.01), (8, 4, 0.01), (16, 10, 0.01), (8, 3, 0.03)]
)
def test_planted_packings_are_found(bins: int, per: int, slack: float) -> None:
    """Everything on one device, and room for 0 to 3 % more than the total: a packing is found from there."""
    rng = np.random.default_rng(bins * per)
    sizes = planted(rng, bins, per, 10**6)
    problem = boxes(sizes, [float(int(10**6 * (1 + slack)))] * bins)
    fixed = repair(problem, np.zeros(len(sizes), np.int32))
    assert fixed is not None and find_broken_rule(problem, fixed) == ""


def test_cheapest_blocks_move() -> None:
    """Two ops are quick elsewhere and one is slow: of equal bytes, a quick one leaves the device that is too full."""
    problem = boxes([4, 4, 4], [8, 8])
    costs = problem.costs.op_seconds.copy()
    costs[0, 1] = costs[2, 1] = 50.0
    slow = problem.with_(costs=type(problem.costs).given(costs, problem.costs.transfer_seconds))
    fixed = repair(slow, np.zeros(3, np.int32))
    assert fixed is not None and fixed.tolist() == [0, 1, 0]


def test_what_cannot_fit_is_not_made_up() -> None:
    """Three blocks of 4 bytes on two devices of 6: none is returned, and nothing runs for ever."""
    assert repair(boxes([4, 4, 4], [6, 6]), np.zeros(3, np.int32)) is None


def test_nothing_needs_no_repair() -> None:
    """Without ops there is a placement of none."""
    device = repair(boxes([], [1.0]), np.zeros(0, np.int32))
    assert device is not None and device.tolist() == []


def in_a_row(sizes: list[int], tensors: list[int], rooms: list[float]) -> Problem:
    """Boxes whose tensors to the next one have these bytes, all of which count while they are alive."""
    builder = GraphBuilder()
    for op, size in enumerate(sizes):
        builder.add_op(f"x{op}", "Op", state_bytes=size)
        if op:
            builder.add_edge(builder.add_tensor(op - 1, nbytes=tensors[op - 1]), op)
    return boxes(sizes, rooms).with_(graph=builder.build(), objective=Objective("throughput", memory="live"))


@pytest.mark.parametrize("rooms", [[9.0, 20.0], [9.0, 20.0, 0.0]])
def test_activations_are_made_room_for(rooms: list[float]) -> None:
    """Two blocks of 4 bytes fit into 9, but not with a tensor of each: one stays, even beside a useless device."""
    fixed = repair(in_a_row([4, 4, 4], [1, 1], rooms), np.zeros(3, np.int32), measured=False)
    assert fixed is not None and np.bincount(fixed, minlength=2).tolist() == [1, 2]


def test_later_rounds_leave_little_more_than_activations_need() -> None:
    """The block of 3 bytes with its tensors of 2 and 3 alone on the small device: all that fits, in round two."""
    fixed = repair(in_a_row([7, 3, 8], [2, 3], [11.0, 21.0]), np.zeros(3, np.int32), measured=False)
    assert fixed is not None and fixed.tolist() == [1, 0, 1]


def test_blocks_move_one_by_one_as_a_last_resort() -> None:
    """The only placement that fits fills the larger device to the byte; it takes peaks measured move by move."""
    problem = in_a_row([3, 5, 3], [8, 4], [10.0, 20.0])
    assert repair(problem, np.zeros(3, np.int32), measured=False) is None
    fixed = repair(problem, np.zeros(3, np.int32))
    assert fixed is not None and fixed.tolist() == [1, 1, 0] and find_broken_rule(problem, fixed) == ""


def test_neighbours_pull_by_their_slowest_link() -> None:
    """A tensor that two ops read pulls each by half of its seconds; two tensors between the same blocks add up."""
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op("abc"[op], "Op")
    for maker, readers in ((-1, [0]), (0, [1, 2]), (0, [1]), (1, [2])):
        tensor = builder.add_tensor(maker, nbytes=1)
        for reader in readers:
            builder.add_edge(tensor, reader)
    costs = CostTable.given(np.ones((3, 2)), np.array([[0.0, 9.0], [0.0, 4.0], [0.0, 1.0], [0.0, 7.0]]))
    instance = build_packing_instance(boxes([1, 1, 1], [9.0, 9.0]).with_(graph=builder.build(), costs=costs))
    assert instance.near.tolist() == [0, 2, 4, 6]
    assert instance.other.tolist() == [1, 2, 0, 2, 0, 1]
    assert instance.pull.tolist() == [3.0, 2.0, 3.0, 7.0, 2.0, 7.0]
