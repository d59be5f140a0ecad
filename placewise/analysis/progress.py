"""A search while it runs, in one line: who works on what, for how long, and what is known so far."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module

from placewise._util.text import visible
from placewise._util.units import format_seconds
from placewise.placers.base import OnProgress, Progress, ignore

EVERY = 0.2
"""Seconds between two updates of a notebook."""


class ProgressLine:
    """What to say of progress: by one clock for all placers, which starts with the first word of the first."""

    def __init__(self, limit: float = math.inf, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._start: float | None = None

    def of(self, state: Progress) -> str:
        """Who works, for how long, how long it still may, and what is known so far."""
        now = self._clock()
        self._start = now - state.seconds if self._start is None else self._start
        passed = now - self._start
        parts = [state.placer, f"{passed:.1f} s"]
        if math.isfinite(self._limit):
            parts.append(f"{max(self._limit - passed, 0.0):.0f} s left")
        parts.append(state.message)
        if state.value is not None:
            parts.append(f"best {format_seconds(state.value)}{f' by {state.by}' if state.by else ''}")
        if state.bound is not None:
            parts.append(f"bound {format_seconds(state.bound)}")
        return " · ".join(part for part in parts if part)

    @property
    def share(self) -> float | None:
        """How much of the time limit is over; None without a limit."""
        if self._start is None or not 0 < self._limit < math.inf:
            return None
        return min((self._clock() - self._start) / self._limit, 1.0)


@contextmanager
def listening(on_progress: OnProgress | None, limit: float = math.inf) -> Iterator[OnProgress]:
    """The listener that is given; without one a line and a bar in a notebook, and nothing elsewhere.

    `limit` is the time limit in seconds. The line goes when the work is done.
    """
    if on_progress is not None or not in_notebook():
        yield on_progress or ignore
        return
    display = import_module("IPython.display")
    line, last = ProgressLine(limit), -math.inf
    shown = display.display(display.HTML("reading"), display_id=True)

    def update(state: Progress) -> None:
        nonlocal last
        words, now = line.of(state), time.monotonic()
        if now - last >= EVERY:
            last = now
            shown.update(display.HTML(_bar_html(words, line.share)))

    try:
        yield update
    finally:
        shown.update(display.HTML(""))


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _bar_html(words: str, share: float | None) -> str:
    bar = "" if share is None else f'<progress max="1" value="{share:.3f}"></progress> '
    return f"<div>{bar}{escape(visible(words))}</div>"
