"""Placements of folded graphs, carried back to all ops of the file by `origin`."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.model.graph import Graph


def project_back(raw: Graph, folded: Graph, device: Ints) -> Ints:
    """A placement of the folded ops as one [raw.n_ops] of the raw ops, by `origin` (by name where there is none).

    Raw ops that no folded op stands for follow their first consumer, else they go where op 0 goes.
    """
    by_origin = {node: int(device[op]) for op in range(folded.n_ops) for node in folded.ops.origin[op]}
    by_name = {name: int(device[op]) for op, name in enumerate(folded.ops.name)}
    default = int(device[0]) if len(device) else 0
    projected = np.full(raw.n_ops, -1, np.int32)
    for op in reversed(range(raw.n_ops)):
        own = next((by_origin[node] for node in raw.ops.origin[op] if node in by_origin), None)
        if own is None:
            own = by_name.get(raw.ops.name[op])
        if own is None:
            users = sorted(int(user) for tensor in raw.outputs_of(op) for user in raw.consumers_of(tensor))
            own = int(projected[users[0]]) if users else default
        projected[op] = own
    return projected
