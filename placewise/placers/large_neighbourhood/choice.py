"""Choosing a window for throughput: devices around the busiest one, and some of the units that they run."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.placers.large_neighbourhood.subproblem import MovableUnits, ThroughputWindow
from placewise.simulate.contiguity import Contraction

KINDS = ("region", "stretch", "chunks")
"""A connected region; a stretch of one order of the units; all units, with neighbours in groups."""
BUSY = 1e-9
"""Devices whose load is within this share of the largest all count as the busiest."""
MAX_AROUND = 12
"""Neighbours of a unit by which a region grows at a time."""


def choose_window(
    kind: str, units: MovableUnits, assignment: Ints, loads: Floats, size: int, n_inside: int, rng: np.random.Generator
) -> ThroughputWindow:
    """A window of one of `KINDS` with about `size` groups on at most `n_inside` devices; `loads` [n_devices]."""
    n_devices = len(loads)
    used = np.bincount(assignment, minlength=n_devices) > 0
    busiest = np.flatnonzero(loads >= loads.max() * (1 - BUSY))
    first = int(rng.choice(busiest[used[busiest]] if used[busiest].any() else np.flatnonzero(used)))
    order = units.orders[int(rng.integers(len(units.orders)))]
    if units.graph is None:
        devices, before = _choose_devices(units, assignment, loads, first, n_inside, rng), np.zeros(n_devices, np.bool_)
        place = order
    else:
        stages = _stages(units.graph, assignment)
        devices, before = _choose_stages(stages, used, first, n_inside, rng)
        rank = np.zeros(n_devices, np.int64)
        rank[stages] = np.arange(len(stages))
        place = np.empty(units.n, np.int64)
        place[np.lexsort((order, rank[assignment]))] = np.arange(units.n)
    inside = np.flatnonzero(np.isin(assignment, devices))
    group = np.full(units.n, -1, np.int64)
    line = inside[np.argsort(place[inside])]
    if len(line) <= size:
        group[line] = np.arange(len(line))
    elif kind == "chunks" or (units.graph is not None and (assignment[line] == assignment[line[0]]).all()):
        line = line[np.argsort(assignment[line], kind="stable")] if units.graph is None else line
        group[line] = _chunks(line, assignment, size, rng)
    else:
        pick = _region if kind == "region" and units.graph is None else _borders
        free = pick(units, line, assignment, size, rng)
        group[free] = np.arange(len(free))
    return ThroughputWindow(tuple(int(d) for d in devices), group, before)


def _choose_devices(
    units: MovableUnits, assignment: Ints, loads: Floats, first: int, n_inside: int, rng: np.random.Generator
) -> list[int]:
    """The busiest device and others: the idlest, some that it exchanges tensors with, or any."""
    mine = np.flatnonzero(assignment == first)
    sample = rng.choice(mine, min(len(mine), 64), replace=False)
    met = np.unique(assignment[np.concatenate([units.around(int(unit)) for unit in sample])]).tolist()
    others = [d for d in range(len(loads)) if d != first]
    met = [d for d in met if d != first] or others
    chosen = [first]
    while len(chosen) < min(n_inside, len(loads)):
        choice = int(rng.integers(3))
        pool = [d for d in (met if choice == 0 else others) if d not in chosen]
        if choice == 1:
            pool = sorted((d for d in others if d not in chosen), key=lambda d: loads[d])[:1]
        if not pool:
            pool = [d for d in others if d not in chosen]
        chosen.append(int(rng.choice(pool)))
    return sorted(chosen)


def _stages(graph: Contraction, assignment: Ints) -> list[int]:
    """The devices in use, in the order of the chain; by their first unit where the order is free."""
    tail, head = graph.edges()
    width = int(assignment.max(initial=0)) + 1
    pairs = np.unique(assignment[tail].astype(np.int64) * width + assignment[head])
    used, first = np.unique(assignment, return_index=True)
    waits = {int(d): set[int]() for d in used}
    for pair in pairs.tolist():
        if pair // width != pair % width:
            waits[pair % width].add(pair // width)
    stages: list[int] = []
    by_first = [int(d) for d in used[np.argsort(first)]]
    while len(stages) < len(by_first):
        ready = [d for d in by_first if d not in stages and waits[d] <= set(stages)]
        stages.append(ready[0] if ready else next(d for d in by_first if d not in stages))
    return stages


def _choose_stages(
    stages: list[int], used: Bools, first: int, n_inside: int, rng: np.random.Generator
) -> tuple[list[int], Bools]:
    """Consecutive stages around `first` with all unused devices, and a mask of the stages before them."""
    at, length = stages.index(first), min(n_inside, len(stages))
    start = int(np.clip(at - rng.integers(length), 0, len(stages) - length))
    before = np.zeros(len(used), np.bool_)
    before[stages[:start]] = True
    return [*stages[start : start + length], *np.flatnonzero(~used).tolist()], before


def _chunks(line: Longs, assignment: Ints, size: int, rng: np.random.Generator) -> Longs:
    """About `size` groups of neighbours on a line of units, none of them on two devices."""
    length = max(-(-len(line) // size), 1)
    cut = np.zeros(len(line), np.bool_)
    cut[int(rng.integers(length)) :: length] = True
    cut[1:] |= assignment[line][1:] != assignment[line][:-1]
    cut[0] = False
    return np.cumsum(cut)


def _borders(units: MovableUnits, line: Longs, assignment: Ints, size: int, rng: np.random.Generator) -> Longs:
    """Units in a stretch of a line; for chains of stages, around the places where the device changes."""
    borders = np.flatnonzero(assignment[line][1:] != assignment[line][:-1])
    if units.graph is None:
        middle = int(rng.integers(len(line)))
        start = int(np.clip(middle - size // 2, 0, len(line) - size))
        return line[start : start + size]
    half = max(size // (2 * len(borders)), 1)
    chosen = np.zeros(len(line), np.bool_)
    for border in borders.tolist():
        shift = int(rng.integers(-half // 2, half // 2 + 1))
        chosen[max(border + 1 - half + shift, 0) : border + 1 + half + shift] = True
    return line[chosen]


def _region(units: MovableUnits, line: Longs, assignment: Ints, size: int, rng: np.random.Generator) -> Longs:
    """Connected units of the devices inside, grown from where two of these devices meet, if they do."""
    able, chosen = np.zeros(units.n, np.bool_), np.zeros(units.n, np.bool_)
    able[line] = True
    seeds = [int(u) for u in rng.permutation(line)[: 4 * size]]
    seeds.sort(key=lambda u: not (able[units.around(u)] & (assignment[units.around(u)] != assignment[u])).any())
    region: list[int] = []
    frontier: list[int] = []
    while len(region) < size:
        if not frontier:
            fresh = next((u for u in seeds if not chosen[u]), -1)
            if fresh < 0:
                break
            frontier.append(fresh)
        unit = frontier.pop(int(rng.integers(len(frontier))))
        if chosen[unit]:
            continue
        chosen[unit] = True
        region.append(unit)
        around = units.around(unit)
        around = around[able[around] & ~chosen[around]]
        frontier += rng.permutation(around)[:MAX_AROUND].tolist()
    return np.array(region, np.int64)
