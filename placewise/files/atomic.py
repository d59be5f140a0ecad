"""Atomic writes: a file is written completely or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from placewise.errors import OutputError


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open `path` for writing; its old content stays intact until the new content is safely on disk.

    The content goes to a hidden file in the same directory, which replaces `path` at the end and is removed if
    anything fails. Pipes and devices such as ``/dev/stdout`` are written directly. Text is UTF-8. Raises OutputError
    with the path and the remedy.
    """
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
    temporary = target.with_name(f".placewise-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open(mode.replace("w", "x"), **_text_options(mode)) as file:
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
