"""Columns and text as a page holds them: little-endian numbers in base64, and text that is safe to show."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise._util.text import visible
from placewise.model.tables import Interned

LONGEST_NAME = 400
"""Characters of a text that a page shows; longer ones are cut in the middle."""
LONGEST_SENTENCE = 2_000
"""The same for a sentence with several names."""

_TYPES = ("f8", "f4", "i4", "u2", "u1")


def pack_column(column: npt.ArrayLike, kind: str) -> dict[str, str]:
    """A column as ``{"i4": "<base64>"}``; `kind` is f8, f4, i4, u2 or u1."""
    if kind not in _TYPES:
        raise ValueError(f"unknown column type {kind!r}")
    array = np.ascontiguousarray(np.asarray(column), np.dtype(f"<{kind}"))
    return {kind: base64.b64encode(array.tobytes()).decode("ascii")}


def pack_integers(column: npt.ArrayLike) -> dict[str, str]:
    """A column of integers in the smallest type that holds them."""
    array = np.asarray(column)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    return pack_column(array, "i4" if low < 0 or high >= 1 << 16 else "u2" if high >= 1 << 8 else "u1")


def pack_words(column: Interned[str]) -> dict[str, Any]:
    """A column of few distinct words: ``{"values": [...], "codes": column}``."""
    return {"values": [clean_text(word) for word in column.values], "codes": pack_integers(column.codes)}


def clean_text(text: str, longest: int = LONGEST_NAME) -> str:
    """A text on one line, of bounded length, with control characters escaped."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} … {text[-half:]}"
    return visible(text)
