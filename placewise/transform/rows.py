"""Helpers of several transforms: rows of the op table, and unique names."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewise.model.columns import Longs, Ragged
from placewise.model.tables import Interned, Ops


def take_ops(ops: Ops, rows: Longs, origin: Ragged) -> Ops:
    """Take the ops `rows`, with new origins [len(rows)] and without unused vocabulary."""
    return Ops(
        name=tuple(ops.name[row] for row in rows.tolist()),
        kind=_take_interned(ops.kind, rows),
        scope=_take_interned(ops.scope, rows),
        attributes=_take_interned(ops.attributes, rows),
        dtype=ops.dtype[rows],
        backward=ops.backward[rows],
        group=ops.group[rows],
        state_bytes=ops.state_bytes[rows],
        origin=origin,
        phase=ops.phase[rows],
    )


def _take_interned(column: Interned[Any], rows: Longs) -> Interned[Any]:
    used, codes = np.unique(column.codes[rows], return_inverse=True)
    return Interned(tuple(column.values[code] for code in used.tolist()), codes.astype(np.int32))


def make_unique(name: str, taken: set[str]) -> str:
    """Return `name` with as many apostrophes as make it unique, and add it to `taken`."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name
