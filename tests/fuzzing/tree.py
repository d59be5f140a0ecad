"""Damage to values in values: what JSON and TOML files hold."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable
from random import Random
from typing import Any

from fuzzing.tokens import COUNTS, RAW, number, text

_MARK = "\x00raw:"
_MARKED = re.compile(r'"\\u0000raw:([^"]*)"')
Path = tuple[Any, ...]


def json_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """A JSON text with one or a few of its values, keys or shapes changed."""
    value = _changed(rng, json.loads(data), json.loads(other))
    return _MARKED.sub(r"\1", _twice(rng, json.dumps(value))).encode("utf-8", "surrogatepass")


def toml_damaged(rng: Random, data: bytes, other: bytes) -> bytes:
    """The same of a TOML text."""
    table = _changed(rng, tomllib.loads(data.decode()), tomllib.loads(other.decode()))
    return _MARKED.sub(r"\1", toml_of(table)).encode("utf-8", "surrogatepass")


def toml_of(table: Any) -> str:
    """The values as a TOML text."""
    pairs = table.items() if isinstance(table, dict) else [("devices", table)]
    return "\n".join(f"{json.dumps(str(key))} = {_toml(value)}" for key, value in pairs if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value if item is not None) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value if isinstance(value, (str, int, bool)) else str(value))


def _twice(rng: Random, text: str) -> str:
    """Sometimes a key is there twice, which no dictionary of Python has."""
    keys = [found.start() for found in re.finditer(r'"[^"\\]{1,40}": ', text)] if rng.random() < 0.05 else []
    if not keys:
        return text
    place = rng.choice(keys)
    key = text[place : text.index(": ", place)]
    return f"{text[:place]}{key}: 1, {text[place:]}"


def _changed(rng: Random, value: Any, other: Any) -> Any:
    value = [copy.deepcopy(value)]
    for _ in range(rng.choice(COUNTS)):
        place = _place(rng, value)
        rng.choice(_CHANGES)(rng, place, rng.choice((value, [other])))
    return value[0]


def _place(rng: Random, root: list[Any]) -> tuple[Any, Any]:
    """A container and a key in it, at any depth."""
    box, key = root, 0
    while rng.random() < 0.8:
        inside = box[key]
        if not isinstance(inside, (dict, list)) or not inside:
            break
        box, key = inside, rng.choice([*inside]) if isinstance(inside, dict) else rng.randrange(len(inside))
    return box, key


def _scalar(rng: Random) -> Any:
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return _MARK + rng.choice(RAW)
    return text(rng) if kind < 5 else number(rng)


def _replace(rng: Random, place: tuple[Any, Any], _: Any) -> None:
    box, key = place
    box[key] = _scalar(rng)


def _retype(rng: Random, place: tuple[Any, Any], _: Any) -> None:
    box, key = place
    value = box[key]
    box[key] = rng.choice(([value], {"a": value}, str(value)[:1000], [], {}, [value] * 5, [[value], [value]]))


def _remove(rng: Random, place: tuple[Any, Any], _: Any) -> None:
    box, key = place
    if isinstance(box, dict) or len(box) > 1:
        del box[key]


def _graft(rng: Random, place: tuple[Any, Any], root: Any) -> None:
    box, key = place
    there, at = _place(rng, root)
    box[key] = copy.deepcopy(there[at])


def _swap(rng: Random, place: tuple[Any, Any], root: Any) -> None:
    box, key = place
    if isinstance(box, list) and len(box) > 1:
        rng.shuffle(box)
    elif isinstance(box, dict):
        at = rng.choice([*box])
        box[key], box[at] = box[at], box[key]


def _rename(rng: Random, place: tuple[Any, Any], root: Any) -> None:
    box, key = place
    if isinstance(box, dict):
        there, at = _place(rng, root)
        box[at if isinstance(there, dict) and rng.random() < 0.5 else text(rng)] = box.pop(key)


def _many(rng: Random, place: tuple[Any, Any], _: Any) -> None:
    box, key = place
    value = box[key]
    if isinstance(value, list):
        box[key] = value * rng.choice((2, 3, 300 if len(value) < 300 else 2))
    elif isinstance(value, str):
        box[key] = value * rng.choice((2, 1_000 if len(value) < 1_000 else 2))
    elif isinstance(value, (int, float)):
        box[key] = value * rng.choice((-1, 1_000, 2**62))


def _deepen(rng: Random, place: tuple[Any, Any], _: Any) -> None:
    box, key = place
    value = box[key]
    for _depth in range(rng.choice((5, 70, 150))):
        value = [value] if rng.random() < 0.5 else {rng.choice(("a", "nodes", "value", "$object", "base")): value}
    box[key] = value


def _nudge(rng: Random, place: tuple[Any, Any], _: Any) -> None:
    """A number that is nearly right."""
    box, key = place
    value = box[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        near = rng.choice((-1, 1, 0.5, -value, 2**31))
        box[key] = value + (near if isinstance(value, float) or abs(value) < 2**53 else int(near))
    elif isinstance(value, str) and value:
        cut = rng.randrange(len(value))
        box[key] = value[:cut] + rng.choice(("", "x", text(rng))) + value[cut + 1 :]


_CHANGES: tuple[Callable[[Random, tuple[Any, Any], Any], None], ...] = (
    _replace, _replace, _replace, _retype, _remove, _graft, _graft, _swap, _rename, _many, _deepen, _nudge, _nudge,
)  # fmt: skip
