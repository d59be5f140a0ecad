"""The command line: one module per verb. It parses, calls and prints; what it needs is imported when needed.

This module is the door: what it does holds from the first import to the last word that is printed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

BAD_INPUT, INTERRUPTED, NOBODY_READS = 2, 130, 141
"""Exit codes of the door; the last two are what shells call an end by SIGINT and by SIGPIPE."""
SOON = 0.02
"""Seconds until a Ctrl-C that cannot be taken now comes again."""


def main() -> None:
    """The console script. Ctrl-C ends it at any moment, an import included, with one word and exit code 130."""
    stops: list[int] = []
    later: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(number)
        _forget(later)
        if not _within_numba(frame):
            raise KeyboardInterrupt
        later.append(threading.Timer(SOON, _again, (number,)))
        later[-1].daemon = True
        later[-1].start()

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
    try:
        code = _run(stops)
    finally:
        _forget(later)
        if signal.getsignal(signal.SIGINT) is stop:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        _settle()
    raise SystemExit(code)


def _run(stops: list[int]) -> int | str | None:
    """The exit code of the app. An import that Ctrl-C reaches may end in any exception: `stops` tells them apart."""
    try:
        _write_what_cannot_be_written()
        from placewise.cli.app import app

        app()
    except SystemExit as end:
        if not stops or end.code not in (1, INTERRUPTED):
            return end.code
    except BaseException as error:
        if not stops:
            return _unwritten(error)
    _say("interrupted")
    return INTERRUPTED


def _within_numba(frame: FrameType | None) -> bool:
    """Whether numba is at work, which loses what is raised in its callbacks: Ctrl-C waits until it is done."""
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


def _write_what_cannot_be_written() -> None:
    """Characters that a terminal's encoding lacks become question marks."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _unwritten(error: BaseException) -> int:
    """The exit code where standard output cannot be written; any other error is raised again."""
    if isinstance(error, BrokenPipeError):
        return NOBODY_READS
    if not isinstance(error, OSError) or error.filename is not None:
        raise error
    _say(f"error: standard output cannot be written ({(error.strerror or str(error)).lower()})")
    return BAD_INPUT


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr)


def _settle() -> None:
    """What could not be written must not be tried again when Python ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
