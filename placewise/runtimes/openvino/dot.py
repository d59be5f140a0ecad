"""What HETERO writes down of its split: a drawing with the piece and the device of every op."""

from __future__ import annotations

import re
from collections.abc import Mapping

CODE = "pw"
"""Ops are called by this and their number while they are compiled: names of models may hold anything."""
_OP = re.compile(rf'label="{CODE}(\d+)\\n[^"]*?\\nsubgraph=(\d+)\\ndevice=([\w.]+)"')
_CODE = re.compile(rf"{CODE}(\d+)")


def code(op: int) -> str:
    """What op number `op` is called."""
    return f"{CODE}{op}"


def ops_in(names: str) -> tuple[int, ...]:
    """The ops that a kernel computes, of the names that it lists (with commas)."""
    return tuple(int(found[1]) for name in names.split(",") if (found := _CODE.fullmatch(name.strip())))


def read_split(text: str) -> Mapping[int, tuple[int, str]]:
    """By op, its (piece, device); constants are copied into every piece, and have none."""
    return {int(op): (int(piece), device) for op, piece, device in _OP.findall(text)}
