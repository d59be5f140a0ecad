"""Splitting an order of the components into stages that fit: what is left of it in the smallest cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.costs import CostTable
from placewise.placers.shared.partitions import component_lines
from placewise.placers.shared.partitions.component_lines import fill_stages, shift_early, shift_late, sort_by_rank
from placewise.placers.shared.stages.line_split import _cut_segments, _sum_crossing
from placewise.simulate.contiguity import contract


def filled(sizes: list[int], rooms: list[float]) -> list[int] | None:
    problem = boxes(sizes, rooms)
    graph = contract(problem)
    device = fill_stages(problem, graph, np.arange(graph.n, dtype=np.int32), np.array(rooms))
    return None if device is None else device.tolist()


def test_stages_are_as_long_as_memory_lets_them() -> None:
    """One device if it holds all, both in the order that fits, none if the whole or an op is too large."""
    assert filled([], [1.0, 1.0]) == []
    assert filled([2, 2], [4.0]) == [0, 0]
    assert filled([2, 2], [math.inf]) == [0, 0]
    assert filled([3, 1, 1], [2.0, 3.0]) == [1, 0, 0]
    assert filled([3, 1, 1], [2.0, 2.9]) is None
    assert filled([2, 2, 2], [3.0, 3.0]) is None


def test_with_too_many_classes_the_smallest_are_seen_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacities of 4, 3, 2 and 1, for 16, 8 and 4 states: what is merged has the least room, and runs what all run."""
    runs = np.array([[True, True, True, False], [True, True, True, True]])
    for most, members, room in (
        (16, [[0], [1], [2], [3]], [4.0, 3.0, 2.0, 1.0]), (15, [[0], [1], [2, 3]], [4.0, 3.0, 1.0]),
        (11, [[0], [1, 2, 3]], [4.0, 1.0]), (7, [[0, 1, 2, 3]], [1.0]),
    ):  # fmt: skip
        monkeypatch.setattr(component_lines, "MAX_STATES", most)
        classes = component_lines._group_devices(np.array([4.0, 3.0, 2.0, 1.0]), runs)
        assert [group.tolist() for group in classes.members] == members and classes.room.tolist() == room
        assert classes.runs.tolist() == [[3 not in group, True] for group in members]


def test_segments_are_cut_where_least_crosses() -> None:
    """What crosses each cut of a line: tensors between ops by their slowest link, from the first op on."""
    problem = boxes([1, 1, 1], [9.0, 9.0])
    costs = CostTable.given(problem.costs.op_seconds, np.array([[0.0, 3.0], [0.0, 5.0]]))
    assert _sum_crossing(problem.with_(costs=costs), np.arange(3, dtype=np.int32), 3).tolist() == [3.0, 5.0, 0.0]
    assert _sum_crossing(problem.with_(costs=costs), np.array([1, 0, 2], np.int32), 3).tolist() == [8.0, 5.0, 0.0]


def test_segments_are_equal_in_number_work_and_bytes() -> None:
    """Each of the three counts as much: a long op ends its half sooner, a large one too; in a half the cheapest cut."""
    cheap = np.array([[0.0, 3.0], [0.0, 5.0], [0.0, 1.0]])
    for seconds, sizes, cuts in (
        ([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0], [0, 1, 1, 2]),
        ([6.0, 1.0, 1.0, 4.0], [0, 0, 0, 0], [0, 1, 1, 2]),
        ([1.0, 1.0, 1.0, 21.0], [0, 0, 0, 0], [0, 0, 0, 1]),
        ([0.0, 0.0, 0.0, 0.0], [0, 0, 0, 8], [0, 0, 0, 1]),
    ):
        table = CostTable.given(np.array(seconds)[:, None], cheap)
        own = boxes(sizes, [99.0]).with_(costs=table)
        assert _cut_segments(own, np.arange(4, dtype=np.int32), 4, 2).tolist() == cuts, (seconds, sizes)


def test_components_move_until_no_tensor_goes_back() -> None:
    """a → b → c → d: each follows those before it at the latest, or stands before those after it at the earliest."""
    graph = contract(boxes([0] * 4, [1.0]))
    for rank, late, early in (
        ([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]),
        ([2, 0, 1, 3], [2, 2, 2, 3], [0, 0, 1, 3]),
        ([1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]),
    ):
        ranks = np.array(rank, np.int32)
        assert (shift_late(graph, ranks).tolist(), shift_early(graph, ranks).tolist()) == (late, early)
        assert ranks.tolist() == rank
    assert sort_by_rank(np.array([2, 0, 2, 1], np.int32)).tolist() == [2, 0, 3, 1]
