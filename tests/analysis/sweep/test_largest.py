"""The largest size that fits: bisection finds what trying every size finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples
from sweep_points import made_point

from placewise.analysis.sweep.axes import parse_axes
from placewise.analysis.sweep.largest import is_monotone, largest_of, list_lines, next_probe, step_of
from placewise.files.sweep_file import NeedsRecord


def bisect(limit, vary, resolution=0.0):
    """The points of a sweep whose sizes up to `limit` fit, with those that bisection adds."""
    axes = parse_axes({"n": vary}, {})
    points = [made_point({"n": size}, fits=size <= limit) for size in axes[0].sizes]
    while (probe := next_probe(list_lines(axes, points)[0], resolution)) is not None:
        assert probe not in [point.sizes["n"] for point in points]
        points.append(made_point({"n": probe}, fits=probe <= limit))
    return list_lines(axes, points)[0]


@examples(200)
@given(st.integers(1, 50), st.integers(0, 200), st.integers(0, 300))
def test_bisection_equals_trying_every_size(first, more, limit):
    """Every limit within, below and above the range; the next size is proved not to fit."""
    found = largest_of(bisect(limit, f"{first}:{first + more}"))
    brute = [size for size in range(first, first + more + 1) if size <= limit]
    assert found.fits == max(brute, default=None)
    assert found.fails == (None if limit >= first + more else max(limit + 1, first))
    assert found.monotone and found.method == "bisection"


@examples(100)
@given(st.integers(1, 5000), st.floats(0, 1))
def test_a_resolution_bounds_what_stays_open(limit, resolution):
    """The largest that fits is at most a step below one that does not, and the step at most that share."""
    found = largest_of(bisect(limit, "1:4k", resolution))
    if limit < 4096:
        assert found.fits <= limit < found.fails
        assert found.fails - found.fits <= max(step_of(found.fails, resolution), 1)
        assert step_of(found.fails, resolution) <= max(resolution * found.fails, 1)
    else:
        assert (found.fits, found.fails) == (4096, None)


def test_lists_and_steps_are_tried_as_they_are():
    """Nothing is added between them."""
    assert [point.sizes["n"] for point in bisect(5, "1,4,16").points] == [1, 4, 16]
    assert largest_of(bisect(5, "2:8:2")).method == "trying"


@pytest.mark.parametrize("field", ["weights", "state", "activations", "largest"])
def test_memory_that_shrinks_is_not_bisected(field):
    """If anything that the model takes is less at a greater size, the largest is the largest that was tried."""
    axes = parse_axes({"n": "1:4"}, {})
    needs = [NeedsRecord(weights=5, state=5, activations=5, largest=5) for _ in range(3)]
    needs[2] = needs[2].model_copy(update={field: 4})
    points = [made_point({"n": size}, fits=size < 4, needs=need) for size, need in zip((1, 2, 4), needs, strict=True)]
    line = list_lines(axes, points)[0]
    assert not is_monotone(line) and next_probe(line, 0.0) is None
    assert (largest_of(line).fits, largest_of(line).method) == (2, "trying")


def test_a_size_that_fits_above_one_that_does_not_is_not_monotone():
    """Then nothing is bisected, and the largest is the largest that fits."""
    axes = parse_axes({"n": "1:8"}, {})
    points = [made_point({"n": size}, fits=size != 4) for size in (1, 2, 4, 8)]
    found = largest_of(list_lines(axes, points)[0])
    assert (found.fits, found.fails, found.monotone) == (8, None, False)


def test_no_plan_without_a_proof_is_said():
    """The next size is then not known not to fit."""
    axes = parse_axes({"n": "1:2"}, {})
    found = largest_of(list_lines(axes, [made_point({"n": 1}), made_point({"n": 2}, fits=None)])[0])
    assert (found.fits, found.fails, found.known) == (1, 2, False)


def test_sizes_that_the_model_cannot_have_end_no_line():
    """An error is no misfit, and bisection does not ask for it twice."""
    axes = parse_axes({"n": "1:8"}, {})
    points = [made_point({"n": size}, fits=size < 4) for size in (1, 2, 4, 8)]
    wrong = made_point({"n": 3}, fits=False).model_copy(update={"status": "error", "needs": None})
    line = list_lines(axes, [*points, wrong])[0]
    assert next_probe(line, 0.0) is None
    assert (largest_of(line).fits, largest_of(line).fails) == (2, 4)


def test_each_other_size_and_cluster_has_a_line():
    """Probes of one line start no line along another dimension."""
    axes = parse_axes({"n": "1:2", "m": "1:2"}, {})
    grid = [made_point({"n": n, "m": m}, devices=d) for d in "ab" for n in (1, 2) for m in (1, 2)]
    probe = made_point({"n": 7, "m": 1})
    lines = list_lines(axes, [*grid, probe])
    assert len(lines) == 8
    assert {len(line.points) for line in lines} == {2, 3}
