"""The device for whose tensors each device waits while it is idle."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from placewise.model.cluster import HOST
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline


def longest_waits(problem: Problem, placement: Placement, timeline: Timeline, piece: Ints | None) -> list[str]:
    """For each device the device whose tensors it waits for longest, or "" if it never waits.

    Each idle gap before an op is charged to the maker of its last input to arrive; where an op begins a piece
    (`piece` [n_ops] numbers them on each device), to the maker of the piece's last input to be made. Of several
    such inputs the first one counts.
    """
    ops, gaps = _gaps(placement, timeline)
    group, count = _groups(problem, placement, piece)
    latest = _find_latest_input(problem, placement, timeline, group, count, group[ops], made=piece is not None)[
        group[ops]
    ]
    ops, gaps, latest = ops[latest >= 0], gaps[latest >= 0], latest[latest >= 0]
    maker = problem.graph.tensors.producer[problem.graph.edges.value[latest]]
    names = (*problem.cluster.names, HOST)
    culprit = np.where(maker >= 0, placement.device[maker], len(names) - 1)
    waited: list[dict[str, float]] = [defaultdict(float) for _ in problem.cluster]
    pairs, first, which = np.unique(
        placement.device[ops].astype(np.int64) * len(names) + culprit, return_index=True, return_inverse=True
    )
    total = np.bincount(which, weights=gaps, minlength=len(pairs))
    for row in np.argsort(first).tolist():
        d, by = divmod(int(pairs[row]), len(names))
        waited[d][names[by]] = float(total[row])
    return [max(by_maker, key=lambda maker: by_maker[maker]) if by_maker else "" for by_maker in waited]


def _gaps(placement: Placement, timeline: Timeline) -> tuple[Longs, Floats]:
    """The ops before which their device was idle, device by device as they start, and for how many seconds."""
    order = np.argsort(timeline.start, kind="stable")
    order = order[np.argsort(placement.device[order], kind="stable")]
    ends = np.flatnonzero(np.diff(placement.device[order], append=-1))
    gap = np.zeros(len(order))
    first = 0
    for last in (ends + 1).tolist():
        ops = order[first:last]
        busy_until = np.concatenate(([0.0], np.maximum.accumulate(timeline.finish[ops])[:-1]))
        gap[first:last] = timeline.start[ops] - busy_until
        first = last
    return order[gap > 0], gap[gap > 0]


def _groups(problem: Problem, placement: Placement, piece: Ints | None) -> tuple[Longs, int]:
    """The group [n_ops] of ops that run without interruption, a piece or a single op, and the number of groups."""
    n = problem.n_ops
    if piece is None or not n:
        return np.arange(n), n
    lowest = int(piece.min())
    key = placement.device * (int(piece.max()) - lowest + np.int64(1)) + (piece - lowest)
    if problem.objective.execution == "subgraph":
        alone = problem.cluster.is_host[placement.device]
        key = np.where(alone, key.max() + 1 + np.arange(n), key)
    groups, group = np.unique(key, return_inverse=True)
    return group, len(groups)


def _find_latest_input(
    problem: Problem, placement: Placement, timeline: Timeline, group: Longs, count: int, targets: Longs, *, made: bool
) -> Longs:
    """The edge [count] whose tensor comes last to each of the groups in `targets`, the first such; −1 for none.

    A tensor comes when it is `made`, else when it arrives.
    """
    edges, producer = problem.graph.edges, problem.graph.tensors.producer
    is_target = np.zeros(count, np.bool_)
    is_target[targets] = True
    rows = np.flatnonzero(is_target[group[edges.consumer]])
    maker, reader = producer[edges.value[rows]], group[edges.consumer[rows]]
    outside = (maker < 0) | (group[maker] != reader)
    rows, maker, reader = rows[outside], maker[outside], reader[outside]
    moment = np.where(maker >= 0, timeline.finish[maker], 0.0)
    if not made:
        place = problem.cluster.location[placement.device[edges.consumer[rows]]]
        moment = _arrived(timeline, edges.value[rows], place, problem.n_devices + 1, moment)
    latest = np.full(count, -np.inf)
    np.maximum.at(latest, reader, moment)
    last = moment == latest[reader]
    first_row = np.full(count, len(edges))
    np.minimum.at(first_row, reader[last], rows[last])
    return np.where(first_row < len(edges), first_row, -1)


def _arrived(timeline: Timeline, tensor: Ints, place: Ints, places: int, otherwise: Floats) -> Floats:
    """The moment at which each tensor arrived at a location; `otherwise` where it was never sent there."""
    if not len(timeline.tensor):
        return otherwise
    sent = timeline.tensor.astype(np.int64) * places + timeline.target
    order = np.argsort(sent, kind="stable")
    keys = tensor.astype(np.int64) * places + place
    row = order[np.maximum(np.searchsorted(sent[order], keys, side="right") - 1, 0)]
    return np.where(sent[row] == keys, timeline.arrived[row], otherwise)
