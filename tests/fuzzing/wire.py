"""Damage to protobuf messages: fields of the wire format, at any depth, without knowing what they mean."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fuzzing.tokens import BYTES, COUNTS, text

Field = tuple[int, int, int | bytes]
"""Number, wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes), value."""
_VARINTS = (0, 1, 2, 3, 7, 100, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**18)


def wire_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """A message with one or a few of its fields changed."""
    for _ in range(rng.choice(COUNTS)):
        data = _inside(rng, data, other, 0)
    return data


def _inside(rng: Random, data: bytes, other: bytes, depth: int) -> bytes:
    """The message with a change in it, or in a message in it."""
    fields = parsed(data)
    if not fields:
        return data
    nested = [row for row, (_, wire, value) in enumerate(fields) if wire == 2 and len(value) > 1]
    if nested and rng.random() < 0.85 and depth < 12:
        row = rng.choice(nested)
        number, wire, value = fields[row]
        if parsed(value):
            fields[row] = number, wire, _inside(rng, value, other, depth + 1)
            return encode_fields(fields)
    rng.choice(_CHANGES)(rng, fields, other)
    return encode_fields(fields)


def parsed(data: bytes) -> list[Field] | None:
    """The fields of a message; None where it is none."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if at < 0 or not number:
            return None
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            if at < 0 or at + size > len(data):
                return None
            value, at = data[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            return None
        if at < 0 or at > len(data):
            return None
        fields.append((number, wire, value))
    return fields


def encode_fields(fields: list[Field]) -> bytes:
    parts = []
    for number, wire, value in fields:
        parts.append(varint(number << 3 | wire))
        if wire == 2:
            parts.append(varint(len(value)))
        parts.append(value if isinstance(value, bytes) else varint(value))
    return b"".join(parts)


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, -1
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    return 0, -1


def _value(rng: Random, fields: list[Field], other: bytes) -> None:
    row = rng.randrange(len(fields))
    number, wire, value = fields[row]
    if wire == 0:
        fields[row] = number, wire, rng.choice(_VARINTS)
    elif wire == 2:
        new = rng.choice((text(rng).encode(), rng.choice(BYTES), value * 2, value[: len(value) // 2]))
        fields[row] = number, wire, new
    else:
        fields[row] = number, wire, rng.randbytes(len(value))


def _remove(rng: Random, fields: list[Field], _: bytes) -> None:
    del fields[rng.randrange(len(fields))]


def _again(rng: Random, fields: list[Field], _: bytes) -> None:
    field = rng.choice(fields)
    many = rng.choice((1, 2, 20, 400)) if not isinstance(field[2], bytes) or len(field[2]) < 2_000 else 1
    fields += [field] * many


def _shuffle(rng: Random, fields: list[Field], _: bytes) -> None:
    rng.shuffle(fields)


def _renumber(rng: Random, fields: list[Field], _: bytes) -> None:
    row = rng.randrange(len(fields))
    fields[row] = rng.choice((rng.choice(fields)[0], rng.randint(1, 30), 2**28)), *fields[row][1:]


def _retype(rng: Random, fields: list[Field], _: bytes) -> None:
    row = rng.randrange(len(fields))
    number, _, value = fields[row]
    if isinstance(value, bytes):
        fields[row] = number, 0, rng.choice(_VARINTS)
    else:
        fields[row] = number, 2, rng.choice((varint(value), text(rng).encode(), varint(value) * 100))


def _graft(rng: Random, fields: list[Field], other: bytes) -> None:
    """A field of another message, or the value of another field."""
    found = fields
    while rng.random() < 0.7:
        message = rng.choice((other, *(value for _, wire, value in found if wire == 2)))
        found = parsed(message) or found
    row = rng.randrange(len(fields))
    number, wire, value = rng.choice(found)
    fields[row] = rng.choice(((number, wire, value), (fields[row][0], wire, value)))


def _nest(rng: Random, fields: list[Field], _: bytes) -> None:
    """A message in itself, again and again."""
    nested = [row for row, (_, wire, value) in enumerate(fields) if wire == 2 and len(value) < 5_000]
    if not nested:
        return
    row = rng.choice(nested)
    number, wire, value = fields[row]
    inner = rng.choice((number, 1, 5, 6))
    for _depth in range(rng.choice((3, 30, 120, 2_000))):
        value = encode_fields([(inner, 2, value)])
    fields[row] = number, wire, value


def _lie(rng: Random, fields: list[Field], _: bytes) -> None:
    """A length that is longer than what follows: as the last field, whose bytes are never there."""
    number = rng.choice(fields)[0]
    fields.append((number, 2, b""))
    cut = varint(number << 3 | 2) + varint(rng.choice((5, 2**31, 2**40, 2**63)))
    fields[:] = [*fields[:-1], (number, 2, cut)]


_CHANGES: tuple[Callable[[Random, list[Field], bytes], None], ...] = (
    _value, _value, _value, _value, _remove, _again, _shuffle, _renumber, _retype, _graft, _graft, _nest, _lie,
)  # fmt: skip
