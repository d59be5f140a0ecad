"""Which part of a placement to free: devices around the busiest one, and some of what they run."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.placers.large_neighbourhood.subproblem import Window
from placewise.placers.large_neighbourhood.units import Units
from placewise.simulate.contiguity import Contraction

KINDS = ("region", "stretch", "chunks")
"""A connected region; a stretch of an order of the units; all units, those next to each other in groups."""
BUSY = 1e-9
"""Devices within this share of the largest load are all the busiest."""
MOST_AROUND = 12
"""Neighbours of a unit that a region grows over at a time."""


def choose(
    kind: str, units: Units, home: Ints, loads: Floats, size: int, n_inside: int, rng: np.random.Generator
) -> Window:
    """A window of one of `KINDS` with about `size` groups on at most `n_inside` devices; `loads` [n_devices]."""
    n_devices = len(loads)
    used = np.bincount(home, minlength=n_devices) > 0
    busiest = np.flatnonzero(loads >= loads.max() * (1 - BUSY))
    first = int(rng.choice(busiest[used[busiest]] if used[busiest].any() else np.flatnonzero(used)))
    order = units.orders[int(rng.integers(len(units.orders)))]
    if units.graph is None:
        devices, before = _company(units, home, loads, first, n_inside, rng), np.zeros(n_devices, np.bool_)
        place = order
    else:
        stages = _stages(units.graph, home)
        devices, before = _consecutive(stages, used, first, n_inside, rng)
        rank = np.zeros(n_devices, np.int64)
        rank[stages] = np.arange(len(stages))
        place = np.empty(units.n, np.int64)
        place[np.lexsort((order, rank[home]))] = np.arange(units.n)
    inside = np.flatnonzero(np.isin(home, devices))
    group = np.full(units.n, -1, np.int64)
    line = inside[np.argsort(place[inside])]
    if len(line) <= size:
        group[line] = np.arange(len(line))
    elif kind == "chunks" or (units.graph is not None and (home[line] == home[line[0]]).all()):
        line = line[np.argsort(home[line], kind="stable")] if units.graph is None else line
        group[line] = _chunks(line, home, size, rng)
    else:
        pick = _region if kind == "region" and units.graph is None else _borders
        free = pick(units, line, home, size, rng)
        group[free] = np.arange(len(free))
    return Window(tuple(int(d) for d in devices), group, before)


def _company(units: Units, home: Ints, loads: Floats, first: int, n_inside: int, rng: np.random.Generator) -> list[int]:
    """The busiest device and others: the idlest, ones that it exchanges tensors with, any."""
    mine = np.flatnonzero(home == first)
    sample = rng.choice(mine, min(len(mine), 64), replace=False)
    met = np.unique(home[np.concatenate([units.around(int(unit)) for unit in sample])]).tolist()
    others = [d for d in range(len(loads)) if d != first]
    met = [d for d in met if d != first] or others
    chosen = [first]
    while len(chosen) < min(n_inside, len(loads)):
        way = int(rng.integers(3))
        pool = [d for d in (met if way == 0 else others) if d not in chosen]
        if way == 1:
            pool = sorted((d for d in others if d not in chosen), key=lambda d: loads[d])[:1]
        if not pool:
            pool = [d for d in others if d not in chosen]
        chosen.append(int(rng.choice(pool)))
    return sorted(chosen)


def _stages(graph: Contraction, home: Ints) -> list[int]:
    """The devices that have units [n], in the order of the chain; by their first unit where it leaves a choice."""
    tail, head = graph.edges()
    width = int(home.max(initial=0)) + 1
    pairs = np.unique(home[tail].astype(np.int64) * width + home[head])
    used, first = np.unique(home, return_index=True)
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


def _consecutive(
    stages: list[int], used: Bools, first: int, n_inside: int, rng: np.random.Generator
) -> tuple[list[int], Bools]:
    """Stages next to each other, `first` among them, with the devices that nobody uses; and which come before."""
    at, length = stages.index(first), min(n_inside, len(stages))
    start = int(np.clip(at - rng.integers(length), 0, len(stages) - length))
    before = np.zeros(len(used), np.bool_)
    before[stages[:start]] = True
    return [*stages[start : start + length], *np.flatnonzero(~used).tolist()], before


def _chunks(line: Longs, home: Ints, size: int, rng: np.random.Generator) -> Longs:
    """Groups of neighbours on a line of units, about `size`, none of them on two devices."""
    length = max(-(-len(line) // size), 1)
    cut = np.zeros(len(line), np.bool_)
    cut[int(rng.integers(length)) :: length] = True
    cut[1:] |= home[line][1:] != home[line][:-1]
    cut[0] = False
    return np.cumsum(cut)


def _borders(units: Units, line: Longs, home: Ints, size: int, rng: np.random.Generator) -> Longs:
    """The units around some places of a line: where devices change if the line goes from one to the next."""
    borders = np.flatnonzero(home[line][1:] != home[line][:-1])
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


def _region(units: Units, line: Longs, home: Ints, size: int, rng: np.random.Generator) -> Longs:
    """Units of the devices inside that hang together, grown from where two of these devices meet if they do."""
    able, chosen = np.zeros(units.n, np.bool_), np.zeros(units.n, np.bool_)
    able[line] = True
    seeds = [int(u) for u in rng.permutation(line)[: 4 * size]]
    seeds.sort(key=lambda u: not (able[units.around(u)] & (home[units.around(u)] != home[u])).any())
    found: list[int] = []
    frontier: list[int] = []
    while len(found) < size:
        if not frontier:
            fresh = next((u for u in seeds if not chosen[u]), -1)
            if fresh < 0:
                break
            frontier.append(fresh)
        unit = frontier.pop(int(rng.integers(len(frontier))))
        if chosen[unit]:
            continue
        chosen[unit] = True
        found.append(unit)
        around = units.around(unit)
        around = around[able[around] & ~chosen[around]]
        frontier += rng.permutation(around)[:MOST_AROUND].tolist()
    return np.array(found, np.int64)
