"""The memory of groups of ops, by hand, and the words for a group that fits nowhere."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.builder import GraphBuilder
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Problem, Rule
from placewise.placers.shared.memory_footprint import compute_footprint, count_first_uses, find_unplaceable_group

PAIRED = np.array([0, 1, 1], np.int32)


def sharing() -> Problem:
    """Three ops of 1, 2 and 4 bytes; weights of 8 (first op), 16 (last two), 32 (first and last) and 64 (nobody)."""
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op("abc"[op], "Op", state_bytes=1 << op)
    for storage, users in enumerate(((0,), (1, 2), (0, 2), ())):
        weight = builder.add_weight(f"w{storage}", shape=(8 << storage,), dtype="int8", storage=storage)
        for op in users:
            builder.use_weight(weight, op)
    costs = CostTable.given(np.ones((3, 2)), np.zeros((0, 2)))
    return boxes([1, 2, 4], [30.0, 60.0]).with_(graph=builder.build(), costs=costs)


def test_bytes_of_groups() -> None:
    """What a group alone uses is its own, once; what groups share counts in the whole need of each."""
    footprint = compute_footprint(sharing(), PAIRED, 2)
    assert footprint.state.tolist() == [1, 6]
    assert footprint.own().tolist() == [1 + 8, 6 + 16]
    assert footprint.totals().tolist() == [1 + 8 + 32, 6 + 16 + 32]
    assert list(zip(footprint.group.tolist(), footprint.storage.tolist(), strict=True)) == [
        (0, 0), (0, 2), (1, 1), (1, 2),
    ]  # fmt: skip


def test_the_first_user_of_a_weight_pays_for_it() -> None:
    """State and new weights op by op: the sum is the whole model's, without what nobody uses."""
    assert count_first_uses(sharing().graph).tolist() == [1 + 8 + 32, 2 + 16, 4]


@pytest.mark.parametrize(
    ("group", "rooms", "rules", "words"),
    [
        ([0, 1, 2], [41.0, 52.0], (), ""),
        ([0, 1, 2], [40.0, 60.0], (Rule("^a$", "d0"),), "op 'a' must stay together, need 41 B and fit nowhere: on d0"),
        ([0, 0, 0], [61.0, 60.0], (), "op 'a' and the 2 ops on a cycle with it must stay together, need 63 B"),
        ([0, 0, 0], [61.0, 60.0], (), "on d0, the roomiest device that may run them, 2 B (2 bytes) are missing"),
        ([0, 0, 0], [99.0, 60.0], (Rule("^b$", "d1"),), "on d1, the roomiest device that may run them, 3 B (3 bytes)"),
        ([0, 0, 0], [99.0, 99.0], (Rule("^b$", "d1"), Rule("^c$", "d0")), "with it may run together on no device"),
    ],
)
def test_what_fits_nowhere_is_named(group: list[int], rooms: list[float], rules: tuple[Rule, ...], words: str) -> None:
    """The group by its first op and how many more, the roomiest device that may run it, and the bytes that lack."""
    problem = sharing().with_(cluster=boxes([1, 2, 4], rooms).cluster, constraints=Constraints(pins=rules))
    said = find_unplaceable_group(problem, np.array(group, np.int32), max(group) + 1)
    assert words in said and bool(said) == bool(words)
