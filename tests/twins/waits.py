"""What each device waits for while it is idle, gap by gap."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline


def longest_waits(problem: Problem, placement: Placement, timeline: Timeline, piece: Ints | None) -> list[str]:
    """For each device the device whose tensors it waits for longest, or "" if it never waits.

    Each idle gap before an op is charged to the maker of its last input to arrive; where an op begins a piece
    (`piece` [n_ops] numbers them on each device), to the maker of the piece's last input to be made.
    """
    device, names = placement.device.tolist(), problem.cluster.names
    place = problem.cluster.location[placement.device].tolist()
    together = _pieces(problem, device, piece)
    arrival = {} if piece is not None else _arrivals(timeline)
    waited: list[dict[str, float]] = [defaultdict(float) for _ in problem.cluster]
    for op, gap in _gaps(placement, timeline, problem.n_devices):
        latest, culprit = -1.0, ""
        for tensor, maker in _inputs(problem, together[op]):
            made = float(timeline.finish[maker]) if maker >= 0 else 0.0
            moment = arrival.get((tensor, place[op]), made)
            if moment > latest:
                latest, culprit = moment, names[device[maker]] if maker >= 0 else HOST
        if culprit:
            waited[device[op]][culprit] += gap
    return [max(by_maker, key=lambda maker: by_maker[maker]) if by_maker else "" for by_maker in waited]


def _pieces(problem: Problem, device: list[int], piece: Ints | None) -> list[list[int]]:
    """For each op the ops of its piece; an op that is handed over alone is its own."""
    hosts_alone = problem.objective.execution == "subgraph"
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    found = []
    for op, number in enumerate(range(len(device)) if piece is None else piece.tolist()):
        alone = piece is None or (hosts_alone and problem.cluster.is_host[device[op]])
        group = [] if alone else members[device[op], number]
        group.append(op)
        found.append(group)
    return found


def _inputs(problem: Problem, ops: list[int]) -> list[tuple[int, int]]:
    """(tensor, maker) for the tensors that ops read and that none of them makes."""
    inside, graph = set(ops), problem.graph
    tensors = [tensor for op in ops for tensor in graph.inputs_of(op).tolist()]
    makers = graph.tensors.producer[tensors].tolist()
    return [(tensor, maker) for tensor, maker in zip(tensors, makers, strict=True) if maker not in inside]


def _arrivals(timeline: Timeline) -> dict[tuple[int, int], float]:
    columns = timeline.tensor.tolist(), timeline.target.tolist(), timeline.arrived.tolist()
    return {(tensor, target): moment for tensor, target, moment in zip(*columns, strict=True)}


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
