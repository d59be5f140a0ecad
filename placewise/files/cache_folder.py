"""The user's cache: a private folder with a subfolder per kind of content, bounded in size, to be emptied at any time.

Nothing depends on it. Where it cannot be made, or is not private, there is none, and that is not an error.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from placewise.files.atomic import HIDDEN
from placewise.processes.abandoned import remove_abandoned

GRAPHS, PROFILES = "graphs", "profiles"
LIMITS = {GRAPHS: 256 << 20, PROFILES: 256 << 20}
"""Bytes per kind of content; beyond that, files that were not used for longest are removed."""
SWITCH = "PLACEWISE_NO_CACHE"
"""The environment variable that switches the cache off, with any value but "" and "0"."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """How much of one kind the cache holds: files, their bytes, and the limit in bytes."""

    kind: str
    files: int
    bytes: int
    limit: int


def cache_folder() -> Path | None:
    """The user's cache folder by the convention of the system, or in XDG_CACHE_HOME; it need not exist.

    None where the user has no home, as in containers with a number for a user.
    """
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    base = home / ".cache" / "placewise"
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"]) / "placewise"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches" / "placewise"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "placewise" / "Cache"
    return base if base.is_absolute() else None


def open_cache(kind: str) -> Path | None:
    """The folder for one kind of content, made where it is missing; None if there is no cache, or it is off."""
    folder = None if os.environ.get(SWITCH, "0") not in ("", "0") else cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if not _is_ours(folder):
            return None
        _close_to_others(folder)
        (folder / kind).mkdir(0o700, exist_ok=True)
    except OSError:
        return None
    return folder / kind


def mark_used(path: Path) -> None:
    """Say that a file was used just now."""
    with suppress(OSError):
        os.utime(path)


def remove_oldest(folder: Path, limit: int) -> None:
    """Remove the files of a folder that were not used for longest, until at most `limit` bytes are left."""
    files = sorted(_list_files(folder), key=lambda item: item[1].st_mtime_ns)
    total = sum(status.st_size for _, status in files)
    for path, status in files:
        if total <= limit:
            return
        with suppress(OSError):
            path.unlink()
            total -= status.st_size


def measure_cache() -> tuple[CacheUsage, ...]:
    """What the cache holds, by kind."""
    folder, usage = _own_folder(), []
    for kind, limit in LIMITS.items():
        sizes = [status.st_size for _, status in _list_files(folder / kind)] if folder else []
        usage.append(CacheUsage(kind, len(sizes), sum(sizes), limit))
    return tuple(usage)


def clear_cache() -> int:
    """Remove everything from the cache; how many bytes that freed."""
    before, folder = _count_bytes(), _own_folder()
    if folder is not None:
        for kind in LIMITS:
            remove_oldest(folder / kind, -1)
            remove_abandoned(folder / kind, *HIDDEN)
    return before - _count_bytes()


def _count_bytes() -> int:
    return sum(usage.bytes for usage in measure_cache())


def _own_folder() -> Path | None:
    """The cache folder; None where there is none, or it is somebody else's."""
    folder = cache_folder()
    try:
        return folder if folder is not None and _is_ours(folder) else None
    except OSError:
        return None


def _is_ours(folder: Path) -> bool:
    """Whether a folder belongs to this user, and so does the link that leads to it, if it is one."""
    if not hasattr(os, "geteuid"):
        return True
    return folder.lstat().st_uid == os.geteuid() == folder.stat().st_uid


def _close_to_others(folder: Path) -> None:
    if hasattr(os, "geteuid") and folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def _list_files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """The finished files of a folder; hidden ones are being written."""
    files = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and not entry.name.startswith("."):
                    files.append((Path(entry.path), status))
    return files
