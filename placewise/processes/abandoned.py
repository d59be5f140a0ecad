"""Files and folders that a process locks while it makes them, so that others can tell those of a killed one.

However a process ends, its locks go with it. Where nothing can be locked (Windows, some network file systems), nothing
counts as abandoned.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path


def lock_path(path: Path, *, wait: bool = False) -> int:
    """A descriptor that locks a file or folder; −1 if another process holds the lock, or there is none of ours.

    With `wait`, wait for the lock: whoever held it may have removed the path meanwhile.
    """
    try:
        import fcntl

        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (ImportError, OSError):
        return -1
    try:
        if os.fstat(fd).st_uid != os.getuid():
            raise PermissionError
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(fd)
        return -1
    except BaseException:
        os.close(fd)
        raise
    return fd


def unlock(fd: int) -> None:
    """Close a descriptor of `lock_path`, if it is one."""
    if fd >= 0:
        os.close(fd)


def remove_abandoned(folder: Path, prefix: str, suffix: str = "") -> None:
    """Remove what is named so in `folder`, is ours and is not locked."""
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(suffix)]
        for path in map(folder.joinpath, names):
            fd = lock_path(path)
            if fd < 0:
                continue
            with suppress(OSError):
                shutil.rmtree(path, ignore_errors=True) if stat.S_ISDIR(os.fstat(fd).st_mode) else path.unlink()
            os.close(fd)
