"""Damage to GGUF headers: keys, values and the table of tensors, in a file that keeps its form."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from fuzzing.raw import damaged
from fuzzing.tokens import COUNTS, TEXTS

_STRING, _ARRAY, _BOOL = 8, 9, 7
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, _BOOL: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each kind of number."""
_NUMBERS = (
    0, 1, 2, 3, 7, 31, 33, 63, 128, 255, 4097, 2**16, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**50, 2**62,
    2**63 - 1, 2**63, 2**64 - 256, 2**64 - 1,
)  # fmt: skip


@dataclass
class _Header:
    """Version, counts as they are claimed, pairs of key and value, and tensors: name, sizes, type and offset."""

    version: int
    more_tensors: int
    more_keys: int
    pairs: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, list[int], int, int]]


def gguf_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """A file with one or a few parts of its header changed, weights behind it; damaged bytes for what is no file."""
    try:
        header, end = _parse(data)
    except struct.error:
        return damaged(rng, data, other)
    for _ in range(rng.choice(COUNTS)):
        rng.choice(_CHANGES)(rng, header)
    weights = data[end:]
    return _written(header) + (weights if rng.random() < 0.9 else weights[: rng.randrange(len(weights) + 1)])


def _parse(data: bytes) -> tuple[_Header, int]:
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", data, 4)
    at, pairs, tensors = 24, [], []
    for _ in range(n_keys):
        key, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        end = _end_of(data, at + 4, kind)
        pairs.append((key, kind, data[at + 4 : end]))
        at = end
    for _ in range(n_tensors):
        name, at = _text(data, at)
        (count,) = struct.unpack_from("<I", data, at)
        *sizes, kind, offset = struct.unpack_from(f"<{count}QIQ", data, at + 4)
        tensors.append((name, sizes, kind, offset))
        at += 4 + 8 * count + 12
    return _Header(version, 0, 0, pairs, tensors), -(-at // 32) * 32


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + size], at + 8 + size


def _end_of(data: bytes, at: int, kind: int) -> int:
    """Where a value ends that begins at `at`."""
    if kind == _STRING:
        return _text(data, at)[1]
    if kind != _ARRAY:
        return at + _WIDTHS[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    for _ in range(count):
        at = _end_of(data, at, inner)
    return at


def _written(header: _Header) -> bytes:
    counts = len(header.tensors) + header.more_tensors, len(header.pairs) + header.more_keys
    parts = [b"GGUF", struct.pack("<I2Q", header.version, *(count % 2**64 for count in counts))]
    for key, kind, value in header.pairs:
        parts += [struct.pack("<Q", len(key)), key, struct.pack("<I", kind), value]
    for name, sizes, kind, offset in header.tensors:
        parts += [struct.pack("<Q", len(name)), name]
        parts.append(struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset))
    text = b"".join(parts)
    return text + bytes(-len(text) % 32)


def _number(rng: Random) -> int:
    return rng.choice(_NUMBERS)


