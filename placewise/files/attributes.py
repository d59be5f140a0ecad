"""Attribute values to JSON and back without loss: lists are tuples in memory; values that JSON lacks are tagged.

``{"$float": "nan"}`` (or ``"inf"``, ``"-inf"``), ``{"$bytes": base64}``, and ``{"$object": {...}}`` around a
mapping with a key that starts with ``$``.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic_core import to_json

from placewise.errors import ModelFileError, OutputError
from placewise.files.records import parse_json

_MAX_DEPTH = 60


def attributes_to_json(values: tuple[Mapping[str, Any], ...]) -> bytes:
    """Attribute mappings as a JSON list. Raises OutputError for values that a file cannot hold."""
    try:
        return to_json([_encode(value) for value in values])
    except ValueError as error:
        raise OutputError(f"an attribute cannot be written ({error})", remedy="give plain values") from None


def attributes_from_json(data: bytes) -> tuple[dict[str, Any], ...]:
    """The attribute mappings in a JSON list. Raises ModelFileError."""
    document = parse_json(data)
    values = tuple(_decode(item) for item in document) if isinstance(document, list) else (None,)
    if not all(isinstance(value, dict) for value in values):
        raise ModelFileError("the op attributes are not a list of objects", remedy="make the file again")
    return values


def _encode(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise OutputError(f"an attribute is nested more than {_MAX_DEPTH} levels deep", remedy="flatten it")
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (np.bool_, np.number)):
        return _encode(value.item(), depth)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        return [_encode(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        encoded = {str(key): _encode(item, depth + 1) for key, item in value.items()}
        return {"$object": encoded} if any(key.startswith("$") for key in encoded) else encoded
    raise OutputError(
        f"an attribute is a {type(value).__name__}, which a file cannot hold", remedy="give numbers, strings and lists"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple([_decode(item) for item in value])
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    return _decode_tag(tag, value) if tag.startswith("$") else _decode_mapping(value)


def _decode_mapping(value: dict[str, Any]) -> dict[str, Any]:
    return {key: _decode(item) for key, item in value.items()}


def _decode_tag(tag: str, value: dict[str, Any]) -> Any:
    try:
        (inner,) = value.values()
        return _DECODERS[tag](inner)
    except (KeyError, ValueError, TypeError, AttributeError, binascii.Error):
        raise ModelFileError(f"an op attribute has a bad tag {tag[:20]!r}", remedy="make the file again") from None


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$object": _decode_mapping,
}
