"""The cores that this process may use: how many threads it runs, and where it may pin them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from placewise.errors import InputError


def allowed_cores() -> tuple[int, ...]:
    """Their numbers; where the system has no affinity, all those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many there are."""
    return len(allowed_cores())


def pinnable_cores() -> tuple[int, ...]:
    """Their numbers. Raises InputError where the system cannot pin a process to some of them."""
    if not hasattr(os, "sched_getaffinity"):
        raise InputError("this system cannot pin processes to cores", remedy="measure on Linux")
    return allowed_cores()


def largest_cache(system: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes of the largest cache of the first core; 0 where the system does not say it."""
    found = 0
    for path in (system / f"cpu{allowed_cores()[0]}" / "cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            found = max(found, int(path.read_text().strip().removesuffix("K")) << 10)
    return found
