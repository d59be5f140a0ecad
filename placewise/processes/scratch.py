"""Folders for a moment, which do not stay behind when the process that made them is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "placewise-scratch-"


class Scratch:
    """An empty folder, until `close`. Its process holds a lock on it, which goes when the process does, however that
    ends: `sweep` then removes the folder.
    """

    def __init__(self) -> None:
        sweep()
        while True:  # until another process's sweep did not come between
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = _locked(self.path)
            if self._lock >= 0 and self.path.exists():
                break

    def close(self) -> None:
        """Remove it with all that is in it."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


@contextmanager
def scratch() -> Iterator[Path]:
    """The path of an empty folder, which is removed in the end."""
    folder = Scratch()
    try:
        yield folder.path
    finally:
        folder.close()


def sweep() -> None:
    """Remove the folders of this kind that belong to no process any more."""
    with suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            lock = _locked(path)
            if lock >= 0:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path) -> int:
    """A descriptor that locks a folder; −1 if another process has it, or it is not there."""
    import fcntl

    try:
        found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return -1
    return found
