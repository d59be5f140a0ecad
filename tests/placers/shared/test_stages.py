"""What the dynamic programs over ideals are given: how many sets there may be, and how many devices are of use."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.placers.shared.stages import ideals
from placewise.placers.shared.stages.ideals import Ideals, enumerate_ideals
from placewise.placers.shared.stages.replicated_stages import count_usable
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
