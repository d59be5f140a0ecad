"""The bytes of a measurement, unpacked if necessary, in bounded memory."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from placewise._util.safe_open import open_regular
from placewise.errors import CostError

LARGEST = 2 << 30
"""Bytes after unpacking, of a file whose events are read one by one."""
LARGEST_WHOLE = 64 << 20
"""Bytes after unpacking, of a file that is read whole."""
LONGEST_EVENT = 1 << 22
MAX_EVENTS = 5_000_000
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[\s,]*")


@contextmanager
def open_measurement(path: Path) -> Iterator[IO[bytes]]:
    """Open the file, unpacked if it is gzip. Raises CostError if it cannot be read or unpacked."""
    try:
        with open_regular(path) as file:
            start = file.read(2)
            file.seek(0)
            if start != _GZIP:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked  # type: ignore[misc]
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise CostError("is not a complete gzip file", remedy="pack it again") from None
    except OSError as error:
        raise CostError(f"cannot be read ({error.strerror})", remedy="check the path") from None


def read_head(path: Path) -> bytes:
    """The first bytes, enough to detect the format."""
    with open_measurement(path) as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()


def read_text(path: Path) -> str:
    """All of a file as text. Raises CostError if it is too large or not UTF-8."""
    with open_measurement(path) as file:
        data = file.read(LARGEST_WHOLE + 1)
    if len(data) > LARGEST_WHOLE:
        raise CostError(f"is larger than {LARGEST_WHOLE >> 20} MiB", remedy="keep only the rows that matter")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CostError("is not UTF-8 text", remedy="save it as UTF-8") from None


def load_json(path: Path) -> Any:
    """The value in a JSON file; NaN and Infinity become strings. Raises CostError."""
    try:
        return json.loads(read_text(path), parse_constant=str)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(":")[0] if isinstance(error, ValueError) else "nested too deeply"
        raise CostError(f"is not JSON ({reason})", remedy="write it again") from None


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the objects of a trace: a list, or the list under "traceEvents"."""
    decoder, count = json.JSONDecoder(), 0
    with open_measurement(path) as file:
        pieces = _decode_chunks(file)
        text, at = _find_list_start(pieces), 0
        while True:
            at = _skip_space(text, at)
            if text[at : at + 1] == "]":
                return
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                more = next(pieces, None) if len(text) - at < LONGEST_EVENT else None
                if more is None:
                    raise CostError(
                        "is not a complete trace: an event is truncated", remedy="record it again"
                    ) from None
                text, at = text[at:] + more, 0
                continue
            count += 1
            if count > MAX_EVENTS:
                raise CostError(f"has more than {MAX_EVENTS:,} events", remedy="record fewer steps, without stacks")
            if isinstance(value, dict):
                yield value


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _decode_chunks(file: IO[bytes]) -> Iterator[str]:
    """Chunks of text, split between characters."""
    decoder, size = codecs.getincrementaldecoder("utf-8-sig")("replace"), 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        if size > LARGEST:
            raise CostError(f"is larger than {LARGEST >> 30} GiB", remedy="record fewer steps")
        yield decoder.decode(chunk)


def _find_list_start(pieces: Iterator[str]) -> str:
    """The text after the bracket that opens the list of events."""
    text = ""
    for piece in pieces:
        text += piece
        match = re.match(r"\s*\[", text) or re.search(r'"traceEvents"\s*:\s*\[', text)
        if match:
            return text[match.end() :]
        if len(text) > LONGEST_EVENT:
            break
    raise CostError("has no list of events", remedy="give a trace as the profiler wrote it")
