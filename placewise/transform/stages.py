"""The order of a placement's devices as stages of a pipeline."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.model.graph import Graph


def stage_order(graph: Graph, device: Ints, *, forward: bool = False) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Order the devices of a placement [n_ops] so that each follows the devices that feed it; return the order and
    None. With `forward`, only edges between forward ops count.

    If devices feed each other in a cycle, they are sorted by the mean position of their ops; the second result is then
    the first edge (producer op, consumer op) that leads from a later device to an earlier one.
    """
    maker = graph.tensors.producer[graph.edges.value]
    real = maker >= 0
    if forward:
        real &= ~graph.ops.backward[maker] & ~graph.ops.backward[graph.edges.consumer]
    source, target = maker[real], graph.edges.consumer[real]
    between = device[source] != device[target]
    source, target = source[between], target[between]
    used = np.unique(device).tolist()
    mean = {d: float(np.flatnonzero(device == d).mean()) for d in used}
    before: dict[int, set[int]] = {d: set() for d in used}
    for a, b in zip(device[source].tolist(), device[target].tolist(), strict=True):
        before[b].add(a)
    order: list[int] = []
    while len(order) < len(used):
        free = [d for d in used if d not in order and before[d] <= set(order)]
        if not free:
            break
        order.append(min(free, key=mean.__getitem__))
    if len(order) == len(used):
        return tuple(order), None
    order = sorted(used, key=mean.__getitem__)
    place = {d: number for number, d in enumerate(order)}
    for op, reader in zip(source.tolist(), target.tolist(), strict=True):
        if place[int(device[op])] > place[int(device[reader])]:
            return tuple(order), (op, reader)
    raise AssertionError("a cycle of devices has a backward edge")
