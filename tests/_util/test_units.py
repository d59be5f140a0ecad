"""Text of people ⇄ numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewise._util.units import (
    format_bytes,
    format_count,
    format_flops,
    format_number,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_flops,
    parse_fraction,
    parse_seconds,
)
from placewise.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20GiB", 20 * 2**30),
        ("20GB", 20e9),
        ("1.5 MB", 1.5e6),
        ("4096", 4096),
        (4096, 4096),
        ("0", 0),
        ("inf", float("inf")),
    ],
)
def test_sizes(text: str | int, value: float) -> None:
    """Decimal and binary prefixes are different, and a bare number is bytes."""
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("300GB/s", 300e9), ("16GiB/s", 16 * 2**30), ("10Gb/s", 1.25e9), ("8Gbit/s", 1e9), ("5", 5)]
)
def test_bandwidths(text: str, value: float) -> None:
    """Bits and bytes per second are told apart by the letter."""
    assert parse_bandwidth(text) == value


def test_speeds_times_and_shares() -> None:
    """FLOP/s, seconds and shares, with and without their units."""
    assert parse_flops("312TFLOP/s") == parse_flops("312T") == parse_flops("312TFLOPS") == 312e12
    assert [parse_seconds(text) for text in ("60s", "5us", "2min", "1.5")] == [60, pytest.approx(5e-6), 120, 1.5]
    assert parse_fraction("1%") == parse_fraction("0.01") == 0.01


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, "20 apples"), (parse_bytes, "-1GB"), (parse_bytes, ""), (parse_bytes, "nan"),
        (parse_seconds, "5 parsecs"), (parse_fraction, "200%"), (parse_fraction, "2"), (parse_bandwidth, "fast"),
        (parse_flops, "many"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(parse: object, text: str) -> None:
    """What is no number with a known unit is refused with an example of how to write it."""
    with pytest.raises(InputError, match="write it like"):
        parse(text)  # type: ignore[operator]


@given(st.text(max_size=20))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No text makes a parser fail in any other way."""
    for parse in (parse_bytes, parse_bandwidth, parse_flops, parse_seconds, parse_fraction):
        try:
            assert parse(text) >= 0
        except InputError:
            continue


def test_numbers_read_well() -> None:
    """Formatted figures keep three or four digits and a prefix."""
    assert format_bytes(1.5 * 2**30) == "1.5 GiB"
    assert format_bytes(float("inf")) == "unlimited"
    assert [format_bytes(size * 2**20) for size in (999.4, 999.6, 1023.9)] == ["999 MiB", "1000 MiB", "1024 MiB"]
    assert format_seconds(0.004167) == "4.167 ms"
    assert format_seconds(0) == "0 s"
    assert format_seconds(float("inf")) == "∞"
    assert format_count(22.34e9) == "22.34 G"
    assert (format_flops(22.34e9), format_flops(257)) == ("22.34 GFLOP", "257 FLOP")


def test_numbers_are_never_powers_of_ten() -> None:
    """Large ones are whole, with separators; others have their significant digits."""
    assert [format_number(value) for value in (9.1184, 582.34, 9999.9, 12345.6)] == [
        "9.118",
        "582.3",
        "10,000",
        "12,346",
    ]
    assert [format_number(value, 3) for value in (0.0, 19.66, 999.4, 1176.5)] == ["0", "19.7", "999", "1,176"]


def test_counts_have_binary_suffixes() -> None:
    """As dimensions and ranges are written; signs, fractions and other letters are none."""
    assert [parse_count(text) for text in ("8", "32k", " 4K ", "1M")] == [8, 32768, 4096, 1 << 20]
    assert [parse_count(text) for text in ("", "k", "-1", "1.5k", "2G", "٣", "1" * 14)] == [None] * 7
