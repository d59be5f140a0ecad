"""The stages of a placement whose devices may run several of them, in turns or there and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.transform.stages import stage_order

MOST = 8
"""Stages per device; placements that would need more are no pipelines."""


@dataclass(frozen=True, slots=True, eq=False)
class VirtualStages:
    """The `devices` of a pipeline in order, the place in it that runs each stage (`ranks`), and each op's `stage`."""

    devices: tuple[int, ...]
    ranks: tuple[int, ...]
    stage: Ints


def find_virtual_stages(graph: Graph, device: Ints, *, there_and_back: bool = False) -> VirtualStages | None:
    """The stages of a placement [n_ops]: one per device where they form a line, else several per device in turns.

    In turns, stage s is on device s mod n, as interleaved schedules have it; `there_and_back` prefers the order of
    ZBV, 0, 1, …, n−1, n−1, …, 0, where that needs no more stages. None if `MOST` stages per device are not enough.
    """
    order, back = stage_order(graph, device)
    count = len(order)
    place = {home: rank for rank, home in enumerate(order)}
    if back is None:
        stage = np.array([place[home] for home in device.tolist()], np.int32)
        return VirtualStages(order, tuple(range(count)), stage)
    order = tuple(sorted(place, key=lambda home: int(np.flatnonzero(device == home)[0])))
    place = {home: rank for rank, home in enumerate(order)}
    rank = [place[home] for home in device.tolist()]
    turns, vee = list(range(count)), [*range(count), *reversed(range(count))]
    found = _assign_stages(graph, rank, turns * MOST)
    if there_and_back:
        back_again = _assign_stages(graph, rank, vee)
        if back_again is not None and (found is None or found.max() + 1 != 2 * count):
            return VirtualStages(order, tuple(vee), back_again)
    if found is None:
        return None
    times = -(-(int(found.max()) + 1) // count)
    return VirtualStages(order, tuple(turns * times), found)


def _assign_stages(graph: Graph, rank: list[int], pattern: list[int]) -> Ints | None:
    """The earliest stage of each op, where stage s is on `pattern`[s]; None if there are not enough."""
    stage = np.zeros(graph.n_ops, np.int32)
    producer, value, consumer = graph.tensors.producer, graph.edges.value, graph.edges.consumer
    makers = producer[value]
    earliest = np.zeros(graph.n_ops, np.int32)
    first = np.searchsorted(consumer, np.arange(graph.n_ops + 1))
    for op in range(graph.n_ops):
        own = makers[first[op] : first[op + 1]]
        earliest[op] = stage[own[own >= 0]].max(initial=0)
        later = next((s for s in range(int(earliest[op]), len(pattern)) if pattern[s] == rank[op]), None)
        if later is None:
            return None
        stage[op] = later
    return stage
