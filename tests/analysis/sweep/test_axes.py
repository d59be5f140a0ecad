"""Ranges of sizes: what they mean, and one sentence for what they cannot."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewise.analysis.sweep.axes import list_sizes, parse_axes, parse_axis
from placewise.errors import InputError


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1:8", (1, 2, 4, 8)),
        ("4k:32k", (4096, 8192, 16384, 32768)),
        ("3:10", (3, 6, 10)),
        ("5:5", (5,)),
        ("1M:2M", (1 << 20, 1 << 21)),
        ("8:24:8", (8, 16, 24)),
        ("8:25:+8", (8, 16, 24)),
        ("0:2:1", (0, 1, 2)),
        ("8,1,2,2", (1, 2, 8)),
        ("7", (7,)),
        ([4, 2], (2, 4)),
        (range(1, 4), (1, 2, 3)),
        (6, (6,)),
    ],
)
def test_ranges_double_add_or_list(text, sizes):
    """As the documentation says, ascending and each once."""
    assert parse_axis("batch", text).sizes == sizes


@given(st.integers(1, 10_000), st.integers(0, 100_000))
def test_a_doubling_range_has_both_ends_and_no_gap_above_two(first, more):
    """Every size is at most twice the one before it, and the last is the end of the range."""
    sizes = parse_axis("n", f"{first}:{first + more}").sizes
    assert (sizes[0], sizes[-1]) == (first, first + more)
    assert all(small < large <= 2 * small for small, large in pairwise(sizes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8:4", "the range of batch is empty: 8 is above 4; write 4:8"),
        ("1:8:0", "has the step 0"),
        ("0:8", "doubles from 0"),
        ("", "'' is not a size of batch"),
        ("1:", "'' is not a size of batch"),
        ("a:b", "'a' is not a size of batch"),
        ("1:2:3:4", "has 3 colons"),
        ("1..4", "'1..4' is not a size"),
        ("-1:4", "'-1' is not a size"),
        ("1:999999999:1", "999,999,999 sizes"),
        ([], "the range of batch is empty"),
        ([1.5], "the sizes of batch are"),
        ([True], "the sizes of batch are"),
        (None, "the sizes of batch are"),
    ],
)
def test_bad_ranges_are_one_sentence(text, words):
    """With the dimension and what is wrong."""
    with pytest.raises(InputError, match="batch") as error:
        parse_axis("batch", text)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_dimension_cannot_have_one_size_and_vary():
    """The message says which to leave out."""
    with pytest.raises(InputError, match="batch has one size and varies"):
        parse_axes({"batch": "1:4"}, {"batch": 2})
    with pytest.raises(InputError, match="not a mapping"):
        parse_axes(["batch"], {})  # type: ignore[arg-type]


def test_every_combination_once():
    """The last axis varies fastest; without axes there is one combination, of nothing."""
    axes = parse_axes({"a": "1:2", "b": "3,5"}, {})
    assert list_sizes(axes) == [{"a": 1, "b": 3}, {"a": 1, "b": 5}, {"a": 2, "b": 3}, {"a": 2, "b": 5}]
    assert list_sizes(()) == [{}]
