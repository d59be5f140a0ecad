"""Exclusive use of resources (cores, GPUs) among all processes of a user on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from placewise.errors import RunError


@contextmanager
def lock_resources(*resources: str) -> Iterator[None]:
    """Wait until no other process of this user holds any of the `resources`, and hold them until the context exits.

    `resources` are plain names such as ``core-3``. The locks are also released when the process ends, in whatever way.
    Their files are removed with them; those of a killed process, by the next one that locks the same.
    Raises RunError if the folder for temporary files cannot be written.
    """
    folder, user = Path(tempfile.gettempdir()), getattr(os, "getuid", lambda: 0)()
    with ExitStack() as stack:
        for resource in sorted(set(resources)):  # one order for every process prevents deadlocks
            path = folder / f"placewise-turn-{user}-{resource}"
            stack.callback(_unlock_file, path, _lock_file(path))
        yield


def _lock_file(path: Path) -> int:
    """A descriptor that locks the file that is at `path` then: whoever held it before has removed the file."""
    while True:
        fd = _wait_for_file(path)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
        os.close(fd)


def _unlock_file(path: Path, fd: int) -> None:
    with suppress(OSError):
        os.unlink(path)
    os.close(fd)


def _wait_for_file(path: Path) -> int:
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunError(f"cannot open the lock file {path} ({(error.strerror or str(error)).lower()})") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except BaseException:
        os.close(fd)
        raise
    return fd
