"""The header of a GGUF file: metadata and the table of tensors (ggml's docs/gguf.md, versions 2 and 3).

Files are not trusted: no count is believed that the rest of the file could not hold, arrays are walked and not kept
(the vocabulary of a tokenizer has some hundred thousand strings), and nothing but the header is read.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from placewise._util.safe_open import open_regular
from placewise._util.text import shortened
from placewise.errors import ModelFileError
from placewise.readers.gguf.types import TYPES

MAGIC = b"GGUF"
MAX_HEADER = 1 << 28
"""Bytes of a header, at most; those of today's models have some ten million."""
MAX_TENSORS, MAX_KEYS, MAX_NAME, MAX_DIMS = 1 << 20, 1 << 16, 1 << 16, 4
MAX_KEPT, MAX_DEPTH = 4096, 4
"""Entries of an array that are kept: a number per layer. Arrays in arrays."""
MAX_VALUES = 1 << 22
"""Texts and arrays in arrays, which are read one by one: vocabularies have less than a million."""
MAX_FILES = 1000
ALIGNMENT = 32
"""Of the weights, in bytes, where the file does not say it."""
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
NO_LAYER = -1
_LAYER = re.compile(r"blk\.([0-9]{1,9})\.")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the table; `shape` has the rows first, so that a matrix is [outputs, inputs]."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    file: Path

    @property
    def layer(self) -> int:
        """The number of its layer; `NO_LAYER` for a tensor of the input or the output."""
        match = _LAYER.match(self.name)
        return int(match[1]) if match else NO_LAYER


@dataclass(frozen=True, slots=True)
class LongArray:
    """What is left of an array that is too long to keep."""

    count: int


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata of a model, without the arrays of its tokenizer, and the tensors of all its files.

    `sha256` is that of the headers: weights are not read.
    """

    architecture: str
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    sha256: str

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of the architecture, by the end of its key: "block_count". Raises ModelFileError."""
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
            raise ModelFileError(f"{self.architecture}.{name} is {shortened(repr(value), 40)}, and not a size")
        return value


def read_header(path: Path) -> Header:
    """The header of a file, and of its other parts where it is the first of several. Raises ModelFileError."""
    files, hashed = list_files(path), hashlib.sha256()
    metadata: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for number, file in enumerate(files):
        found, table = _read_file(file, hashed)
        metadata = found if number == 0 else metadata
        for tensor in table:
            if tensor.name in tensors:
                raise ModelFileError(f"the tensor {shortened(tensor.name, 60)!r} occurs twice", where=str(file))
            tensors[tensor.name] = tensor
    parts = metadata.get("split.count")
    if len(files) == 1 and isinstance(parts, int) and parts > 1:
        place = metadata.get("split.no")
        which = f"part {place + 1}" if isinstance(place, int) else "a part"
        raise ModelFileError(
            f"is {which} of {parts} by its metadata, and not by its name", where=str(path),
            remedy=f"name the first part NAME-00001-of-{parts:05}.gguf, with the others beside it, and give that",
        )  # fmt: skip
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelFileError("no architecture is named in it", where=str(path), remedy="convert the model again")
    count = metadata.get("split.tensors.count")
    if len(files) > 1 and isinstance(count, int) and count != len(tensors):
        raise ModelFileError(
            f"has {len(tensors)} tensors in {len(files)} files, and should have {count}", where=str(path)
        )
    return Header(architecture, metadata, tuple(tensors.values()), hashed.hexdigest())


