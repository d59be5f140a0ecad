"""Read the JSON descriptions in a ``.pt2`` archive, after checking its structure; weights are never read."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError

MAX_MEMBERS = 200_000
MAX_DIRECTORY = 64 << 20
MAX_DESCRIPTION = 256 << 20
"""Bytes of one description; that of a model with 32 layers has 4 MB."""
MAX_COMPRESSION = 100
"""The maximum compression ratio of a description; JSON text has about 10, zip bombs about 1000."""
_END = struct.Struct("<4s4H2LH")  # APPNOTE.TXT 4.3.16, end of central directory
_END_64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_LOCATOR = struct.Struct("<4sLQL")  # 4.3.15
_SAVE_AGAIN = "save the program again with torch.export.save"


def read_descriptions(path: Path) -> dict[str, bytes]:
    """The JSON files that describe programs, weights and constants, by path in the archive.

    Raises ModelFileError, without the path, if this is not a valid ``.pt2`` archive.
    """
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_members(members, path.stat().st_size)
            selected = [info for info in members if _is_description(_path_in_archive(info.filename))]
            if not any(_is_program(_path_in_archive(info.filename)) for info in selected):
                raise _missing_program(_path_in_archive(info.filename) for info in members)
            return {_path_in_archive(info.filename): _read_member(archive, info) for info in selected}
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror or error})", remedy="check the path") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OverflowError,
        struct.error,
    ):
        raise ModelFileError("is not a .pt2 archive, or is truncated or damaged", remedy=_SAVE_AGAIN) from None


def parse_json(text: bytes, name: str) -> Any:
    """A description as plain values. Raises ModelFileError if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"its {name} is not JSON ({error})", remedy=_SAVE_AGAIN) from None


def _check_directory(path: Path) -> None:
    """Raise for an excessive central directory, before zipfile reads it."""
    with open_regular(path) as file:
        size = file.seek(0, 2)
        if not size:
            raise ModelFileError("the file is empty", remedy=_SAVE_AGAIN)
        file.seek(max(0, size - (1 << 16) - _END.size - _LOCATOR.size))
        tail = file.read()
        place = tail.rfind(b"PK\5\6")
        *_, members, length, _, comment = _END.unpack_from(tail, place) if place >= 0 else (0, 0, 0, 0)
        if place < 0 or place + _END.size + comment != len(tail):
            raise zipfile.BadZipFile
        if tail[place - _LOCATOR.size : place].startswith(b"PK\6\7"):
            file.seek(_LOCATOR.unpack_from(tail, place - _LOCATOR.size)[2])
            *_, members, length, _ = _END_64.unpack(file.read(_END_64.size))
    if members > MAX_MEMBERS or length > MAX_DIRECTORY:
        raise ModelFileError(f"the archive lists {members} files in {length} bytes", remedy=_SAVE_AGAIN)


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    for info in members:
        name = info.filename
        if name.startswith("/") or "\\" in name or ":" in name.partition("/")[0] or ".." in PurePosixPath(name).parts:
            raise ModelFileError(f"the archive's file {name[:80]!r} points outside of it", remedy=_SAVE_AGAIN)
        if info.compress_type == zipfile.ZIP_STORED and info.file_size > size:
            raise ModelFileError(f"the archive's file {name[:80]!r} is larger than the archive", remedy=_SAVE_AGAIN)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > min(MAX_DESCRIPTION, MAX_COMPRESSION * info.compress_size + (1 << 16)):
        raise ModelFileError(
            f"the archive's file {info.filename[:80]!r} claims to unpack to {info.file_size} bytes",
            remedy=_SAVE_AGAIN,
        )
    with archive.open(info) as file:
        text = file.read(info.file_size + 1)
    if len(text) != info.file_size:
        raise zipfile.BadZipFile
    return text


def _path_in_archive(name: str) -> str:
    """A member's path relative to the root folder of the archive."""
    return name.partition("/")[2]


def _is_program(name: str) -> bool:
    return name.startswith("models/") and name.endswith(".json") and name.count("/") == 1


def _is_description(name: str) -> bool:
    return _is_program(name) or (
        name.startswith("data/") and name.endswith(("weights_config.json", "constants_config.json"))
    )


def _missing_program(names: Iterable[str]) -> ModelFileError:
    members = set(names)
    if any(name.startswith("data/aotinductor/") for name in members):
        problem = "is compiled by AOTInductor and holds no program"
        return ModelFileError(problem, remedy="save the exported program with torch.export.save")
    if any(name.endswith("data.pkl") for name in members):
        problem = "is a checkpoint of torch.save and holds no program (nothing was unpickled)"
        return ModelFileError(problem, remedy="export the model with torch.export and save that")
    problem = "is not an archive of torch.export, or was saved before PyTorch 2.8"
    return ModelFileError(problem, remedy=_SAVE_AGAIN + " of PyTorch 2.8 or later")
