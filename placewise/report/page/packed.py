"""Columns and names as a page holds them: little-endian numbers in base64, and text that is safe to show."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise._util.text import visible
from placewise.model.tables import Interned

LONGEST_NAME = 400
"""Characters of a name that a page shows; of a longer one it shows both ends."""

_TYPES = ("f8", "f4", "i4", "u2", "u1")


def packed(column: npt.ArrayLike, kind: str) -> dict[str, str]:
    """A column as ``{"i4": "<base64>"}``; `kind` is f8, f4, i4, u2 or u1."""
    if kind not in _TYPES:
        raise ValueError(f"no column is of {kind!r}")
    array = np.ascontiguousarray(np.asarray(column), np.dtype(f"<{kind}"))
    return {kind: base64.b64encode(array.tobytes()).decode("ascii")}


def narrow(column: npt.ArrayLike) -> dict[str, str]:
    """A column of small whole numbers in the fewest bytes that hold them."""
    array = np.asarray(column)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    return packed(array, "i4" if low < 0 or high >= 1 << 16 else "u2" if high >= 1 << 8 else "u1")


def interned(column: Interned[str]) -> dict[str, Any]:
    """A column of few words: ``{"values": [...], "codes": column}``."""
    return {"values": [shown(word) for word in column.values], "codes": narrow(column.codes)}


def shown(name: str) -> str:
    """A name on one line, of bounded length, with control characters written out."""
    if len(name) > LONGEST_NAME:
        half = LONGEST_NAME // 2
        name = f"{name[:half]} … {name[-half:]}"
    return visible(name)
