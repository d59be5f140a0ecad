"""The Pareto front equals its definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from soak import examples
from sweep_points import dominates, made_point

from placewise.analysis.sweep.pricing import mark_front, pareto_front

ROWS = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 4), min_size=width, max_size=width), min_size=1, max_size=30)
)


@examples(200)
@given(ROWS)
def test_the_front_is_what_nothing_dominates(rows):
    """By comparing every row with every other one; equal rows do not dominate each other."""
    found = pareto_front(np.array(rows, float)).tolist()
    assert found == [not any(dominates(other, row) for other in rows) for row in rows]


def test_points_are_compared_at_equal_sizes():
    """A shorter context does not dominate a longer one; batches and clusters compete."""
    points = [
        made_point({"context": 1, "batch": 1}, latency=1.0, throughput=1.0, peak=5.0),
        made_point({"context": 1, "batch": 2}, latency=2.0, throughput=3.0, peak=5.0),
        made_point({"context": 1, "batch": 2}, latency=2.5, throughput=3.0, peak=5.0, devices="b"),
        made_point({"context": 2, "batch": 1}, latency=9.0, throughput=0.1, peak=9.0),
        made_point({"context": 2, "batch": 2}, fits=False),
    ]
    assert [point.pareto for point in mark_front(points)] == [True, True, False, True, False]


def test_a_price_counts_where_every_point_has_one():
    """A plan that is slower and cheaper is on the front; without the other's price it is not."""
    fast = made_point({}, latency=1.0, throughput=1.0, peak=1.0, price_per_hour=3.0)
    slow = made_point({}, latency=2.0, throughput=0.5, peak=1.0, price_per_hour=1.0)
    assert [point.pareto for point in mark_front([fast, slow])] == [True, True]
    unpriced = fast.model_copy(update={"price_per_hour": None})
    assert [point.pareto for point in mark_front([unpriced, slow])] == [True, False]
