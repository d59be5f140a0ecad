"""The order of a placement's devices as stages of a pipeline."""

from __future__ import annotations

import numpy as np

from placewise.errors import RunError
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.topology import sort_topologically


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
    by_mean = sorted(used, key=mean.__getitem__)
    rank = {d: number for number, d in enumerate(by_mean)}
    order = [by_mean[k] for k in sort_topologically([[rank[a] for a in before[d]] for d in by_mean], range(len(used)))]
    if len(order) == len(used):
        return tuple(order), None
    for op, reader in zip(source.tolist(), target.tolist(), strict=True):
        if rank[int(device[op])] > rank[int(device[reader])]:
            return tuple(by_mean), (op, reader)
    raise AssertionError("a cycle of devices has a backward edge")


def stages_in_line(problem: Problem, placement: Placement) -> tuple[int, ...]:
    """The devices of a placement in the order of their stages. Raises RunError, naming an edge, if there is a cycle."""
    order, back = stage_order(problem.graph, placement.device)
    if back is None:
        return order
    (source, target), names = back, problem.graph.ops.name
    where = [problem.cluster.names[int(placement.device[op])] for op in (source, target)]
    raise RunError(
        f"the devices of this placement are no line of stages: {names[source]!r} on {where[0]} feeds {names[target]!r} "
        f"on {where[1]}, which comes before it; place with --contiguous, or run it with --runtime torch"
    )
