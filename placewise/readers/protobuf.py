"""Protobuf's wire format: iterate over the fields of a message, and strip long fields, without parsing it.

A message is a sequence of fields, each a varint key (number · 8 + wire type) and a payload
(protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
DROP = object()
FieldPaths = Mapping[int, object]
"""Field number → the paths inside that submessage, or `DROP`."""


class WireField(NamedTuple):
    """A field: number, wire type, and the offsets of its key, its payload and its end."""

    number: int
    wire: int
    start: int
    payload: int
    stop: int


def strip_fields(data: memoryview, paths: FieldPaths, *, longest: int) -> bytes | memoryview:
    """The message in `data` without those fields at `paths` that take more than `longest` bytes.

    Malformed data is returned unchanged: the parser that reads it next reports the error.
    """
    try:
        return b"".join(_copy_without(data, paths, longest))
    except (ValueError, IndexError):
        return data


def fields_of(data: memoryview) -> Iterator[WireField]:
    """Iterate over the fields of a message. Raises ValueError or IndexError if it is malformed."""
    position, end = 0, len(data)
    while position < end:
        start = position
        key, position = _read_varint(data, position)
        wire = key & 7
        length = 8 if wire == EIGHT_BYTES else 4 if wire == FOUR_BYTES else 0
        payload = position
        if wire == LENGTH:
            length, payload = _read_varint(data, position)
        elif wire == VARINT:
            length = _read_varint(data, position)[1] - position
        position = payload + length
        if position > end or wire not in (VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES):
            raise ValueError("not a protobuf message")
        yield WireField(key >> 3, wire, start, payload, position)


def _copy_without(data: memoryview, paths: FieldPaths, longest: int) -> Iterator[bytes | memoryview]:
    """The remaining chunks of a message; consecutive unchanged fields form one chunk."""
    copied = 0
    for field in fields_of(data):
        inner = paths.get(field.number)
        if inner is None or field.wire != LENGTH or field.stop - field.payload <= longest:
            continue
        yield data[copied : field.start]
        copied = field.stop
        if isinstance(inner, Mapping):
            message = b"".join(_copy_without(data[field.payload : field.stop], inner, longest))
            yield from (_encode_varint(field.number << 3 | LENGTH), _encode_varint(len(message)), message)
    yield data[copied:]


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + shift // 7 + 1
    raise ValueError("not a varint")


def _encode_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
