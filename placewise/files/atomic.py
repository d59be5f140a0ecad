"""Atomic writes: a file is written completely or not at all."""

from __future__ import annotations

import errno
import os
import reprlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from placewise.errors import OutputError
from placewise.processes.abandoned import lock_path, remove_abandoned, unlock

HIDDEN = (".placewise-", ".tmp")
"""How names of hidden files and folders begin and end; what a killed process leaves of them is removed later."""


def hidden_beside(target: Path) -> Path:
    """A new name for what will replace `target`."""
    return target.with_name(secrets.token_hex(8).join(HIDDEN))


def make_locked(hidden: Path, make: Callable[[Path], object]) -> int:
    """Make what will replace a file or folder, and lock it; removes what killed processes have left beside it."""
    remove_abandoned(hidden.parent, *HIDDEN)
    while True:
        make(hidden)
        lock = lock_path(hidden, wait=True)
        if hidden.exists():
            return lock
        unlock(lock)  # another process found it before it was locked, and removed it


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open `path` for writing; its old content stays intact until the new content is safely on disk.

    The content goes to a hidden file in the same directory, which replaces `path` at the end and is removed if
    anything fails; if this process is killed, the next writer in that directory removes it. Pipes and devices such as
    ``/dev/stdout`` are written directly. Text is UTF-8. Raises OutputError with the path and the remedy.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise OutputError(f"the path of a file is {reprlib.repr(path)}", remedy="give a text or a Path")
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError
        with _open_direct(target, mode) if _is_special(target) else _open_replacing(target, mode) as file:
            yield file
    except OSError as error:
        raise OutputError("cannot be written", where=str(path), remedy=_suggest_remedy(target, error)) from error


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file()


@contextmanager
def _open_direct(target: Path, mode: str) -> Iterator[IO[Any]]:
    with target.open(mode, **_text_options(mode)) as file:
        yield file


@contextmanager
def _open_replacing(target: Path, mode: str) -> Iterator[IO[Any]]:
    temporary, lock = hidden_beside(target), -1
    try:
        lock = make_locked(temporary, lambda path: path.touch(exist_ok=False))
        with temporary.open(mode, **_text_options(mode)) as file:
            if target.exists():
                shutil.copymode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        unlock(lock)


def _text_options(mode: str) -> dict[str, Any]:
    return {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}


def _suggest_remedy(target: Path, error: OSError) -> str:
    if target.is_dir():
        return "it is a directory; add a file name"
    if not target.parent.is_dir():
        return f"make the directory {target.parent} first"
    if isinstance(error, PermissionError):
        return f"choose a writable directory ({target.parent} is not)"
    reason = (error.strerror or "unknown cause").lower()
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{reason}; {'free some space or ' if full else ''}choose another path"


def ensure_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError early if `path` cannot be written later."""
    target = Path(os.path.realpath(path))
    if target.is_dir() or (not _is_special(target) and not os.access(target.parent, os.W_OK)):
        raise OutputError("cannot be written", where=str(path), remedy=_suggest_remedy(target, PermissionError()))
