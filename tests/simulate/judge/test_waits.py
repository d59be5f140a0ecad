"""What devices wait for, in columns, against a search gap by gap."""

from __future__ import annotations

import math

import pytest
import twins
from hypothesis import given
from hypothesis import strategies as st
from simulate_problems import OBJECTIVES, placed
from soak import examples

from placewise.simulate import judge_placement
from placewise.simulate.judge.memory import piece_numbers
from placewise.simulate.judge.waits import longest_waits


@pytest.mark.parametrize("objective", OBJECTIVES[3:], ids=str)
@examples(40)
@given(st.data())
def test_the_same_waits(objective, data):
    """In every execution, and where ops start and tensors arrive at the same time."""
    problem, placement = data.draw(placed(max_ops=14, objective=objective))
    judged = judge_placement(problem, placement)
    if not math.isfinite(judged.value):
        return
    piece = piece_numbers(problem, placement)
    waits = longest_waits(problem, placement, judged.timeline, piece)
    assert waits == twins.longest_waits(problem, placement, judged.timeline, piece)
