"""Timelines from the hop logs of the latency kernels."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, sealed
from placewise.model.result import Timeline


def logged_timeline(start: Floats, finish: Floats, hops: Floats) -> Timeline:
    """A read-only Timeline from op times [n_ops] and a log [n_hops, 5]: tensor, source, target, sent, arrived."""
    tensor, source, target = hops[:, :3].T.astype(np.int32)
    columns = (start, finish, tensor, source, target, hops[:, 3].copy(), hops[:, 4].copy())
    return Timeline(*map(sealed, columns))
