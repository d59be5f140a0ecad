"""The command line: one module per verb. It parses, calls and prints; what it needs is imported when needed.

This module is the door: what it does holds from the first import to the last word that is printed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

BAD_INPUT, INTERRUPTED, NOBODY_READS = 2, 130, 141
"""Exit codes of the door; the last two are what shells call an end by SIGINT and by SIGPIPE."""


def main() -> None:
    """The console script. Ctrl-C ends it at any moment, an import included, with one word and exit code 130."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"placewise {version('placewise')}")
        raise SystemExit(0)
    try:
        with _interruptible() as stops:
            code = _run(stops)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        _settle()
    # `python -m` ends as if by SIGINT where the last interrupt left an exec, as those of dataclasses
    exec("")  # nosec B102
    raise SystemExit(code)


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Within, SIGINT and SIGTERM raise KeyboardInterrupt: a search answers with the best so far. Yields the signals.

    Outside the main thread, and where somebody else handles SIGINT, nothing changes.
    """
    stops: list[int] = []
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield stops
        return

    def stop(number: int, _: FrameType | None) -> None:
        stops.append(number)
        raise KeyboardInterrupt

    def ignored(lost: sys.UnraisableHookArgs) -> None:
        if not stops or lost.exc_type is not KeyboardInterrupt:
            hook(lost)
            return
        again.append(threading.Timer(0.01, os.kill, (os.getpid(), stops[-1])))
        again[-1].start()

    # Python prints and drops what is raised in a finalizer: a signal that comes there must come once more.
    hook, again = sys.unraisablehook, list[threading.Timer]()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.unraisablehook = ignored
    try:
        yield stops
    finally:
        for timer in again:
            timer.cancel()
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(stops: list[int]) -> int | str | None:
    """The exit code of the app. An import that Ctrl-C reaches may end in any exception: `stops` tells them apart."""
    try:
        _write_what_cannot_be_written()
        _start_reader()
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


def _start_reader() -> None:
    """Where the command names an ONNX file, the process that reads it starts before this one imports all it needs."""
    if not any(argument.endswith(".onnx") and os.path.isfile(argument) for argument in sys.argv[1:]):
        return
    from placewise.errors import RunError
    from placewise.readers.apart import start_reader

    with suppress(OSError, RunError):  # reading tries again, and explains what is wrong
        start_reader()


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
