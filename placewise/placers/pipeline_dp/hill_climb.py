"""Hill climbing over contiguous splits, for costs that the dynamic program does not see.

Direct transfers and shared wires depend on which stages are neighbours. A step exchanges the devices of two stages, or
moves one or several components over a cut. The judge's kernels price all neighbours of a split at once, and the best
one that keeps the rules is taken until none is better.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate, Stopwatch
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.contiguity import Contraction

_MAX_ENTRIES = 4_000_000
"""Ops of all neighbours that are priced at once; of more neighbours an evenly spaced sample is priced."""
_MAX_CHECKED = 20
_MAX_STEPS = 400_000
"""Steps times ops."""
_SHARES = (1, 2, 4, 8, 16, 32)

_Step = tuple[Longs | None, Any]
"""Components and the device that they move to; or None, and the device [n_devices] that replaces each device."""


def climb_hill(problem: Problem, graph: Contraction, device: Ints, price: Evaluate, watch: Stopwatch) -> Ints:
    """A split [n_ops] that no neighbour beats, or the best so far when time runs out."""
    value = float(price(device[None])[0])
    for _ in range(_MAX_STEPS // max(problem.n_ops, 1) + 1):
        if watch.out:
            break
        assignment = np.empty(graph.n, np.int32)
        assignment[graph.component] = device
        neighbours = _list_neighbours(problem, graph, assignment)
        if not len(neighbours):
            break
        rows = neighbours[:, graph.component]
        better = _find_best_valid(problem, rows, price(rows), value)
        if better is None:
            break
        device, value = better
    return device


def _find_best_valid(problem: Problem, rows: Ints, values: Floats, value: float) -> tuple[Ints, float] | None:
    order = np.argsort(values, kind="stable")
    for k in order[:_MAX_CHECKED].tolist():
        if not values[k] < value * (1 - 1e-12):
            return None
        if not find_broken_rule(problem, rows[k]):
            return rows[k].copy(), float(values[k])
    return None


def _list_neighbours(problem: Problem, graph: Contraction, assignment: Ints) -> Ints:
    """The splits of components [K, n] one step away from `assignment` [n]."""
    steps = [*_list_exchanges(problem, assignment), *_list_shifts(graph, assignment), *_list_slices(assignment)]
    most = max(_MAX_ENTRIES // max(problem.n_ops, 1), 1)
    if len(steps) > most:
        steps = [steps[int(k)] for k in np.linspace(0, len(steps) - 1, most)]
    neighbours = np.tile(assignment, (len(steps), 1))
    for row, (components, target) in zip(neighbours, steps, strict=True):
        if components is None:
            row[:] = target[assignment]
        else:
            row[components] = target
    return neighbours


def _list_exchanges(problem: Problem, assignment: Ints) -> list[_Step]:
    """Two devices exchange their stages."""
    used, steps = set(np.unique(assignment).tolist()), list[_Step]()
    for one, other in combinations(range(problem.n_devices), 2):
        if one in used or other in used:
            name = np.arange(problem.n_devices, dtype=np.int32)
            name[[one, other]] = other, one
            steps.append((None, name))
    return steps


def _list_shifts(graph: Contraction, assignment: Ints) -> list[_Step]:
    """A component moves to the device of a neighbour."""
    tail, head = graph.edges()
    cut = assignment[tail] != assignment[head]
    pairs = {*zip(tail[cut].tolist(), assignment[head[cut]].tolist(), strict=True)}
    pairs |= {*zip(head[cut].tolist(), assignment[tail[cut]].tolist(), strict=True)}
    return [(np.array([component]), target) for component, target in sorted(pairs)]


def _list_slices(assignment: Ints) -> list[_Step]:
    """The first or last components of a stage move to another stage."""
    stages = {d: np.flatnonzero(assignment == d) for d in np.unique(assignment).tolist()}
    return [
        (part, target)
        for d, members in stages.items()
        for target in stages
        if target != d
        for share in _SHARES
        if share <= len(members)
        for part in (members[-share:], members[:share])
    ]
