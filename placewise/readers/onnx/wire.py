"""Drops weight values from the bytes of an ONNX file, so that parsing it does not copy them.

Works on protobuf's wire format (protobuf.dev/programming-guides/encoding): a message is a row of fields, each a
varint key (number · 8 + wire type) and a payload. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_VALUES = frozenset({4, 5, 6, 7, 9, 10, 11})  # float, int32, string, int64, raw, double, uint64 data
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def without_values(data: memoryview, *, longest: int) -> bytes | memoryview:
    """The model in `data` without the values of initializers that take more than `longest` bytes.

    Data that is no well-formed message comes back as it is: the parser that reads it next has the better words.
    """
    try:
        return b"".join(_model(data, longest))
    except (ValueError, IndexError):
        return data


def _model(data: memoryview, longest: int) -> Iterator[bytes | memoryview]:
    for number, start, payload, stop in _fields(data):
        if number == _MODEL_GRAPH:
            yield from _framed(number, b"".join(_graph(data[payload:stop], longest)))
        else:
            yield data[start:stop]


def _graph(data: memoryview, longest: int) -> Iterator[bytes | memoryview]:
    for number, start, payload, stop in _fields(data):
        if number == _GRAPH_INITIALIZER and stop - payload > longest:
            yield from _framed(number, b"".join(_tensor(data[payload:stop], longest)))
        else:
            yield data[start:stop]


def _tensor(data: memoryview, longest: int) -> Iterator[memoryview]:
    for number, start, payload, stop in _fields(data):
        if number not in _TENSOR_VALUES or stop - payload <= longest:
            yield data[start:stop]


def _framed(number: int, message: bytes) -> tuple[bytes, bytes, bytes]:
    return bytes([number << 3 | _LENGTH]), _encoded(len(message)), message


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """(number, where the key starts, where the payload starts, where it stops) of each field."""
    position, end = 0, len(data)
    while position < end:
        start = position
        key, position = _varint(data, position)
        wire = key & 7
        length = 8 if wire == _EIGHT_BYTES else 4 if wire == _FOUR_BYTES else 0
        payload = position
        if wire == _LENGTH:
            length, payload = _varint(data, position)
        elif wire == _VARINT:
            length = _varint(data, position)[1] - position
        position = payload + length
        if position > end or wire not in (_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES):
            raise ValueError("not a protobuf message")
        yield key >> 3, start, payload, position


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position + shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + shift // 7 + 1
    raise ValueError("not a varint")


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
