"""Turns: what several processes of a user need for themselves, they have one after the other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from placewise.errors import RunError


@contextmanager
def turn(*needs: str) -> Iterator[None]:
    """Wait until no other turn of this user, on this machine, needs one of the same; it ends with its process too.

    `needs` are plain names, such as core-3. Raises RunError where the folder for temporary files cannot be written.
    """
    with ExitStack() as stack:
        for lock in _locks(needs):
            stack.callback(os.close, _locked(lock))
        yield


def _locks(needs: Iterable[str]) -> list[Path]:
    """In one order for all, so that nobody waits in a circle."""
    folder, user = Path(tempfile.gettempdir()), getattr(os, "getuid", lambda: 0)()
    return [folder / f"placewise-turn-{user}-{need}" for need in sorted(set(needs))]


def _locked(path: Path) -> int:
    import fcntl

    try:
        found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunError(f"nobody can take turns with {path} ({(error.strerror or str(error)).lower()})") from None
    try:
        fcntl.flock(found, fcntl.LOCK_EX)
    except BaseException:
        os.close(found)
        raise
    return found
