"""What a reader says of shapes that stay unknown."""

from __future__ import annotations

import numpy as np

from placewise.model.graph import Graph


def unknown_shapes(graph: Graph) -> list[str]:
    """Ops stand in topological order, so the first op with an unknown result is where shapes become unknown."""
    unknown = np.flatnonzero(graph.tensors.bytes < 0)
    if not len(unknown):
        return []
    first, op = graph.tensors.name[unknown[0]], int(graph.tensors.producer[unknown[0]])
    place = f"{first!r}, made by {graph.ops.kind[op]}" if op >= 0 else repr(first)
    verb = "shape" if len(unknown) == 1 else "shapes"
    stays = "stays" if len(unknown) == 1 else "stay"
    return [f"the {verb} of {len(unknown)} of {graph.n_tensors} tensors {stays} unknown (first: {place})"]
