"""A cut that a target cannot say → the nearest one that it can: the fewest seconds of ops move to another device.

A target moves *units*: labels over ops, of modules, layers or whatever it names. `nearest` gives every unit a device
of its own choice; `in_stages` cuts a line of units into stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.export.stack import seconds_of
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.simulate.blocks import storage_bytes

NOTHING: Mapping[int, int] = {}
TRIES = 8
"""How often a projection is made again with less memory where live activations leave less than was thought."""
LEAST = 1e-9
"""What an op counts at least, as a share of the longest one: those that take no time stay too if they can."""
EVEN = (1e-6, 0.1, 1.0, 10.0, 100.0)
"""How much an even split counts beside seconds that move: at first, it only decides between equals."""


def nearest(problem: Problem, placement: Placement, unit: Ints, *, forced: Mapping[int, int] = NOTHING) -> Placement:
    """Every unit [n_ops] whole on the device that has most of its seconds and may hold it.

    Units that share a block are one. `forced` names the device of units that have no choice. Memory is kept as far
    as the judge's count of it allows by moving the units that lose least; where it does not, the placement is
    returned as it is, and the judge will say so.
    """
    unit = _with_blocks(problem, unit)
    moved, may = _moved(problem, placement, unit), _may(problem, unit, forced)

    def chosen(capacity: Floats) -> Ints:
        return _choose(problem, unit, np.where(may, moved, np.inf), capacity)[unit]

    return _within_memory(problem, chosen)


def in_stages(
    problem: Problem, placement: Placement, unit: Ints, devices: Sequence[int], *, forced: Mapping[int, int] = NOTHING
) -> tuple[int, ...]:
    """Where a line of units, numbered from 0 along it, is cut: a position per device, from 0, and the end.

    Stage s, on ``devices[s]``, has the units from ``cuts[s]`` to below ``cuts[s + 1]``; none where these are equal.
    Memory is kept where any cut keeps it. Where ops must leave devices that have no stage, and the nearest cut is
    slower than the plan for it, it is the fastest of the nearest and more even cuts. `forced` names the device of
    units that have no choice. () where no cut lets every op run.
    """
    line = list(devices)
    cost = np.where(_may(problem, unit, forced), _moved(problem, placement, unit), np.inf)[:, line]
    table = np.where(np.isfinite(problem.costs.op_seconds), problem.costs.op_seconds, 0.0)[:, line]
    load, held = np.zeros(cost.shape), _range_bytes(problem, unit, len(cost))
    np.add.at(load, unit, table)
    found: list[tuple[bool, float, int, tuple[int, ...]]] = []
    slowest = math.inf if np.isin(placement.device, line).all() else judge_placement(problem, placement).value
    for rank, even in enumerate(EVEN):
        cuts = _fitting(problem, unit, line, cost, even * load, held)
        if not cuts:
            return ()
        judged = judge_placement(problem, Placement(staged(cuts, line)[unit]))
        found.append((not judged.valid, judged.value, rank, cuts))
        if found[0][1] <= slowest:
            break
    return min(found)[-1]


def _fitting(
    problem: Problem, unit: Ints, line: list[int], cost: Floats, load: Floats, held: Floats
) -> tuple[int, ...]:
    """Cuts for which memory is enough, if there are any."""
    capacity = problem.capacity
    for _ in range(TRIES):
        cuts = _cut(cost, load, held, capacity[line])
        short = _short(problem, staged(cuts, line)[unit]) if cuts else np.zeros(problem.n_devices)
        if cuts and not short.any():
            return cuts
        capacity = capacity - short
    return _cut(cost, load, held, np.full(len(line), np.inf))


def staged(cuts: Sequence[int], devices: Sequence[int]) -> Ints:
    """The device of each unit along the line that `in_stages` cuts."""
    return np.repeat(np.array(devices, np.int32), np.diff(cuts).astype(np.int64))


def line_of(problem: Problem, placement: Placement, unit: Ints, allowed: Bools) -> tuple[int, ...]:
    """The devices that a placement uses among `allowed` [n_devices], in the order of their mean place along `unit`."""
    seconds = seconds_of(problem, placement.device) + np.finfo(float).tiny
    total = np.bincount(placement.device, weights=seconds, minlength=problem.n_devices)
    place = np.bincount(placement.device, weights=seconds * unit, minlength=problem.n_devices)
    used = [device for device in np.unique(placement.device).tolist() if allowed[device]]
    return tuple(sorted(used, key=lambda device: (place[device] / total[device], device)))


def _with_blocks(problem: Problem, unit: Ints) -> Ints:
    """Units that share a block as one, by the lowest of their numbers."""
    while True:
        lowest = np.full(problem.n_blocks, np.iinfo(np.int32).max, np.int64)
        np.minimum.at(lowest, problem.block, unit)
        target = np.arange(int(unit.max(initial=0)) + 1)
        np.minimum.at(target, unit, lowest[problem.block])
        joined = target[unit]
        if np.array_equal(joined, unit):
            break
        unit = np.asarray(joined, np.int32)
    return np.asarray(unit, np.int32)


def _moved(problem: Problem, placement: Placement, unit: Ints) -> Floats:
    """Seconds that move if a unit goes to a device: [units, n_devices]."""
    count, devices = int(unit.max(initial=-1)) + 1, problem.n_devices
    seconds = seconds_of(problem, placement.device)
    seconds = seconds + LEAST * (float(seconds.max(initial=0.0)) or 1.0)
    on = np.bincount(unit.astype(np.int64) * devices + placement.device, weights=seconds, minlength=count * devices)
    on = on.reshape(count, devices)
    moved: Floats = on.sum(axis=1, keepdims=True) - on
    return np.maximum(moved, 0.0)


def _may(problem: Problem, unit: Ints, forced: Mapping[int, int]) -> Bools:
    """Which devices [units, n_devices] may run every op of a unit."""
    may = np.ones((int(unit.max(initial=-1)) + 1, problem.n_devices), np.bool_)
    np.logical_and.at(may, unit, problem.allowed)
    for number, device in forced.items():
        may[number] &= np.arange(problem.n_devices) == device
    return may


def _within_memory(problem: Problem, chosen: Callable[[Floats], Ints]) -> Placement:
    capacity = problem.capacity.copy()
    for _ in range(TRIES):
        device = chosen(capacity)
        short = _short(problem, device)
        if not short.any():
            return Placement(device)
        capacity = capacity - short
    return Placement(chosen(problem.capacity))


def _short(problem: Problem, device: Ints) -> Floats:
    """The bytes that each device [n_devices] lacks."""
    short = np.zeros(problem.n_devices)
    for broken in judge_placement(problem, Placement(device)).violations:
        if broken.kind == "memory":
            short[problem.cluster.index(broken.device)] += broken.bytes_short
    return short


def _choose(problem: Problem, unit: Ints, cost: Floats, capacity: Floats) -> Ints:
    """A device for every unit [units]: those that would lose most by going elsewhere choose first."""
    held, sizes, free = _held(problem, unit, len(cost)), storage_bytes(problem.graph), capacity.copy()
    inside: list[set[int]] = [set() for _ in range(problem.n_devices)]
    ranked = np.sort(np.where(np.isfinite(cost), cost, cost[np.isfinite(cost)].max(initial=0.0) + 1.0), axis=1)
    regret = ranked[:, min(1, ranked.shape[1] - 1)] - ranked[:, 0]
    chosen = np.zeros(len(cost), np.int32)
    for number in np.lexsort((np.arange(len(cost)), -regret)).tolist():
        state, storages = held[number]
        need = [state + sum(sizes[list(storages - there)].tolist()) for there in inside]
        order = sorted(range(problem.n_devices), key=lambda device: (cost[number, device], device))
        order = [device for device in order if np.isfinite(cost[number, device])] or order
        device = next((device for device in order if need[device] <= free[device]), order[0])
        chosen[number] = device
        free[device] -= need[device]
        inside[device] |= storages
    return chosen


def _held(problem: Problem, unit: Ints, count: int) -> list[tuple[float, set[int]]]:
    """Bytes of state and the weight storages of every unit."""
    graph = problem.graph
    state = np.bincount(unit, weights=graph.ops.state_bytes, minlength=count).tolist()
    storages: list[set[int]] = [set() for _ in range(count)]
    uses = zip(
        unit[graph.weight_edges.consumer].tolist(),
        graph.weights.storage[graph.weight_edges.value].tolist(),
        strict=True,
    )
    for number, storage in uses:
        storages[number].add(storage)
    return list(zip(state, storages, strict=True))


def _range_bytes(problem: Problem, unit: Ints, count: int) -> Floats:
    """Resident bytes [units, units] of the units from i to j, both included; weights that they share count once."""
    graph = problem.graph
    held = np.zeros((count, count))
    np.add.at(held, (unit, unit), graph.ops.state_bytes)
    own = np.diag(held).copy()
    total = np.cumsum(own)
    held = np.maximum(total[None, :] - (total - own)[:, None], 0.0)
    size = storage_bytes(graph)
    pairs = np.unique(
        graph.weights.storage[graph.weight_edges.value].astype(np.int64) * count + unit[graph.weight_edges.consumer]
    )
    storage, where = pairs // count, pairs % count
    before = np.where(np.r_[False, storage[1:] == storage[:-1]], np.r_[-1, where[:-1]], -1) if len(pairs) else where
    for number, place, previous in zip(storage.tolist(), where.tolist(), before.tolist(), strict=True):
        held[previous + 1 : place + 1, place:] += size[number]
    return held


def _cut(cost: Floats, load: Floats, held: Floats, capacity: npt.NDArray[Any]) -> tuple[int, ...]:
    """Cuts with the least cost, by dynamic programming over (stage, end); () if no cut fits.

    `cost` and `load` [units, stages]: a stage costs the sum over its units, and its load squared, as a share of all.
    """
    count, stages = cost.shape
    moved = np.vstack((np.zeros(stages), np.cumsum(np.where(np.isfinite(cost), cost, 0.0), axis=0)))
    barred = np.vstack((np.zeros(stages), np.cumsum(~np.isfinite(cost), axis=0)))
    total = max(float(load.sum(axis=0).max(initial=0.0)), np.finfo(float).tiny)
    done = np.vstack((np.zeros(stages), np.cumsum(load / np.sqrt(total), axis=0)))
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    choice = np.tile(np.arange(count + 1), (stages, 1))
    for stage in range(stages):
        before = best.copy()
        for end in range(1, count + 1):
            price = before[:end] + moved[end, stage] - moved[:end, stage] + (done[end, stage] - done[:end, stage]) ** 2
            price[(barred[end, stage] > barred[:end, stage]) | (held[:end, end - 1] > capacity[stage])] = np.inf
            start = int(np.argmin(price))
            if price[start] < best[end]:
                best[end], choice[stage, end] = price[start], start
    if not np.isfinite(best[count]):
        return ()
    cuts = [count]
    for stage in reversed(range(stages)):
        cuts.append(int(choice[stage, cuts[-1]]))
    return tuple(reversed(cuts))
