"""Goals: what they ask, and one sentence for what nobody can ask."""

from __future__ import annotations

import pytest
from sweep_points import made_point

from placewise.analysis.sweep.goals import parse_goal
from placewise.errors import InputError


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("tokens_per_second>=30", True),
        ("tokens_per_second >= 30.1", False),
        ("latency<=50ms", True),
        ("latency<=49ms", False),
        ("value<=1s", True),
        ("throughput>=20", True),
        ("throughput<=19", False),
        ("memory<=8B", True),
        ("memory<=1MiB", True),
        ("memory<=7B", False),
    ],
)
def test_goals_compare_a_figure_with_a_limit(text, met):
    """With units; the limit itself is enough."""
    point = made_point({"n": 8}, value=0.05, latency=0.05, throughput=20.0, tokens_per_second=30.0)
    assert parse_goal(text).is_met(point) is met


def test_a_point_without_a_plan_or_the_figure_meets_nothing():
    """Also where the figure would be small."""
    assert not parse_goal("memory<=100B").is_met(made_point({"n": 8}, fits=False))
    assert not parse_goal("memory<=100B").is_met(made_point({"n": 8}, fits=None))
    assert not parse_goal("tokens_per_second<=100").is_met(made_point({"n": 8}))


@pytest.mark.parametrize(
    "text",
    ["speed>=3", "tokens_per_second=3", "tokens_per_second>3", ">=3", "latency<=", "latency<=3 apples", "memory<=x",
     "memory<=8", "throughput>=nan", "throughput>=inf", "", "price<=3"],
)  # fmt: skip
def test_bad_goals_are_one_sentence(text):
    """With what may be asked."""
    with pytest.raises(InputError) as error:
        parse_goal(text)
    assert "\n" not in str(error.value) and str(error.value)
