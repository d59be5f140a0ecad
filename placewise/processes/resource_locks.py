"""Exclusive use of resources (cores, GPUs) among all processes of a user on this machine."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from placewise.errors import RunError


@contextmanager
def lock_resources(*resources: str) -> Iterator[None]:
    """Wait until no other process of this user holds any of the `resources`, and hold them until the context exits.

    `resources` are plain names such as ``core-3``. The locks are also released when the process ends, in whatever way.
    Their files, in a folder that only this user can open, are removed with them; those of a killed process, by the next
    one that locks the same. Raises RunError if the folder cannot be made, or was made by somebody else.
    """
    folder = Path(tempfile.gettempdir()) / f"placewise-locks-{getattr(os, 'getuid', lambda: 0)()}"
    with ExitStack() as stack:
        for resource in sorted(set(resources)):  # one order for every process prevents deadlocks
            path = folder / resource
            stack.callback(_unlock_file, path, _lock_file(path))
        yield


def _lock_file(path: Path) -> int:
    """A descriptor that locks the file that is at `path` then: whoever held it before has removed the file."""
    while True:
        _make_private(path.parent)
        fd = _wait_for_file(path)
        if fd < 0:
            continue
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
        os.close(fd)


def _make_private(folder: Path) -> None:
    """Make a folder that only its owner can open. One that others made, or can write, or a link is refused."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        found = os.lstat(folder)
    except FileNotFoundError:
        if folder.parent.is_dir():
            return  # another process has just removed it: the next attempt makes it again
        raise RunError(f"cannot make the folder {folder} of locks ({folder.parent} is not there)") from None
    except OSError as error:
        raise RunError(f"cannot make the folder {folder} of locks ({(error.strerror or str(error)).lower()})") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RunError(f"the folder {folder} of locks is not private to this user: remove it, or set TMPDIR")


def _unlock_file(path: Path, fd: int) -> None:
    with suppress(OSError):
        os.unlink(path)
        path.parent.rmdir()  # unless it holds other locks
    os.close(fd)


def _wait_for_file(path: Path) -> int:
    """A descriptor that locks a file; −1 if its folder is gone."""
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return -1  # the folder has just been removed
    except OSError as error:
        raise RunError(f"cannot open the lock file {path} ({(error.strerror or str(error)).lower()})") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        os.close(fd)
        raise RunError(f"cannot lock the file {path} ({(error.strerror or str(error)).lower()}): set TMPDIR") from None
    except BaseException:
        os.close(fd)
        raise
    return fd
