"""Ctrl-C that is not lost: callbacks of numba drop what is raised in them, or make a SystemError of it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SOON = 0.02
"""Seconds until a Ctrl-C that cannot be taken now comes again."""


@contextmanager
def patient() -> Iterator[list[int]]:
    """Within, SIGINT raises KeyboardInterrupt as ever, but waits while numba is at work. Yields the signals so far.

    Outside the main thread, and where somebody else handles SIGINT, nothing changes.
    """
    stops: list[int] = []
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield stops
        return
    later: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(number)
        _forget(later)
        if not _within_numba(frame):
            raise KeyboardInterrupt
        later.append(threading.Timer(SOON, _again, (number,)))
        later[-1].daemon = True
        later[-1].start()

    signal.signal(signal.SIGINT, stop)
    try:
        yield stops
    finally:
        _forget(later)
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _within_numba(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("numba."):
        frame = frame.f_back
    return frame is not None


def _again(number: int) -> None:
    """The signal once more, to the main thread where that can be said, so that it leaves what it waits in."""
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _forget(later: list[threading.Timer]) -> None:
    while later:
        later.pop().cancel()
