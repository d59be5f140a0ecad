"""Shared by all JSON-based files: the base record, parsing, validation and errors."""

from __future__ import annotations

import math
import os
import reprlib
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, WithJsonSchema
from pydantic_core import from_json, to_json

from placewise._util.safe_open import read_regular
from placewise._util.validation_errors import first_fault
from placewise.errors import InputError, ModelFileError, OutputError, locate_errors
from placewise.files.atomic import atomic_write

LARGEST_JSON = 1 << 30
"""Bytes; larger JSON files are refused unread (a plan of a million ops takes about a tenth)."""

Amount = Annotated[
    float,
    BeforeValidator(lambda value: math.inf if value is None or value != value else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else None, return_type=float | None),
    WithJsonSchema({"type": ["number", "null"]}),
]
"""A number; infinite, unlimited or undefined values are ``null`` in the file and inf in memory."""

Whole = Annotated[int, Field(gt=-(1 << 31) - 1, lt=1 << 31)]
"""A count or a number of something, which columns of 32 bits hold."""

ErrorType = type[InputError]
R = TypeVar("R", bound=BaseModel)


class Record(BaseModel):
    """A JSON object with named fields; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True, allow_inf_nan=True, defer_build=True)


def parse_json(data: bytes, error: ErrorType = ModelFileError) -> Any:
    """The value of JSON text. Raises `error` for invalid JSON, including bare NaN and Infinity."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as cause:
        raise error(f"is not JSON ({cause})", remedy="is the file complete, and the right one?") from None


def json_bytes(record: BaseModel, exclude: set[str] | None = None) -> bytes:
    """The record as indented JSON without the fields in `exclude`. Raises OutputError for invalid Unicode."""
    try:
        return to_json(record.model_dump(exclude=exclude), indent=1, inf_nan_mode="null") + b"\n"
    except ValueError as error:
        raise OutputError(f"cannot be written as JSON ({error})", remedy="rename what is not valid Unicode") from None


def read_bytes(path: str | os.PathLike[str], error: ErrorType, largest: int = LARGEST_JSON) -> bytes:
    """The content of a file. Raises `error` if it is missing, unreadable or larger than `largest` bytes."""
    if not isinstance(path, (str, os.PathLike)):
        raise error(f"the path of a file is {reprlib.repr(path)}", remedy="give a text or a Path")
    try:
        return read_regular(path, largest)
    except OSError as cause:
        raise error(f"cannot be read ({describe_os_error(cause)})", where=str(path), remedy="check the path") from None


def describe_os_error(cause: OSError) -> str:
    """The reason of an OSError, in lower case."""
    return (cause.strerror or str(cause)).lower()


def parse_versioned(record: type[R], document: object, error: ErrorType = ModelFileError) -> R:
    """`document` as a record, after checking its format and version. Raises `error` naming the fault."""
    name, newest = record.model_fields["format"].default, record.model_fields["version"].default
    if not isinstance(document, dict) or not isinstance(document.get("format"), str):
        raise error(f"is not a {name} file: it names no format", remedy="is it the right file?")
    if document["format"] != name:
        raise error(f"is a {reprlib.repr(document['format'])} file, not a {name} file", remedy="is it the right file?")
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise error(f"names no version of {name} (it says {reprlib.repr(version)})", remedy="is the file whole?")
    if version > newest:
        raise error(f"is {name} version {version}, newer than {newest}", remedy="upgrade placewise to read it")
    return parse_record(record, document, error)


def read_record(path: str | os.PathLike[str], record: type[R], error: ErrorType = ModelFileError) -> R:
    """The record in a JSON file. Raises `error`, naming the file and the fault."""
    data = read_bytes(path, error)
    with locate_errors(path):
        return parse_versioned(record, parse_json(data, error), error)


def write_record(record: BaseModel, path: str | os.PathLike[str], exclude: set[str] | None = None) -> None:
    """Write a record as JSON without the fields in `exclude`, atomically. Raises OutputError."""
    with locate_errors(path):
        text = json_bytes(record, exclude)
    with atomic_write(path, "wb") as file:
        file.write(text)


def parse_record(record: type[R], document: object, error: ErrorType = ModelFileError) -> R:
    """`document` as a record. Raises `error` naming the wrong field."""
    try:
        return record.model_validate(document)
    except ValidationError as cause:
        fault = first_fault(cause.errors(include_url=False), document)
        place = ".".join(str(part)[:80] for part in fault.place)
        others = f" (and {fault.more} more)" if fault.more else ""
        raise error(f"{place!r} {fault.words}{others}", remedy="see docs/formats.md") from None
