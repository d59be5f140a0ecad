"""Memory peaks: for each device, the op during which it holds most, and what it holds then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.simulate.blocks import storage_bytes
from placewise.simulate.judge.memory import Spans, memory_while, spans_of


class HeldItem(NamedTuple):
    """Something that a device holds: a ``"weight"``, the ``"state"`` of an op, or a ``"tensor"``."""

    kind: str
    name: str
    bytes: float


class MemoryPeak(NamedTuple):
    """The first op during which a device holds most, and what it holds then, the largest first."""

    device: str
    op: str
    bytes: float
    held: tuple[HeldItem, ...]

    def total(self, kind: str) -> float:
        """The bytes of all items of a kind."""
        return sum(part.bytes for part in self.held if part.kind == kind)


def memory_peaks(problem: Problem, placement: Placement, timeline: Timeline | None = None) -> tuple[MemoryPeak, ...]:
    """The peak of each device that the placement uses, in the cluster's order; `timeline` as in `device_memory`.

    Tied weights are held once, under the name of the largest that is used there; a tensor with two copies in flight
    counts twice. Without live tensors in the memory model, or if the placement cannot run, only resident items count.
    None where ops may be split, and for a training step: the judge says what holds the memory of each stage.
    """
    if problem.ways is not None or problem.objective.kind == "step":
        return ()
    spans, found = spans_of(problem, placement, timeline), []
    held = memory_while(problem, placement, timeline)
    for d, name in enumerate(problem.cluster.names):
        ops = np.flatnonzero(placement.device == d)
        if not len(ops):
            continue
        order = ops if spans is None else ops[np.argsort(spans.position[ops])]
        peak = int(order[held[order].argmax()])
        parts = [*_weights(problem, ops.tolist()), *_states(problem, ops.tolist()), *_live(problem, spans, peak)]
        parts = sorted((part for part in parts if part.bytes), key=lambda part: (-part.bytes, part.name))
        found.append(MemoryPeak(name, problem.graph.ops.name[peak], float(held[peak]), tuple(parts)))
    return tuple(found)


def _weights(problem: Problem, ops: list[int]) -> Iterator[HeldItem]:
    graph, largest = problem.graph, dict[int, int]()
    for op in ops:
        for weight in graph.weights_of(op).tolist():
            storage = int(graph.weights.storage[weight])
            known = largest.setdefault(storage, weight)
            if graph.weights.bytes[weight] > graph.weights.bytes[known]:
                largest[storage] = weight
    size = storage_bytes(graph)
    yield from (HeldItem("weight", graph.weights.name[weight], float(size[s])) for s, weight in largest.items())


def _states(problem: Problem, ops: list[int]) -> Iterator[HeldItem]:
    table = problem.graph.ops
    yield from (HeldItem("state", table.name[op], float(table.state_bytes[op])) for op in ops)


def _live(problem: Problem, spans: Spans | None, op: int) -> Iterator[HeldItem]:
    if spans is not None:
        at = spans.position[op]
        for row in np.flatnonzero((spans.first <= at) & (at <= spans.last)).tolist():
            yield HeldItem("tensor", problem.graph.tensors.name[spans.tensor[row]], float(spans.bytes[row]))
