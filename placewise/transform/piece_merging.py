"""Merge pieces of one device that gain nothing from separation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.model.columns import Floats
from placewise.model.problem import Problem
from placewise.model.topology import sort_topologically
from placewise.transform.pieces import Pieces, build_pieces

_ROUNDING = 1e-9
"""Relative tolerance within which a makespan counts as unchanged."""


def merge_pieces(
    problem: Problem, pieces: Pieces, *, hand_over: float = 0.0, overhead: float = 0.0, few: bool = False
) -> Pieces:
    """Merge neighbouring pieces of a device, pair by pair, as long as the predicted makespan does not grow.

    A device runs its pieces by number. A piece starts when its device is free and its inputs have arrived. It takes
    the op seconds of the problem's costs plus `overhead` seconds (and its device's own, per call). At its end it
    hands over its results, which takes `hand_over` seconds and the transfer. With `few`, all merges without a cycle
    happen, even if the makespan grows.
    """
    plan = _make_plan(problem, pieces, hand_over, overhead)
    while _join_one(plan, few=few):
        pass
    label = np.empty(len(pieces), np.int64)
    for kept, parts in plan.parts.items():
        label[parts] = kept
    order = np.argsort(pieces.piece, kind="stable")
    return build_pieces(problem.graph, pieces.device[pieces.piece], label[pieces.piece], order)


@dataclass(slots=True)
class _MergePlan:
    """Pieces by number as nodes of a graph, with their members, seconds, neighbours and times.

    `before` and `after` map pieces that exchange tensors to the seconds of the exchange; `previous` and `following`
    are the neighbours on the device (−1: none). `begin` is the longest path to the start of a piece, `rest` the
    longest path from there to the end of everything; `turn` is the position in a topological order.
    """

    parts: dict[int, list[int]]
    seconds: dict[int, float]
    saved: dict[int, float]
    before: dict[int, dict[int, float]]
    after: dict[int, dict[int, float]]
    previous: dict[int, int]
    following: dict[int, int]
    begin: dict[int, float]
    rest: dict[int, float]
    turn: dict[int, int]
    makespan: float = 0.0


def _make_plan(problem: Problem, pieces: Pieces, hand_over: float, overhead: float) -> _MergePlan:
    graph, count = problem.graph, len(pieces)
    device = pieces.device[pieces.piece]
    seconds = np.zeros(count)
    np.add.at(seconds, pieces.piece, problem.costs.op_seconds[np.arange(graph.n_ops), device])
    own = np.array([each.call_overhead for each in problem.cluster])[pieces.device] + overhead
    before: dict[int, dict[int, float]] = {piece: {} for piece in range(count)}
    after: dict[int, dict[int, float]] = {piece: {} for piece in range(count)}
    hop = _hop_seconds(problem)
    for piece in range(count):
        for tensor in pieces.reads[piece]:
            maker = int(graph.tensors.producer[tensor])
            if maker >= 0:
                other = int(pieces.piece[maker])
                here, there = int(pieces.device[other]), int(pieces.device[piece])
                wait = 0.0 if here == there else hand_over + float(hop[here][there][tensor])
                before[piece][other] = after[other][piece] = max(wait, before[piece].get(other, 0.0))
    previous, following, last = {}, dict.fromkeys(range(count), -1), dict[int, int]()
    for piece, where in enumerate(pieces.device.tolist()):
        previous[piece] = last.get(where, -1)
        if previous[piece] >= 0:
            following[previous[piece]] = piece
        last[where] = piece
    numbers = range(count)
    return _MergePlan(
        {piece: [piece] for piece in numbers}, dict(enumerate((seconds + own).tolist())), dict(enumerate(own.tolist())),
        before, after, previous, following, {}, {}, {},
    )  # fmt: skip


def _hop_seconds(problem: Problem) -> list[list[Floats]]:
    """Seconds [n_tensors] between all pairs of devices, through host memory if the cluster stages transfers."""
    cluster, table = problem.cluster, problem.costs.transfer_seconds
    host, place = len(cluster), cluster.location.tolist()

    def way(source: int, target: int) -> Floats:
        stops = (source, host, target) if cluster.transfers == "staged" else (source, target)
        total: Floats = np.sum([table[:, cluster.link_class[hop]] for hop in pairwise(stops)], axis=0)
        return total

    return [[way(source, target) for target in place] for source in place]


def _schedule(plan: _MergePlan) -> _MergePlan:
    nodes = sorted(plan.parts)
    place = {node: index for index, node in enumerate(nodes)}
    needs = [[place[other] for other in (*plan.before[node], *_existing(plan.previous[node]))] for node in nodes]
    order = [nodes[index] for index in sort_topologically(needs, nodes)]
    plan.turn = {node: turn for turn, node in enumerate(order)}
    for node in order:
        plan.begin[node] = _earliest(plan, node)
    for node in reversed(order):
        plan.rest[node] = plan.seconds[node] + _remaining(plan, node)
    plan.makespan = max((plan.begin[node] + plan.rest[node] for node in nodes), default=0.0)
    return plan


def _existing(node: int) -> tuple[int, ...]:
    return (node,) if node >= 0 else ()


def _earliest(plan: _MergePlan, node: int, *, without: int = -1) -> float:
    """When all inputs of `node` have arrived and its device is free, `without` one piece."""
    ends = [
        plan.begin[other] + plan.seconds[other] + wait for other, wait in plan.before[node].items() if other != without
    ]
    ends += [plan.begin[other] + plan.seconds[other] for other in _existing(plan.previous[node]) if other != without]
    return max(ends, default=0.0)


def _remaining(plan: _MergePlan, node: int, *, without: int = -1) -> float:
    """The longest path from the end of `node` to the end of everything."""
    ways = [wait + plan.rest[other] for other, wait in plan.after[node].items() if other != without]
    ways += [plan.rest[other] for other in _existing(plan.following[node]) if other != without]
    return max(ways, default=0.0)


def _join_one(plan: _MergePlan, *, few: bool) -> bool:
    """Sweep over all neighbours and merge where possible; return whether anything changed."""
    changed = False
    _schedule(plan)
    for one in sorted(plan.parts):
        while one in plan.parts and (other := plan.following[one]) >= 0 and _may_join(plan, one, other, few):
            _join(plan, one, other)
            _schedule(plan)
            changed = True
    return changed


def _may_join(plan: _MergePlan, one: int, other: int, few: bool) -> bool:
    if not few:
        begin = max(_earliest(plan, one), _earliest(plan, other, without=one))
        rest = max(_remaining(plan, one, without=other), _remaining(plan, other))
        seconds = plan.seconds[one] + plan.seconds[other] - plan.saved[other]
        if begin + seconds + rest > plan.makespan * (1 + _ROUNDING):
            return False
    return not _has_detour(plan, one, other)


def _has_detour(plan: _MergePlan, one: int, other: int) -> bool:
    """Whether a path leads from `one` through other pieces to `other`."""
    last, seen = plan.turn[other], set[int]()
    ahead = [node for node in plan.after[one] if node != other]
    while ahead:
        node = ahead.pop()
        if node == other:
            return True
        if node not in seen and plan.turn[node] < last:
            seen.add(node)
            ahead += [*plan.after[node], *_existing(plan.following[node])]
    return False


def _join(plan: _MergePlan, one: int, other: int) -> None:
    """Merge `other` into `one`."""
    plan.parts[one] += plan.parts.pop(other)
    plan.seconds[one] += plan.seconds.pop(other) - plan.saved[other]
    for mine, theirs in ((plan.before, plan.after), (plan.after, plan.before)):
        for node, wait in mine.pop(other).items():
            del theirs[node][other]
            if node != one:
                mine[one][node] = theirs[node][one] = max(wait, mine[one].get(node, 0.0))
    plan.following[one] = plan.following.pop(other)
    del plan.previous[other]
    for node in _existing(plan.following[one]):
        plan.previous[node] = one
