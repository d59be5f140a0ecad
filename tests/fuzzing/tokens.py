"""What hostile files say: numbers, names and paths that nobody expects."""

from __future__ import annotations

from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 63, 255, 256, 65_536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1,
    -(2**63), 2**63, 2**64 - 1, 2**64, 10**18, 10**30, 10**300, 10**400, 0.5, -0.0, 1e-320, 1e18, 1e300, 1.7e308,
    -1e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "a", "x" * 10_000, "\u202egnp.exe", "\x1b[2J\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "nul\x00inside",
    "two\nlines", "tab\tand\rreturn", "../../../../etc/passwd", "/dev/zero", "/etc/shadow", "C:\\Windows",
    "file:///etc",
    "NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "18446744073709551616", "9" * 5_000, "null", "true", "None",
    "cpu", "cuda:0", "*", "(a+)+$", r"(\w+\w+)+!$", "(.*)*!", "(x+x+)+y", "(" * 3_000, "a{99999999999}", "[", "(?P<",
    "%s%s%n", "{}{0}{x}", "[red]markup[/]", "[/]", "<b>&amp;",
    "]]>", "'", '"',
    "\\", "`id`", "$(id)", "__proto__", "ключ", "名前", "🧨" * 50, "e\u0301" * 100, "\ufeff", "\u2028", "\x85",
    "\x9b31m",
)  # fmt: skip
BYTES = (
    b"", b"\x00", b"\xff", b"\x00" * 4_096, b"\xff" * 64, b"\x80" * 11, b"\xff" * 9 + b"\x01", b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\r\n", b"PK\x03\x04", b"\x1f\x8b", b"\x93NUMPY", b"<!DOCTYPE x [", b"{" * 200,
    b"[" * 200_000,
    b'{"a":' * 100_000, b"<a>" * 50_000, b"9" * 5_000, b"1e999", b"-1", b"NaN", b"Infinity", b"\x1b[31m", b"../../",
)  # fmt: skip
RAW = (
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "9" * 5_000,
    "1" + "0" * 400,
    "0x10",
    "01",
    "1_000",
    "nan",
    "-0.0",
)
"""Numbers as text, for formats that are text: what no value of Python writes itself as."""


def number(rng: Random) -> Any:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else rng.randint(-(2**66), 2**66) >> rng.randrange(66)


def text(rng: Random) -> str:
    return rng.choice(TEXTS)


COUNTS = (1, 1, 1, 1, 2, 2, 3, 5)
"""How many changes: mostly one, so that what comes after the first fault is reached as well."""
