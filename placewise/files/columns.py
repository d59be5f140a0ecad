"""The columnar file format: named arrays and a JSON header in a zip archive, which numpy opens as an ``.npz``.

Members are ``header.json`` and one ``.npy`` per array, deflated at the fastest level (a seventh of the stored size,
and no slower to write and read). Arrays hold plain numbers only: no pickles, no objects. A text column is one UTF-8
blob with the byte offsets of its rows.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError, OutputError, locate_errors
from placewise.files.atomic import atomic_write
from placewise.files.records import describe_os_error, json_bytes, parse_json, parse_versioned
from placewise.model.columns import Longs, Ragged

Array = npt.NDArray[Any]
H = TypeVar("H", bound=BaseModel)

HEADER = "header.json"
ALWAYS_ALLOWED, LARGEST_RATIO, NEVER_ALLOWED = 64 << 20, 300, 16 << 30
"""A file may unpack to `LARGEST_RATIO` times its size, within these two limits in bytes."""

_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, struct.error, ValueError)
_DTYPES = {np.dtype(code).str: np.dtype(code) for code in "?bBhHiIqQfd"}
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<>|][biuf]\d)', 'fortran_order': (?P<order>True|False), "
    rb"'shape': \((?P<shape>(?:\d{1,19},? ?){0,4})\), \} *\n",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """Access to named read-only arrays with checks of dtype and shape. Raises ModelFileError."""

    members: Mapping[str, Array]
    prefix: str = ""

    def under(self, prefix: str) -> ColumnReader:
        """The arrays whose names start with `prefix`, under the rest of their names."""
        return ColumnReader(self.members, self.prefix + prefix)

    def take(self, name: str, dtype: npt.DTypeLike, *shape: int | None) -> Array:
        """The array `name`, checked to have this dtype and shape (None: any length)."""
        name = self.prefix + name
        array = self.members.get(name)
        if array is None:
            raise ModelFileError(f"has no array {name!r}", remedy="is the file whole?")
        if array.dtype != np.dtype(dtype):
            raise ModelFileError(f"the array {name!r} holds {array.dtype} instead of {np.dtype(dtype)}")
        if len(array.shape) != len(shape) or any(b not in (a, None) for a, b in zip(array.shape, shape, strict=True)):
            expected = " × ".join("any" if length is None else str(length) for length in shape)
            raise ModelFileError(f"the array {name!r} has shape {array.shape} instead of {expected}")
        return array

    def ragged(self, name: str, rows: int) -> Ragged:
        """A ragged column with `rows` rows."""
        values = self.take(f"{name}.values", np.int64, None)
        return Ragged(self._offsets(name, rows, len(values)), values)

    def strings(self, name: str, rows: int | None) -> tuple[str, ...]:
        """A text column with `rows` rows (None: any number)."""
        blob = self.take(f"{name}.text", np.uint8, None)
        offsets = self._offsets(name, rows, len(blob))
        try:
            text = str(blob.data, "utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(f"the text column {self.prefix + name!r} is not UTF-8") from None
        if len(text) < len(blob):
            begins = (blob & 0xC0) != 0x80
            if not begins[offsets[offsets < len(blob)]].all():
                raise ModelFileError(f"the text column {self.prefix + name!r} splits a character")
            offsets = np.concatenate(([0], np.cumsum(begins)))[offsets]
        ends = offsets.tolist()
        return tuple([text[start:end] for start, end in pairwise(ends)])

    def _offsets(self, name: str, rows: int | None, end: int) -> Longs:
        offsets = self.take(f"{name}.offsets", np.int64, None if rows is None else rows + 1)
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
            raise ModelFileError(f"the offsets of {self.prefix + name!r} do not rise from 0 to {end}")
        return offsets


def string_arrays(name: str, rows: Iterable[str]) -> dict[str, Array]:
    """A text column as ``name.text`` and ``name.offsets``. Raises OutputError for invalid Unicode."""
    try:
        encoded = [row.encode() for row in rows]
    except UnicodeEncodeError as error:
        raise OutputError(f"{error.object!r} in {name!r} is not valid Unicode", remedy="rename it") from None
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return {
        f"{name}.text": np.frombuffer(b"".join(encoded), np.uint8),
        f"{name}.offsets": np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
    }


def ragged_arrays(name: str, column: Ragged) -> dict[str, Array]:
    """A ragged column as ``name.values`` and ``name.offsets``."""
    return {f"{name}.values": column.values, f"{name}.offsets": column.offsets}


def write_columns(path: str | os.PathLike[str], header: BaseModel, arrays: Mapping[str, Array]) -> None:
    """Write header and arrays atomically and reproducibly. Raises OutputError."""
    text = json_bytes(header)
    with atomic_write(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(HEADER, "w") as member:
            member.write(text)
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def read_columns(path: str | os.PathLike[str], header: type[H]) -> tuple[H, ColumnReader]:
    """The header and the arrays of a file. Raises ModelFileError if the file is not valid.

    The claimed sizes are checked before anything is decompressed.
    """
    with locate_errors(path):
        members = _read_members(path)
        if HEADER not in members:
            raise ModelFileError(f"has no {HEADER}", remedy="is it a Placewise file?")
        record = parse_versioned(header, parse_json(members.pop(HEADER)))
        arrays = {name.removesuffix(".npy"): _parse_array(name, data) for name, data in members.items()}
    return record, ColumnReader(arrays)


def format_name(path: str | os.PathLike[str]) -> str:
    """``"placewise-graph"``, ``"placewise-problem"``, ``"placewise-costs"``, or "" for any other file."""
    try:
        header = parse_json(_read_members(path, only=HEADER)[HEADER])
    except (ModelFileError, KeyError):
        return ""
    name = header.get("format") if isinstance(header, dict) else None
    return name if isinstance(name, str) and name.startswith("placewise-") else ""


def _read_members(path: str | os.PathLike[str], only: str = "") -> dict[str, bytes]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if only in ("", entry.filename)]
            _refuse_bombs(entries, os.fstat(file.fileno()).st_size)
            return {entry.filename: _read_member(archive, entry) for entry in entries}
    except OSError as error:
        raise ModelFileError(f"cannot be read ({describe_os_error(error)})", remedy="check the path") from None
    except _ZIP_ERRORS as error:
        raise ModelFileError(f"is not a complete columnar file ({error})", remedy="make or copy it again") from None


def _refuse_bombs(entries: list[zipfile.ZipInfo], size: int) -> None:
    limit = min(max(ALWAYS_ALLOWED, LARGEST_RATIO * size), NEVER_ALLOWED)
    claimed = sum(entry.file_size for entry in entries)
    if claimed > limit:
        raise ModelFileError(
            f"is {size} bytes long and claims to hold {claimed}, more than {limit}", remedy="do not trust this file"
        )
    if len({entry.filename for entry in entries}) < len(entries):
        raise ModelFileError("holds two members of the same name", remedy="make it again")
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise ModelFileError("holds members that are neither stored nor deflated", remedy="make it again")


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as member:
        data = member.read(entry.file_size)
    if len(data) != entry.file_size:
        raise zipfile.BadZipFile(f"{entry.filename} is truncated")
    return data


def _parse_array(name: str, data: bytes) -> Array:
    """The array in ``.npy`` data, as a view; the claimed size is checked first.

    numpy's own reader evaluates the header as Python and allocates before it checks the size.
    """
    begin = 10 + int.from_bytes(data[8:10], "little")
    header = _NPY.fullmatch(data[:begin])
    if header is None:
        raise ModelFileError(f"the member {name!r} is not an array of numbers", remedy="do not trust this file")
    shape = tuple(int(length) for length in header["shape"].replace(b",", b" ").split())
    dtype = _DTYPES.get(header["dtype"].decode())
    if dtype is None or prod(shape) * dtype.itemsize != len(data) - begin:
        raise ModelFileError(f"the array {name!r} does not have the claimed size", remedy="copy it again")
    array = np.frombuffer(data, dtype, offset=begin).reshape(shape, order="F" if header["order"] == b"True" else "C")
    if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise ModelFileError(f"the array {name!r} holds bytes that are neither true nor false")
    return array
