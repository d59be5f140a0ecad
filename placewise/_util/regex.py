"""Regular expressions of users: compiled with an error in words, and searched within a time limit.

Some expressions take exponential time (``(a+)+$``), and neither a look at them nor at the names says for certain which.
So searching may compute for so many seconds; then it ends. Python's matcher hears signals, in the main thread only:
elsewhere, and where a system has no such timer, there is no limit.
"""

from __future__ import annotations

import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from placewise.errors import InputError

LONGEST, PER_NAME = 5.0, 1e-5
"""Seconds of computing, and those more for each name: what is written with care takes a tenth of them, or less."""


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression; raises InputError if it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[" may mean something else in a later Python
            return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"{pattern!r} is not a regular expression ({error})") from None


@contextmanager
def in_time(pattern: str, names: int) -> Iterator[None]:
    """A time limit around searches for an expression in so many names; raises InputError when it is over."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before, limit = signal.signal(signal.SIGVTALRM, _late), LONGEST + PER_NAME * names
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    except _Late:
        remedy = "write it without a repetition inside a repetition"
        raise InputError(f"to search for {pattern!r} takes more than {limit:.2g} s", remedy=remedy) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)


class _Late(BaseException):
    """The time limit; no ``except Exception`` on the way may stop it."""


def _late(_signal: int, _frame: FrameType | None) -> None:
    raise _Late
