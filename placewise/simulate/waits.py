"""What each device waits for while it is idle."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline


def longest_waits(problem: Problem, placement: Placement, timeline: Timeline) -> list[str]:
    """For each device the device whose tensors it waits for longest, or "" if it never waits.

    Each idle gap before an op is charged to the maker of the op's last input to arrive.
    """
    graph, location = problem.graph, problem.cluster.location
    arrival = {
        (tensor, target): moment
        for tensor, target, moment in zip(
            timeline.tensor.tolist(), timeline.target.tolist(), timeline.arrived.tolist(), strict=True
        )
    }
    waited: list[dict[str, float]] = [defaultdict(float) for _ in problem.cluster]
    for op, gap in _gaps(placement, timeline, problem.n_devices):
        d = int(placement.device[op])
        latest, culprit = -1.0, ""
        for tensor in graph.inputs_of(op).tolist():
            maker = int(graph.tensors.producer[tensor])
            made = float(timeline.finish[maker]) if maker >= 0 else 0.0
            moment = arrival.get((tensor, int(location[d])), made)
            if moment > latest:
                latest, culprit = moment, problem.cluster.names[placement.device[maker]] if maker >= 0 else HOST
        if culprit:
            waited[d][culprit] += gap
    return [max(by_maker, key=lambda maker: by_maker[maker]) if by_maker else "" for by_maker in waited]


def _gaps(placement: Placement, timeline: Timeline, n_devices: int) -> list[tuple[int, float]]:
    """(op, seconds) for every op before which its device was idle."""
    found = []
    for d in range(n_devices):
        ops = np.flatnonzero(placement.device == d)
        ops = ops[np.lexsort((ops, timeline.start[ops]))]
        if len(ops):
            busy_until = np.concatenate(([0.0], np.maximum.accumulate(timeline.finish[ops])[:-1]))
            gap = timeline.start[ops] - busy_until
            found += [(int(op), float(g)) for op, g in zip(ops, gap, strict=True) if g > 0]
    return found
