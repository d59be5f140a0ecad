"""Units: groups of ops that are split over devices, and recomputed, as one: layers, and what stands beside them.

A unit is a layer (ops whose scopes agree through the first number: ``encoder.layer.3``), or a module beside the layers.
Without scopes, units are repeated parts of the graph, or else ranges of ops that are cut where the fewest bytes cross.
Backward ops are in the unit of their forward op, and units form no cycle.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import numpy as np

from placewise.coarsen.coarse import colocate
from placewise.coarsen.quotient import renumber
from placewise.coarsen.repeats import repeated_layers
from placewise.coarsen.scopes import scope_labels
from placewise.model.columns import Ints, Longs, firsts_of
from placewise.model.problem import Problem
from placewise.simulate.contiguity import contract

MAX_UNITS, RANGES = 320, 64
"""The most units, and how many ranges of ops there are where nothing else groups them."""
_PHASES = re.compile(r"^(prefill|decode)[./]")


def find_units(problem: Problem) -> tuple[Ints, tuple[str, ...]]:
    """The unit [n_ops] of every op, in topological order, and the name of each unit."""
    if not problem.n_ops:
        return np.zeros(0, np.int32), ()
    for label in (scope_labels(problem, numbers=1), repeated_layers(problem)):
        unit = _close(problem, label)
        if 1 < int(unit.max()) + 1 <= MAX_UNITS:
            return unit, _name_units(problem, unit)
    unit = _close(problem, _cut_ranges(problem))
    return unit, _name_units(problem, unit)


def _close(problem: Problem, label: Ints) -> Ints:
    """The components [n_ops] that hold whole labels and form no cycle, in topological order."""
    component: Ints = contract(colocate(problem, label)).component
    return component


def _cut_ranges(problem: Problem) -> Ints:
    """Labels [n_ops]: ranges of blocks by their first op, cut where the fewest bytes of forward ops cross."""
    graph, n = problem.graph, problem.n_ops
    crossing = np.zeros(n + 1)
    maker = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    size = np.repeat(np.maximum(graph.tensors.bytes, 0), np.diff(graph.consumer_offsets)).astype(np.float64)
    counted = (maker >= 0) & ~graph.ops.backward[np.maximum(maker, 0)] & ~graph.ops.backward[graph.consumers]
    np.add.at(crossing, maker[counted] + 1, size[counted])
    np.add.at(crossing, graph.consumers[counted] + 1, -size[counted])
    crossing = np.cumsum(crossing)  # bytes from ops before each place to ops behind it
    first = firsts_of(problem.block)
    count = min(RANGES, problem.n_blocks)
    edges = np.linspace(0, n, count + 1).astype(np.int64)
    places = [int(a + np.argmin(crossing[a:b])) for a, b in pairwise(edges[1:].tolist()) if b > a]
    label: Longs = np.searchsorted(np.array(places), first, side="right")
    return renumber(label)[problem.block]


def _name_units(problem: Problem, unit: Ints) -> tuple[str, ...]:
    """The scope that the ops of a unit share, else the name of its first op; made unique by a number."""
    graph = problem.graph
    scopes: dict[int, str | None] = {}
    for u, scope in zip(unit.tolist(), graph.ops.scope, strict=True):
        path = _PHASES.sub("", scope)
        scopes[u] = path if u not in scopes else _shared_path(scopes[u], path)
    first = firsts_of(unit).tolist()
    names = [scopes[u] or graph.ops.name[first[u]] for u in range(len(first))]
    repeated, seen = Counter(names), Counter[str]()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if repeated[name] == 1 else f"{name}#{seen[name]}")
    return tuple(unique)


def _shared_path(one: str | None, other: str) -> str:
    parts = [a for a, b in zip((one or "").split("."), other.split("."), strict=False) if a == b]
    whole = (one or "").split(".")
    return ".".join(whole[: len(parts)]) if whole[: len(parts)] == parts else ""
