"""Damage that knows no format: bits, bytes and pieces."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fuzzing.tokens import BYTES, COUNTS, RAW, TEXTS

MOST = 4 << 20
"""Bytes of a case, so that what is slow is the reader."""


def damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """`data` after one or a few changes; `other` is another file to take pieces from."""
    for _ in range(rng.choice(COUNTS)):
        data = rng.choice(_CHANGES)(rng, data, other)[:MOST]
    return data


def words_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """A table of words with one or a few of them changed: for others of it, or for what nobody expects."""
    lines = [line.split(" ") for line in data.decode("utf-8").replace("\t", " ").split("\n")]
    known = [*data.decode("utf-8").split(), *other.decode("utf-8").split()]
    for _ in range(rng.choice(COUNTS)):
        line = rng.choice(lines)
        place = rng.randrange(len(line))
        words = [rng.choice(known)] if rng.random() < 0.6 else [rng.choice((*TEXTS, *RAW, "NV" + rng.choice(RAW)))]
        line[place : place + rng.randrange(3)] = words * rng.choice((1, 1, 1, 2, 300))
    return "\n".join(" ".join(line) for line in lines).encode("utf-8", "surrogatepass")


def _span(rng: Random, data: bytes, longest: int = 64) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randrange(longest))


def _flip(rng: Random, data: bytes, _: bytes) -> bytes:
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _set(rng: Random, data: bytes, _: bytes) -> bytes:
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + data[place + 1 :]


def _insert(rng: Random, data: bytes, _: bytes) -> bytes:
    start, end = _span(rng, data, rng.choice((1, 16)))
    return data[:start] + _token(rng) + data[end:]


def _token(rng: Random) -> bytes:
    kind = rng.randrange(3)
    return rng.choice(BYTES) if kind == 0 else rng.choice(TEXTS if kind == 1 else RAW).encode()


def _delete(rng: Random, data: bytes, _: bytes) -> bytes:
    start, end = _span(rng, data, rng.choice((8, 256, len(data) + 1)))
    return data[:start] + data[end:]


def _repeat(rng: Random, data: bytes, _: bytes) -> bytes:
    start, end = _span(rng, data, rng.choice((16, 256)))
    return data[:end] + data[start:end] * rng.choice((1, 2, 100, 3_000)) + data[end:]


def _truncate(rng: Random, data: bytes, _: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _move(rng: Random, data: bytes, _: bytes) -> bytes:
    start, end = _span(rng, data, 256)
    rest = data[:start] + data[end:]
    place = rng.randrange(len(rest) + 1)
    return rest[:place] + data[start:end] + rest[place:]


def _splice(rng: Random, data: bytes, other: bytes) -> bytes:
    start, end = _span(rng, other, 512)
    place, behind = _span(rng, data, 512)
    return data[:place] + (other[start:end] if rng.random() < 0.8 else other[start:]) + data[behind:]


def _recode(rng: Random, data: bytes, _: bytes) -> bytes:
    """As another program would have saved it: other ends of lines, a mark of byte order, another encoding."""
    kind = rng.randrange(4)
    if kind == 0:
        return data.replace(b"\n", b"\r\n")
    if kind == 1:
        return b"\xef\xbb\xbf" + data
    return data.decode("latin-1").encode(("utf-16", "utf-32")[kind - 2])


_CHANGES: tuple[Callable[[Random, bytes, bytes], bytes], ...] = (
    _flip, _flip, _set, _set, _insert, _insert, _delete, _repeat, _truncate, _move, _splice, _splice, _recode,
)  # fmt: skip