def _set_value(rng: Random, header: _Header) -> None:
    """Another number, or one number for many."""
    place = rng.randrange(len(header.pairs))
    key, kind, value = header.pairs[place]
    if kind in _WIDTHS:
        value = (_number(rng) % 256 ** _WIDTHS[kind]).to_bytes(_WIDTHS[kind], "little")
    elif kind == _ARRAY and value[:4] != struct.pack("<I", _STRING):
        value = value[:12] + b"".join(struct.pack("<I", _number(rng) % 2**32) for _ in range(len(value[12:]) // 4))
    header.pairs[place] = key, kind, value


def _set_kind(rng: Random, header: _Header) -> None:
    """A value of another kind: a wider number, a text, an array of so many, an array in arrays."""
    key, *_ = header.pairs[place := rng.randrange(len(header.pairs))]
    kind = rng.choice((6, _BOOL, _STRING, _ARRAY, _ARRAY, 10, 11, 12, 13, 2**31))
    value = _number(rng).to_bytes(8, "little")[: _WIDTHS.get(kind, 8)]
    if kind == _STRING:
        word = rng.choice(TEXTS).encode()
        value = struct.pack("<Q", len(word)) + word
    elif kind == _ARRAY:
        count = rng.choice((0, 1, 2, 3, 5000, 2**31, 2**62))
        numbers = struct.pack("<I", rng.choice(_NUMBERS) % 2**32) * min(count, 5000)
        value = struct.pack("<IQ", 4, count) + numbers
        for _ in range(rng.choice((0, 0, 1, 3, 60))):
            value = struct.pack("<IQ", _ARRAY, 1) + value
    header.pairs[place] = key, kind, value


def _move_key(rng: Random, header: _Header) -> None:
    """A key that is gone, that occurs twice, or that has another's value."""
    one, other = (rng.randrange(len(header.pairs)) for _ in range(2))
    if rng.random() < 0.4 and len(header.pairs) > 1:
        del header.pairs[one]
    elif rng.random() < 0.5:
        header.pairs.insert(other, header.pairs[one])
    else:
        header.pairs[one] = header.pairs[one][0], *header.pairs[other][1:]


def _name_architecture(rng: Random, header: _Header) -> None:
    """All keys of another architecture, known or not."""
    names = (b"gemma4", b"gemma3n", b"gpt-oss", b"deepseek2", b"mamba", b"bert", b"t5", b"llama\n", b"\xff", b"")
    name = rng.choice(names)
    for place, (key, kind, value) in enumerate(header.pairs):
        if key == b"general.architecture":
            header.pairs[place] = key, kind, struct.pack("<Q", len(name)) + name
        elif not key.startswith((b"general.", b"tokenizer.")):
            header.pairs[place] = name + key[key.find(b".") :], kind, value


def _set_tensor(rng: Random, header: _Header) -> None:
    """A size, a number of dimensions, a type or an offset."""
    if not header.tensors:
        return
    name, sizes, kind, offset = header.tensors[place := rng.randrange(len(header.tensors))]
    chance = rng.random()
    if chance < 0.4 and sizes:
        sizes = list(sizes)
        sizes[rng.randrange(len(sizes))] = _number(rng)
    elif chance < 0.6:
        sizes = rng.choice(([], [32], sizes[::-1], [*sizes, 2], [*sizes, 0], [1] * 5, [2**32, 2**32]))
    elif chance < 0.8:
        kind = rng.choice((*range(45), 2**31, 2**32 - 1))
    else:
        offset = _number(rng)
    header.tensors[place] = name, sizes, kind, offset


def _name_tensor(rng: Random, header: _Header) -> None:
    """A tensor that is gone, that occurs twice, or that has another's name or one that nobody knows."""
    if not header.tensors:
        return
    one, other = (rng.randrange(len(header.tensors)) for _ in range(2))
    rest = header.tensors[one][1:]
    chance = rng.random()
    if chance < 0.35:
        del header.tensors[one]
    elif chance < 0.5:
        header.tensors.append(header.tensors[one])
    else:
        layer = rng.choice((b"0", b"1", b"2", b"99999999999", b"-1", b"x", b"\xd9\xa3", b"9" * 5000))
        part = rng.choice(
            (b"attn_qkv", b"attn_kv_a_mqa", b"attn_k_b", b"ssm_in", b"ffn_gate_up_exps", b"inp_gate", b"")
        )
        words = (header.tensors[other][0], rng.choice(TEXTS).encode(), b"blk." + layer + b"." + part + b".weight")
        header.tensors[one] = rng.choice(words), *rest


def _claim(rng: Random, header: _Header) -> None:
    """More or fewer keys or tensors than there are, or another version."""
    header.version = rng.choice((header.version, header.version, 2, _number(rng) % 2**32))
    header.more_tensors, header.more_keys = (rng.choice((0, 0, 1, -1, _number(rng))) for _ in range(2))


_CHANGES: tuple[Callable[[Random, _Header], None], ...] = (
    _set_value, _set_value, _set_value, _set_kind, _move_key, _name_architecture, _set_tensor, _set_tensor,
    _name_tensor, _claim,
)  # fmt: skip
