"""Which devices stand along a pipeline: sequences of devices that differ in more than names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placewise.model.problem import Problem
from placewise.simulate.replicas import equal_devices, exchangeable

Lines = tuple[tuple[int, ...], ...]
"""The copies of a pipeline; each names its devices, in order."""


def list_lines(problem: Problem, count: int, copies: int, most: int) -> tuple[list[Lines], bool]:
    """Pipelines of `count` places with `copies` equal devices each, and whether these are all of them.

    Equal devices stand in one order only, which leaves some out where they use different wires. Beyond `most`, other
    orders are left out too: those from fast to slow, from slow to fast, and in the order of the cluster stay.
    """
    kind = equal_devices(problem)
    usable = np.flatnonzero(problem.allowed.any(axis=0))
    members = {int(k): usable[kind[usable] == k].tolist() for k in np.unique(kind[usable])}
    rooms = {k: len(own) // copies for k, own in members.items()}
    if sum(rooms.values()) < count:
        return [], True
    ordered = problem.constraints.ordered
    sequences: list[tuple[int, ...]] = []
    complete = all(exchangeable(problem.cluster.wire, own[0], d) for own in members.values() for d in own[1:])
    for sequence in _sequences(rooms, count):
        if ordered and not _in_order(_assign(members, sequence, copies)[0]):
            continue
        if len(sequences) == most:
            complete = False
            sequences += _plain_sequences(problem, rooms, count)
            break
        sequences.append(sequence)
    lines = [_assign(members, sequence, copies) for sequence in dict.fromkeys(sequences)]
    if ordered:
        lines = [line for line in lines if _in_order(line[0])]
        complete = complete and all(len(own) == 1 for own in members.values())
    return lines, complete


def _in_order(devices: tuple[int, ...]) -> bool:
    return list(devices) == sorted(devices)


def _sequences(rooms: dict[int, int], count: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of so many classes that uses none more often than it has room."""
    if not count:
        yield ()
        return
    for k in rooms:
        if rooms[k]:
            rest = {**rooms, k: rooms[k] - 1}
            yield from ((k, *tail) for tail in _sequences(rest, count - 1))


def _assign(members: dict[int, list[int]], sequence: tuple[int, ...], copies: int) -> Lines:
    left = {k: list(own) for k, own in members.items()}
    places = []
    for k in sequence:
        places.append(tuple(left[k][:copies]))
        left[k] = left[k][copies:]
    return tuple(tuple(place[copy] for place in places) for copy in range(copies))


def _plain_sequences(problem: Problem, rooms: dict[int, int], count: int) -> list[tuple[int, ...]]:
    """The classes of the fastest devices: in the order of the cluster, from fast to slow, and from slow to fast."""
    seconds = np.where(problem.allowed, problem.costs.op_seconds, 0.0)
    missing = (~problem.allowed).sum(axis=0)
    speed = {k: (int(missing[k]), float(seconds[:, k].sum())) for k in rooms}
    fast = [k for k in sorted(rooms, key=lambda k: speed[k]) for _ in range(rooms[k])][:count]
    cluster = sorted(fast)
    return [tuple(cluster), tuple(fast), tuple(reversed(fast))]
