"""Sizes, speeds and times as people write them, and back.

Inside Placewise everything is bytes, seconds, FLOP/s and bytes/s; text appears only at the edges.
Decimal prefixes (k, M, G, T, P) are powers of 1000; binary ones (Ki, Mi, Gi, Ti) of 1024, so that
``"20GB"`` is 20e9 bytes and ``"20GiB"`` is 20 · 2^30.
"""

from __future__ import annotations

import math
import re

from placewise.errors import InputError

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIX |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "m": 60.0, "h": 3600.0}
_COUNT = re.compile(r"\s*([0-9]{1,13})\s*([kKM]?)\s*")
_FACTOR = {"": 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf)\s*([A-Za-zµ/%]*)\s*")


def _split(text: str | float, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(str(text))
    if match is None:
        raise InputError(f"{text!r} is not a {what}", remedy=f"write it like {example!r}")
    return float(match[1]), match[2]


_LEAST_PLAIN = 1024
"""Fewer bytes than this need their unit in a text."""


def _scaled(text: str | float, what: str, example: str, unit: str) -> float:
    number, suffix = _split(text, what, example)
    prefix = suffix.removesuffix(unit) if suffix.endswith(unit) else suffix
    if prefix not in _PREFIX or math.isnan(number) or number < 0:
        raise InputError(f"{text!r} is not a {what}", remedy=f"write it like {example!r}")
    return number * _PREFIX[prefix]


def parse_bytes(text: str | float) -> float:
    """``"20GiB"``, ``"1.5 MB"``, ``4096`` → bytes. A text without a unit is refused where so few bytes mean nothing."""
    size = _scaled(text, "size", "20GiB", "B")
    plain = str(text).strip()
    if isinstance(text, str) and 0 < size < _LEAST_PLAIN and not plain[-1].isalpha():
        raise InputError(f"{text!r} has no unit", remedy=f"write it like '{plain}GiB', or '{plain}B' for bytes")
    return size


def parse_bandwidth(text: str | float) -> float:
    """``"300GB/s"``, ``"16GiB/s"``, ``"10Gb/s"`` (bits) → bytes per second."""
    plain = str(text).strip()
    if plain.endswith(("b/s", "bit/s")):
        return _scaled(plain.removesuffix("it/s").removesuffix("/s"), "bandwidth", "10Gb/s", "b") / 8
    return _scaled(plain.removesuffix("/s"), "bandwidth", "300GB/s", "B")


def parse_flops(text: str | float) -> float:
    """``"312TFLOP/s"``, ``"312T"`` → floating-point operations per second."""
    plain = str(text).strip().removesuffix("/s")
    for unit in ("FLOPS", "FLOPs", "FLOP"):
        plain = plain.removesuffix(unit)
    return _scaled(plain, "speed", "312TFLOP/s", "")


def parse_seconds(text: str | float) -> float:
    """``"60s"``, ``"5us"``, ``"2min"``, ``1.5`` → seconds."""
    number, suffix = _split(text, "time", "60s")
    scale = _TIME.get(suffix or "s")
    if scale is None or number < 0:
        raise InputError(f"{text!r} is not a time", remedy="write it like '60s', '5us' or '2min'")
    return number * scale


def parse_fraction(text: str | float) -> float:
    """``"1%"``, ``"0.01"`` → 0.01."""
    number, suffix = _split(text, "share", "1%")
    if suffix not in ("", "%") or not 0 <= number <= (100 if suffix else 1):
        raise InputError(f"{text!r} is not a share", remedy="write it like '1%' or '0.01'")
    return number / 100 if suffix else number


def parse_count(text: str) -> int | None:
    """``"32k"`` → 32768; k is 1024, M 1024². None for what is no such number of at most 13 digits."""
    match = _COUNT.fullmatch(text)
    return None if match is None else int(match[1]) * _FACTOR[match[2]]


def format_bytes(value: float) -> str:
    """Bytes with three significant digits and a binary prefix: ``"1.50 GiB"``."""
    if math.isinf(value):
        return "unlimited"
    for prefix in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < 1024 or prefix == "Ti":
            break
        value /= 1024
    return f"{value:.0f} B" if not prefix else f"{value:.3g} {prefix}B" if value < 999.5 else f"{value:.0f} {prefix}B"


def format_gap(gap: float) -> str:
    """A gap in percent, as what is left to gain at most.

    >>> format_gap(0.0212), format_gap(0.0001)
    ('at most 2.1%', 'under 0.1%')
    """
    return f"at most {gap:.1%}" if gap >= 0.001 else "under 0.1%"


def format_seconds(value: float) -> str:
    """Seconds with four significant digits: ``"4.167 ms"``."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "?"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= scale or unit == "µs":
            break
    return f"{value / scale:.4g} {unit}" if value else "0 s"


def format_number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, or as a whole one where it has more: ``"16.66"``, ``"12,346"``."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def format_count(value: float) -> str:
    """A large count with a decimal prefix: ``"22.3 G"``."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(value) < 1000 or prefix == "P":
            break
        value /= 1000
    return f"{value:.4g} {prefix}".rstrip()


def format_flops(value: float) -> str:
    """Floating-point operations: ``"22.3 GFLOP"``, ``"257 FLOP"``."""
    text = format_count(value)
    return f"{text}FLOP" if text[-1].isalpha() else f"{text} FLOP"
