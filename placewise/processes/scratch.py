"""Temporary folders that are removed even when the process that created them is killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from placewise.processes.abandoned import lock_path, remove_abandoned, unlock

_PREFIX = "placewise-scratch-"


class ScratchFolder:
    """An empty folder in `parent` (the system's folder of temporary files by default) that exists until `close`.

    Its process holds a lock on it. However the process ends, the lock goes with it, and the next call of
    `remove_stale_folders` removes the folder. Where nothing can be locked, nobody removes it after a kill.
    """

    def __init__(self, parent: Path | None = None) -> None:
        remove_stale_folders(parent)
        while True:  # another process may remove the folder before it is locked
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = lock_path(self.path, wait=True)
            if self.path.exists():
                break
            unlock(self._lock)

    def close(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        unlock(self._lock)
        self._lock = -1


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """The path of an empty folder, which is removed when the context exits."""
    folder = ScratchFolder()
    try:
        yield folder.path
    finally:
        folder.close()


def remove_stale_folders(parent: Path | None = None) -> None:
    """Remove the scratch folders in `parent` whose processes have ended."""
    with suppress(OSError):
        remove_abandoned(parent or Path(tempfile.gettempdir()), _PREFIX)
