"""A tighter proof where devices are in nodes: stages that fill a node reach others over the links between nodes.

Let a stage have as many devices as the largest node with devices of its class, or more. Then some device of it and some
device of any other stage are in different nodes: either its devices are in two nodes, or they are all that a node has.
So tensors between the two cross a link between nodes, for a boundary goes over the slowest link between two stages.

Each class becomes two: devices of stages that fill a node, and devices of smaller stages. How many a plan has of each
is not known, so there is a case for every sum of sizes of large stages; what is refuted in all cases is refuted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.shared.device_classes import DeviceClass

MAX_CASES = 16
_NEVER = (1.0, 1e290)
"""Replicas on this route take forever."""


def split_by_node(
    problem: Problem, classes: Sequence[DeviceClass], replicas: Ints, most: int
) -> list[tuple[list[DeviceClass], list[int]]]:
    """The cases: classes of devices at their best, and of which given class each is a part. Empty where none helps.

    `replicas` [n] a stage may have so many; `most` classes are taken in a case.
    """
    ways = problem.require_ways()
    if problem.cluster.transfers == "staged" or not ways.gradient_factor or 2 * len(classes) > most:
        return []
    if all(_is_as_fast(one) for one in classes):
        return []
    each = max(int(MAX_CASES ** (1 / len(classes))), 1)
    counts = [_list_counts(one, ways.degrees.tolist(), replicas.tolist(), each) for one in classes]
    cases = []
    for chosen in itertools.product(*counts):
        parts, origin = list[DeviceClass](), list[int]()
        for number, (one, (large, small)) in enumerate(zip(classes, chosen, strict=True)):
            if large:
                parts.append(replace(one, members=one.members[:large], boundary=one.beyond))
                origin.append(number)
            if small and one.node_room > 1:
                sizes = (one.node_room - 1,)
                parts.append(replace(one, members=one.members[:small], node_counts=sizes, across=_NEVER))
                origin.append(number)
        cases.append((parts, origin))
    return cases


def _is_as_fast(one: DeviceClass) -> bool:
    """Whether links between nodes are no slower than others."""
    return one.beyond[0] >= one.boundary[0] and one.beyond[1] <= one.boundary[1]


def _list_counts(one: DeviceClass, degrees: Sequence[int], replicas: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Pairs (devices of large stages, devices of small ones): every plan has at most so many of each, for some pair."""
    count = len(one.members)
    sizes = {t * d for t in degrees for d in replicas if t <= one.node_size and one.node_room <= t * d <= count}
    sums = {0}
    for total in range(1, count + 1):
        if any(total - size in sums for size in sizes):
            sums.add(total)
    ordered = sorted(sums)
    width = -(-len(ordered) // most)
    runs = [ordered[first : first + width] for first in range(0, len(ordered), width)]
    return [(run[-1], count - run[0]) for run in runs]
