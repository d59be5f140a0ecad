"""One leaf of a file with a value of another type or at the end of its range, in each format that has leaves.

Every kind of place (a path without its numbers) is as likely as any other, however often it occurs.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import tomllib
from collections.abc import Callable
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from fuzzing.tokens import BYTES, TEXTS
from fuzzing.tree import toml_of
from placewise.readers.tensorflow.protos import MESSAGES

SWAPS = (
    "null", "true", "false", "NaN", "Infinity", "-1", "0", "0.5", "1" + "0" * 40, '"' + "1" * 40 + '"', '"x"', '""',
    "[]", "[null]", "{}", '{"a": 1}',
)  # fmt: skip
_TOML_SWAPS = (
    "true", "nan", "inf", "-inf", "-1", "0", "0.5", "1" + "0" * 40, '"' + "1" * 40 + '"', '"x"', '""', "[]", "[[]]",
    "{}", "{a = 1}", "1979-05-27", "07:32:00",
)  # fmt: skip
_WORDS = ("", "null", "true", "NaN", "inf", "-1", "0", "0.5", "1" + "0" * 40, "1" * 40, "x", "[]", "1,2", "-", "1e400")
_MARK = "\x00leaf"
_MOST = 20_000
"""Leaves of a message: larger ones are not searched."""


def leaf_swapped(rng: Random, data: bytes, other: bytes) -> bytes:
    """A JSON text with one value replaced."""
    root = [json.loads(data)]
    _mark(rng, root)
    return json.dumps(copy.deepcopy(root[0])).replace(json.dumps(_MARK), rng.choice(SWAPS)).encode()


def toml_swapped(rng: Random, data: bytes, other: bytes) -> bytes:
    """The same of a TOML text."""
    table = tomllib.loads(data.decode())
    _mark(rng, table)
    return toml_of(table).replace(json.dumps(_MARK), rng.choice(_TOML_SWAPS)).encode()


def xml_swapped(rng: Random, data: bytes, other: bytes) -> bytes:
    """A document with one attribute, or one text, that says something else."""
    root = ET.fromstring(data)
    places: dict[tuple[str, str], list[ET.Element]] = {}
    for element in root.iter():
        for name in element.attrib:
            places.setdefault((element.tag, name), []).append(element)
        if (element.text or "").strip():
            places.setdefault((element.tag, ""), []).append(element)
    kind = rng.choice([*places])
    element, word = rng.choice(places[kind]), rng.choice(_WORDS)
    if kind[1]:
        element.set(kind[1], word)
    else:
        element.text = word
    return ET.tostring(root, "utf-8")


def csv_swapped(rng: Random, data: bytes, other: bytes) -> bytes:
    """A table with one cell that says something else."""
    text = data.decode("utf-8")
    mark = ";" if text.partition("\n")[0].count(";") > text.partition("\n")[0].count(",") else ","
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=mark) if row]
    width = rng.randrange(max(map(len, rows)))
    row = rng.choice([row for row in rows if len(row) > width])
    row[width] = rng.choice(_WORDS)
    out = io.StringIO()
    csv.writer(out, delimiter=mark, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def onnx_swapped(rng: Random, data: bytes, other: bytes) -> bytes:
    """An ONNX model with one field set to another value of its type."""
    message = onnx.ModelProto.FromString(data)
    return _swapped(rng, message, data)


def tensorflow_swapped(rng: Random, data: bytes, other: bytes) -> bytes:
    """A message of TensorFlow's with one field set to another value of its type."""
    most: tuple[int, Any] = 0, None
    for kind in ("GraphDef", "SavedModel", "MetaGraphDef", "RunMetadata", "CostGraphDef"):
        try:
            message = MESSAGES[kind].FromString(data)
        except Exception:  # protobuf's own error, or no such message
            continue
        most = max(most, (sum(len(found) for found in _fields(message).values()), message), key=lambda pair: pair[0])
    return data if most[1] is None else _swapped(rng, most[1], data)


def _mark(rng: Random, root: Any) -> None:
    places: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
    _collect(root, (), places)
    box, key = rng.choice(places[rng.choice([*places])])
    box[key] = _MARK


def _collect(box: Any, kind: tuple[Any, ...], places: dict[tuple[Any, ...], list[tuple[Any, Any]]]) -> None:
    """The places in a container, by their path without numbers."""
    for key in box if isinstance(box, dict) else range(len(box)):
        own = (*kind, key if isinstance(box, dict) and len(kind) < 12 else "#")
        places.setdefault(own, []).append((box, key))
        if isinstance(box[key], (dict, list)):
            _collect(box[key], own, places)


def _swapped(rng: Random, message: Any, data: bytes) -> bytes:
    places = _fields(message)
    if not places:
        return data
    owner, field = rng.choice(places[rng.choice([*places])])
    old = getattr(owner, field.name)
    if field.type == FieldDescriptor.TYPE_BYTES:
        value: Any = rng.choice(BYTES)
    elif field.enum_type is not None:
        value = rng.choice([known.number for known in field.enum_type.values])
    else:
        value = _VALUES[field.cpp_type](rng)
    if not field.is_repeated:
        setattr(owner, field.name, value)
    elif rng.random() < 0.5:
        old[rng.randrange(len(old))] = value
    else:
        old.extend(rng.choice(([value], [*old], [value] * 40)))
    return bytes(message.SerializeToString())


def _fields(message: Any) -> dict[tuple[str, ...], list[tuple[Any, Any]]]:
    """The scalar fields that are set, with the messages that they are of, by their path."""
    places: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
    left, seen = [((), message)], 0
    while left and seen < _MOST:
        kind, owner = left.pop()
        for field, value in owner.ListFields():
            own, seen = (*kind, field.name)[-6:], seen + 1
            if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
                places.setdefault(own, []).append((owner, field))
            elif hasattr(value, "items"):
                left += [(own, inside) for inside in value.values() if hasattr(inside, "ListFields")]
            else:
                left += [(own, inside) for inside in (value if field.is_repeated else (value,))]
    return places


def _whole(bits: int, signed: bool) -> Callable[[Random], int]:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    values = {0, 1, 2, 3, 7, 16, 99, 1 << 20, 1 << 30, most // 2, most, most - 1, least, least + 1}
    values |= {-1, -2} if signed else set()
    return lambda rng: rng.choice(sorted(values))


def _real(rng: Random) -> float:
    return rng.choice((0.0, -0.0, -1.0, 0.5, 1e-38, 1e38, float("nan"), float("inf"), float("-inf")))


def _text(rng: Random) -> str:
    return rng.choice((*_WORDS, *(text for text in TEXTS if len(text) < 1_000)))


_VALUES: dict[int, Callable[[Random], Any]] = {
    FieldDescriptor.CPPTYPE_INT32: _whole(32, True),
    FieldDescriptor.CPPTYPE_INT64: _whole(64, True),
    FieldDescriptor.CPPTYPE_UINT32: _whole(32, False),
    FieldDescriptor.CPPTYPE_UINT64: _whole(64, False),
    FieldDescriptor.CPPTYPE_DOUBLE: _real,
    FieldDescriptor.CPPTYPE_FLOAT: _real,
    FieldDescriptor.CPPTYPE_BOOL: lambda rng: rng.random() < 0.5,
    FieldDescriptor.CPPTYPE_STRING: _text,
}
