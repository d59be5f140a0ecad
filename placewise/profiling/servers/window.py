"""A window of time in which runs are timed: in turns, and at once with other workers where they share one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placewise.costing.measured.table import TimingRow

WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Window:
    """At least `least` runs of each kind, from `start` on (by the clock ``time.monotonic``, which all processes of a
    machine share) and for at least `seconds`: whoever has the same window works at the same time.
    """

    least: int
    start: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a window gave: `whole`, the seconds of each run of the model without the profiler; a row per kernel; and
    `besides`, the median seconds of a run with the profiler that no kernel took.
    """

    whole: tuple[float, ...]
    rows: tuple[TimingRow, ...]
    besides: float


def in_turns(runs: Sequence[Callable[[], object]], window: Window) -> list[list[float]]:
    """Seconds of every call of `runs`, called in turns within the window, after a few that do not count."""
    for _ in range(WARM_UP):
        for run in runs:
            run()
    time.sleep(max(window.start - time.monotonic(), 0.0))
    times: list[list[float]] = [[] for _ in runs]
    while len(times[0]) < window.least or time.monotonic() < window.start + window.seconds:
        for run, found in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            found.append(time.perf_counter() - begin)
    return times