def list_files(path: Path) -> list[Path]:
    """All parts of a model, in order; the path alone for a model in one file. Raises ModelFileError."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    if int(match[2]) != 1:
        first = f"{match[1]}-00001-of-{match[3]}.gguf"
        raise ModelFileError(f"is part {int(match[2])} of {count}", where=str(path), remedy=f"give {first!r}")
    if not 1 <= count <= MAX_FILES:
        raise ModelFileError(f"is the first of {count} parts, and {MAX_FILES} are read", where=str(path))
    files = [path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, count + 1)]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise ModelFileError(f"the part {missing.name!r} is missing", where=str(path), remedy="download all parts")
    return files


class _Cursor:
    """Reads a header from its start, never beyond the end of the file."""

    def __init__(self, file: BinaryIO, size: int, hashed: Any) -> None:
        self._file, self._left, self._hashed = file, min(size, MAX_HEADER), hashed
        self._values = 0

    @property
    def read(self) -> int:
        """Bytes read so far."""
        return self._file.tell()

    def take(self, count: int) -> bytes:
        if count > self._left:
            raise ModelFileError("ends in the middle of its header", remedy="download it again")
        data = self._file.read(count)
        if len(data) < count:
            raise ModelFileError("ends in the middle of its header", remedy="download it again")
        self._left -= count
        self._hashed.update(data)
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        value: int = self.number("<Q")
        if value > min(most, self._left):
            raise ModelFileError(f"claims {value} {what}, more than it can hold", remedy="download it again")
        return value

    def text(self, most: int = MAX_HEADER) -> str:
        length = self.count(most, "letters of a text")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value of metadata; long arrays are walked and only counted."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth == MAX_DEPTH:
            raise ModelFileError(f"has a value of the unknown kind {kind}", remedy="convert the model again")
        inner: int = self.number("<I")
        if inner in _SCALARS:
            width = struct.calcsize(_SCALARS[inner])
            count = self.count(MAX_HEADER, "numbers")
            data = self.take(count * width)
            known = [value for (value,) in struct.iter_unpack(_SCALARS[inner], data)] if count <= MAX_KEPT else None
            return LongArray(count) if known is None else tuple(known)
        count = self.count(MAX_VALUES - self._values, "values")
        self._values += count
        kept = []
        for number in range(count):
            value = self.value(inner, depth + 1)
            if number < MAX_KEPT and count <= MAX_KEPT:
                kept.append(value)
        return tuple(kept) if count <= MAX_KEPT else LongArray(count)


def _read_file(path: Path, hashed: Any) -> tuple[dict[str, Any], list[Tensor]]:
    """Metadata and tensors of one file. Raises ModelFileError with the path."""
    try:
        with open_regular(path) as file:
            size = path.stat().st_size
            metadata, table, end = _read_parts(_Cursor(file, size, hashed), path)
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", where=str(path), remedy="check the path") from None
    except ModelFileError as error:
        raise error if error.where else error.at(str(path)) from None
    if end > size:
        raise ModelFileError(
            f"has {size} bytes, and its weights end at {end}", where=str(path), remedy="download it again"
        )
    return metadata, table


def _read_parts(cursor: _Cursor, path: Path) -> tuple[dict[str, Any], list[Tensor], int]:
    """Metadata, tensors, and where the last weight ends."""
    if cursor.take(4) != MAGIC:
        raise ModelFileError("is no GGUF file", remedy="convert the model with llama.cpp's convert_hf_to_gguf.py")
    version: int = cursor.number("<I")
    if version not in (2, 3):
        foreign = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
        what = "has the byte order of another machine" if foreign else f"has version {version} of the format"
        raise ModelFileError(f"{what}, and versions 2 and 3 in little-endian order are read")
    n_tensors, n_keys = cursor.count(MAX_TENSORS, "tensors"), cursor.count(MAX_KEYS, "keys")
    metadata = {}
    for _ in range(n_keys):
        key = cursor.text(MAX_NAME)
        value = cursor.value(cursor.number("<I"))
        metadata[key] = LongArray(len(value)) if key.startswith("tokenizer.") and isinstance(value, tuple) else value
    rows = [_read_tensor(cursor, path) for _ in range(n_tensors)]
    aligned = metadata.get("general.alignment", ALIGNMENT)
    if isinstance(aligned, bool) or not isinstance(aligned, int) or not 0 < aligned <= 1 << 20:
        raise ModelFileError(f"aligns its weights to {shortened(repr(aligned), 40)}, and not to a number of bytes")
    start = -(-cursor.read // aligned) * aligned
    return metadata, [tensor for tensor, _ in rows], max((start + offset + t.nbytes for t, offset in rows), default=0)


def _read_tensor(cursor: _Cursor, path: Path) -> tuple[Tensor, int]:
    """A row of the table, and where its data begin in the part of the weights."""
    name = cursor.text(MAX_NAME)
    n_dims: int = cursor.number("<I")
    if n_dims > MAX_DIMS:
        raise ModelFileError(f"the tensor {shortened(name, 60)!r} has {n_dims} dimensions, and {MAX_DIMS} are possible")
    sizes = [cursor.number("<Q") for _ in range(n_dims)]
    code: int = cursor.number("<I")
    offset: int = cursor.number("<Q")
    known = TYPES.get(code)
    if known is None:
        raise ModelFileError(
            f"the tensor {shortened(name, 60)!r} is of type {code}, which is not known",
            remedy="take another quantization of the model",
        )
    entries = math.prod(sizes)
    if not 0 <= entries < 1 << 50 or (sizes and sizes[0] % known.block):
        shape = " × ".join(map(str, sizes))
        raise ModelFileError(f"the tensor {shortened(name, 60)!r} of {shape} entries cannot be of type {known.name}")
    size = entries // known.block * known.block_bytes
    return Tensor(name, tuple(reversed(sizes)), known.name, size, path), offset
