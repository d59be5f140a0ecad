"""Opening a file that a user names: a pipe or a device may never begin, or never end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_CHUNK = 1 << 22


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, to read its bytes. Raises OSError, with the reason in words, also for what is no regular file."""
    try:
        file = open(path, "rb", opener=_at_once)  # noqa: SIM115
    except ValueError:  # a zero byte, or half a character
        raise OSError(errno.EINVAL, "No file can be called so", os.fspath(path)) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "It is a pipe or a device and not a file", os.fspath(path))
    return file


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """All its bytes. Raises OSError, with the reason in words, also for more than `most`."""
    chunks, left = [], most + 1
    with open_regular(path) as file:
        while left and (chunk := file.read(min(left, _CHUNK))):  # a buffer for `most` bytes may be more than there is
            chunks.append(chunk)
            left -= len(chunk)
    data = b"".join(chunks)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"It is larger than {most} bytes", os.fspath(path))
    return data


def _at_once(path: str, flags: int) -> int:
    """Without waiting for somebody who writes into a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
