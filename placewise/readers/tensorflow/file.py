"""A TensorFlow file → its parsed message: detect the format, check the size, and skip large values while parsing."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import text_format  # type: ignore[import-untyped]

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError
from placewise.readers.protobuf import DROP, LENGTH, VARINT, FieldPaths, WireField, fields_of, strip_fields
from placewise.readers.tensorflow.protos import MESSAGES
from placewise.readers.tensorflow.types import KEPT_ELEMENTS

LARGEST_TEXT = 1 << 26
"""Bytes. Text parses slowly, at about one megabyte per second."""
_LARGEST = 1 << 31
_HEAD = 1 << 16
SAVED_MODEL = "saved_model.pb"

_TENSOR: FieldPaths = dict.fromkeys((4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17), DROP)
_NODE: FieldPaths = {5: {2: {8: _TENSOR}}}  # NodeDef.attr, its value, AttrValue.tensor
_GRAPH: FieldPaths = {1: _NODE, 2: {1: {3: _NODE}}}  # GraphDef.node; library, function, node_def
_PATHS: dict[str, FieldPaths] = {"GraphDef": _GRAPH, "MetaGraphDef": {2: _GRAPH}, "SavedModel": {2: {2: _GRAPH}}}

_OP = re.compile(rb"[A-Za-z_][\w>]*")
_TEXTS = tuple(
    (kind, re.compile(rf"(?:^|[\s{{<])(?:{fields})\s*[:{{<]"))
    for kind, fields in (
        ("SavedModel", "saved_model_schema_version|meta_graphs"),
        ("MetaGraphDef", "meta_info_def|graph_def|signature_def"),
        ("RunMetadata", "step_stats|cost_graph"),
        ("GraphDef", "op|node_def"),
        ("CostGraphDef", "id|output_info|input_info|compute_cost|control_input"),
        ("GraphDef", "node|library|versions"),
    )
)
"""Field names that identify a text format; the first match decides."""


class ParsedFile(NamedTuple):
    """A parsed file: the message, its type (``"GraphDef"``, …) and the file's SHA-256."""

    message: Any
    kind: str
    sha256: str


def resolve_file(path: Path) -> Path:
    """Return the file to read: a SavedModel may be given as its folder."""
    inside = (path / name for name in (SAVED_MODEL, "saved_model.pbtxt"))
    return next((file for file in inside if os.path.isfile(file)), path) if os.path.isdir(path) else path


