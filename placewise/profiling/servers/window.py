"""A window of time in which runs are timed in turns, at the same time as the runs of other workers if they share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placewise.costing.measured.table import TimingRow

WARM_UP = 2


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """At least `least` runs of each kind, from `start` on and for at least `seconds`.

    `start` is a moment of ``time.monotonic``, the same clock for all processes of a machine: workers with the same
    window measure at the same time.
    """

    least: int
    start: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfiledRuns:
    """The measurements of a window.

    `whole` are the seconds of each run without the profiler, `rows` the kernels, and `besides` the median seconds of a
    run with the profiler outside all kernels. `notes` say what is wrong with the times.
    """

    whole: tuple[float, ...]
    rows: tuple[TimingRow, ...]
    besides: float
    notes: tuple[str, ...] = ()


def time_in_turns(runs: Sequence[Callable[[], object]], window: TimeWindow) -> list[list[float]]:
    """The seconds of every call of each of `runs`, called in turns within the window after a warm-up."""
    for _ in range(WARM_UP):
        for run in runs:
            run()
    time.sleep(max(window.start - time.monotonic(), 0.0))
    times: list[list[float]] = [[] for _ in runs]
    while len(times[0]) < window.least or time.monotonic() < window.start + window.seconds:
        for run, seconds in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
    return times
