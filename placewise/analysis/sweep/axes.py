"""What varies in a sweep: ranges of sizes, as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from placewise._util.units import parse_count
from placewise.core.options import MOST
from placewise.errors import InputError

LARGEST_RANGE = 100_000
"""Sizes of one range."""
_LIKE = "write it like 1:64, 4k:256k, 128:1024:128 or 1,2,8"

Vary = Mapping[str, "str | int | Sequence[int]"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension and its sizes, ascending. Sizes that double leave gaps, in which the largest that fits is sought."""

    name: str
    sizes: tuple[int, ...]
    doubles: bool = False


def parse_axes(vary: Vary, fixed: Mapping[str, int]) -> tuple[Axis, ...]:
    """The axes of ``{"context": "4k:256k", "batch": [1, 2, 8]}``; `fixed` are dimensions that do not vary.

    Raises InputError.
    """
    if not isinstance(vary, Mapping) or not all(isinstance(name, str) and name for name in vary):
        raise InputError("what varies is not a mapping", remedy="give names and ranges, like {'batch': '1:64'}")
    for name in vary:
        if name in fixed:
            raise InputError(f"{name} has one size and varies", remedy=f"leave out --dim {name}={fixed[name]}")
    return tuple(parse_axis(name, sizes) for name, sizes in vary.items())


def parse_axis(name: str, given: str | int | Sequence[int]) -> Axis:
    """An axis from a text, a size or sizes.

    ``A:B`` doubles from A, and ends with B; ``A:B:STEP`` (or ``A:B:+STEP``) adds; ``A,B,C`` lists. k is 1024, M 1024².
    Raises InputError.

    >>> parse_axis("context", "4k:24k").sizes
    (4096, 8192, 16384, 24576)
    >>> parse_axis("batch", "8:16:+4").sizes
    (8, 12, 16)
    """
    if isinstance(given, str):
        parts = given.split(":")
        sizes = tuple(_parse_size(name, part) for part in given.split(",")) if len(parts) == 1 else ()
        if len(parts) > 3:
            raise InputError(f"--vary {name}={given[:60]} has {len(parts) - 1} colons", remedy=_LIKE)
        if len(parts) > 1:
            first, last = (_parse_size(name, part) for part in parts[:2])
            step = _parse_size(name, parts[2].strip().removeprefix("+")) if len(parts) == 3 else 0
            _check_range(name, first, last, step, adds=len(parts) == 3)
            sizes = tuple(range(first, last + 1, step)) if step else _doubling(first, last)
        doubles = len(parts) == 2
    else:
        several = [given] if isinstance(given, int) else given
        if not isinstance(several, (list, tuple, range)) or not all(_is_size(size) for size in several):
            raise InputError(f"the sizes of {name} are {str(given)[:60]!r}", remedy=_LIKE.replace("1,2,8", "[1, 2, 8]"))
        sizes, doubles = tuple(int(size) for size in several), False
    if not sizes:
        raise InputError(f"the range of {name} is empty", remedy=_LIKE)
    return Axis(name, tuple(sorted(set(sizes))), doubles)


def list_sizes(axes: Sequence[Axis]) -> list[dict[str, int]]:
    """Every combination of sizes, the last axis fastest; one without sizes if nothing varies."""
    names = [axis.name for axis in axes]
    return [dict(zip(names, sizes, strict=True)) for sizes in product(*(axis.sizes for axis in axes))]


def _parse_size(name: str, text: str) -> int:
    size = parse_count(text)
    if size is None or size >= MOST:
        raise InputError(f"{text[:40]!r} is not a size of {name}", remedy=_LIKE)
    return size


def _check_range(name: str, first: int, last: int, step: int, *, adds: bool) -> None:
    if first > last:
        raise InputError(f"the range of {name} is empty: {first} is above {last}", remedy=f"write {last}:{first}")
    if adds and not step:
        raise InputError(f"the range of {name} has the step 0", remedy="give a step of 1 or more")
    if not adds and not first:
        raise InputError(f"the range of {name} doubles from 0", remedy="start at 1, or add a step, as 0:8:1")
    if adds and (last - first) // step >= LARGEST_RANGE:
        raise InputError(f"the range of {name} has {(last - first) // step + 1:,} sizes", remedy="give a greater step")


def _doubling(first: int, last: int) -> tuple[int, ...]:
    sizes = [first]
    while sizes[-1] * 2 < last:
        sizes.append(sizes[-1] * 2)
    return (*sizes, last)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < MOST