def looks_like_tensorflow(path: Path) -> bool:
    """Whether `load` accepts a file, or the folder of a SavedModel, judged by its first fields."""
    try:
        with (
            open_regular(resolve_file(path)) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            return bool(detect_binary_kind(data) or detect_text_kind(bytes(data[:_HEAD])))
    except (OSError, ValueError):  # an empty file cannot be mapped
        return False


def load(path: Path) -> ParsedFile:
    """Parse the message in `path`; raises ModelFileError, without the path, for anything but a TensorFlow file."""
    path = resolve_file(path)
    if os.path.isdir(path):
        raise ModelFileError(f"the folder holds no {SAVED_MODEL}", remedy="give a SavedModel, or a .pb or .pbtxt file")
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ModelFileError("the file is empty", remedy="export or download the model again")
            if size >= _LARGEST:
                raise ModelFileError(
                    "the file is larger than 2 GiB, the limit of protobuf", remedy="check that it is a model"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                sha256 = hashlib.sha256(data).hexdigest()
                message, kind = _parse(data)
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", remedy="give a .pb or .pbtxt file") from None
    return ParsedFile(message, kind, sha256)


def _parse(data: memoryview) -> tuple[Any, str]:
    kind = detect_binary_kind(data)
    if kind:
        message = MESSAGES[kind]()
        try:
            message.ParseFromString(strip_fields(data, _PATHS.get(kind, {}), longest=16 * KEPT_ELEMENTS))
        except Exception:  # protobuf's own error type differs between its back ends
            raise ModelFileError(
                f"this is not a valid TensorFlow {kind}, or the file is truncated",
                remedy="export or download the model again",
            ) from None
        return message, kind
    kind = detect_text_kind(bytes(data[:_HEAD]))
    if not kind:
        raise ModelFileError(
            "this is not a TensorFlow graph, or the file is truncated",
            remedy="give a GraphDef, MetaGraphDef, SavedModel or CostGraphDef, as .pb or .pbtxt",
        )
    if len(data) > LARGEST_TEXT:
        raise ModelFileError(f"the text is longer than {LARGEST_TEXT >> 20} MiB", remedy="save it as binary .pb")
    message = MESSAGES[kind]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # protobuf warns about escapes that it takes literally
            text_format.Parse(bytes(data).decode(), message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [""])[0][:120]
        raise ModelFileError(f"the text is not a {kind} ({first})", remedy="save the model again") from None
    return message, kind


def detect_binary_kind(data: memoryview) -> str:
    """The message type of binary `data`; "" if it is none of TensorFlow's."""
    first = _read_first_field(data)
    if first is None:
        return ""
    if first.number == 1 and first.wire == VARINT:  # SavedModel's version is 1; ONNX has 3 or more there
        following = _read_first_field(data[first.stop :])
        return "SavedModel" if data[first.payload] == 1 and following is not None and following.number == 2 else ""
    if first.wire != LENGTH or first.number not in (1, 2):
        return ""
    inner = _read_inner_fields(data[first.payload : first.stop])
    if first.number == 2:
        return _classify_second_field(inner)
    return _classify_first_field(inner)


def _classify_first_field(inner: list[tuple[int, int, bytes]]) -> str:
    """The message type whose field 1 holds a message with these fields."""
    if not inner:
        return ""
    by_number = {number: (wire, payload) for number, wire, payload in reversed(inner)}
    wire, start = by_number.get(1, (LENGTH, b""))
    if wire != LENGTH:
        return ""
    if start[:1] == b"\n":  # the message of a device, in StepStats
        return "RunMetadata"
    if 1 in by_number and start[:1] >= b" ":
        wire, op = by_number.get(2, (LENGTH, b""))
        if wire == LENGTH and _OP.fullmatch(op):
            return "GraphDef"
        return "CostGraphDef" if set(by_number) <= set(range(1, 18)) else ""
    return "MetaGraphDef" if {2, 4, 5, 6} & set(by_number) else ""


def _classify_second_field(inner: list[tuple[int, int, bytes]]) -> str:
    """The message type of a file that begins with field 2: a graph, a cost graph, a function library, …"""
    if not inner or inner[0][0] != 1 or inner[0][1] != LENGTH:
        return ""
    nested = _classify_first_field(_read_inner_fields(memoryview(inner[0][2])))
    return {"GraphDef": "MetaGraphDef", "CostGraphDef": "RunMetadata"}.get(nested, "")


def _read_first_field(data: memoryview) -> WireField | None:
    try:
        return next(iter(fields_of(data)), None)
    except (ValueError, IndexError):
        return None


def _read_inner_fields(data: memoryview) -> list[tuple[int, int, bytes]]:
    """(number, wire type, first bytes of the payload) of the first fields."""
    fields: list[tuple[int, int, bytes]] = []
    try:
        for field in fields_of(data):
            fields.append(
                (field.number, field.wire, bytes(data[field.payload : min(field.stop, field.payload + 4096)]))
            )
            if len(fields) == 32:
                break
    except (ValueError, IndexError):
        pass
    return fields


def detect_text_kind(start: bytes) -> str:
    """The message type of a text, by its field names; "" for none."""
    text = start.decode(errors="ignore")
    if not re.match(r"\s*(#[^\n]*\n\s*)*[a-z_]+\s*[:{<]", text):
        return ""
    return next((kind for kind, pattern in _TEXTS if pattern.search(text)), "")
