"""Projects a placement onto the nearest one that a target can express: the fewest seconds of ops change device.

A target places *units*: labels over ops, such as modules or layers. `project_units` chooses a device for every unit;
`cut_into_stages` cuts a sequence of units into stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.exporters.stack import op_seconds_on
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.simulate.blocks import held_storages, storage_bytes

NOTHING: Mapping[int, int] = {}
TRIES = 8
"""How often a projection is repeated with less memory, since activations leave less than it assumed."""
LEAST = 1e-9
"""The least cost of moving an op, as a share of the longest one, so that ops that take no time stay if they can."""
EVEN = (1e-6, 0.1, 1.0, 10.0, 100.0)
"""Weights of an even split beside the seconds that move; the first one only breaks ties."""


def project_units(
    problem: Problem, placement: Placement, unit: Ints, *, forced: Mapping[int, int] = NOTHING
) -> Placement:
    """Each unit [n_ops] as a whole on the device that has most of its seconds and room for it.

    Units that share a block are one. `forced` fixes the device of some units. If memory is short, the units that lose
    least move; if that does not suffice, the result breaks the memory limit, and the judge reports it.
    """
    unit = _merge_by_block(problem, unit)
    cost = np.where(_allowed_devices(problem, unit, forced), _move_cost(problem, placement, unit), np.inf)
    capacity = problem.capacity
    for _ in range(TRIES):
        device = _choose_devices(problem, unit, cost, capacity)[unit]
        short = _missing_bytes(problem, device)
        if not short.any():
            return Placement(device)
        capacity = capacity - short
    return Placement(_choose_devices(problem, unit, cost, problem.capacity)[unit])


def cut_into_stages(
    problem: Problem, placement: Placement, unit: Ints, devices: Sequence[int], *, forced: Mapping[int, int] = NOTHING
) -> tuple[int, ...]:
    """The bounds of stages, one per device, along units numbered from 0: the start of each stage, and the end.

    Stage s, on ``devices[s]``, has the units from ``cuts[s]`` up to ``cuts[s + 1]``, and none if these are equal. The
    cuts keep the memory limits if any cuts do. If ops must leave devices that have no stage, and this makes the
    nearest cuts slower than the plan, the fastest of the nearest and more even cuts is taken. `forced` fixes the
    device of some units. Empty if no cuts let every op run.
    """
    line = list(devices)
    cost = np.where(_allowed_devices(problem, unit, forced), _move_cost(problem, placement, unit), np.inf)[:, line]
    table = np.where(np.isfinite(problem.costs.op_seconds), problem.costs.op_seconds, 0.0)[:, line]
    load, resident = np.zeros(cost.shape), range_bytes(problem, unit, len(cost))
    np.add.at(load, unit, table)
    candidates: list[tuple[bool, float, int, tuple[int, ...]]] = []
    slowest = math.inf if np.isin(placement.device, line).all() else judge_placement(problem, placement).value
    for rank, even in enumerate(EVEN):
        cuts = _cut_within_memory(problem, unit, line, cost, even * load, resident)
        if not cuts:
            return ()
        judged = judge_placement(problem, Placement(stage_devices(cuts, line)[unit]))
        candidates.append((not judged.valid, judged.value, rank, cuts))
        if candidates[0][1] <= slowest:
            break
    return min(candidates)[-1]


def _cut_within_memory(
    problem: Problem, unit: Ints, line: list[int], cost: Floats, load: Floats, resident: Floats
) -> tuple[int, ...]:
    """Cuts that keep the memory limits if there are any, else without these limits."""
    capacity = problem.capacity
    for _ in range(TRIES):
        cuts = _cut(cost, load, resident, capacity[line])
        short = _missing_bytes(problem, stage_devices(cuts, line)[unit]) if cuts else np.zeros(problem.n_devices)
        if cuts and not short.any():
            return cuts
        capacity = capacity - short
    return _cut(cost, load, resident, np.full(len(line), np.inf))


def stage_devices(cuts: Sequence[int], devices: Sequence[int]) -> Ints:
    """The device of each unit under the cuts of `cut_into_stages`."""
    return np.repeat(np.array(devices, np.int32), np.diff(cuts).astype(np.int64))


def order_devices(problem: Problem, placement: Placement, unit: Ints, allowed: Bools) -> tuple[int, ...]:
    """The devices among `allowed` [n_devices] that a placement uses, ordered by their mean position along `unit`."""
    seconds = op_seconds_on(problem, placement.device) + np.finfo(float).tiny
    total = np.bincount(placement.device, weights=seconds, minlength=problem.n_devices)
    place = np.bincount(placement.device, weights=seconds * unit, minlength=problem.n_devices)
    used = [device for device in np.unique(placement.device).tolist() if allowed[device]]
    return tuple(sorted(used, key=lambda device: (place[device] / total[device], device)))


def _merge_by_block(problem: Problem, unit: Ints) -> Ints:
    """The units [n_ops] with those that share a block merged under their lowest number."""
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


def _move_cost(problem: Problem, placement: Placement, unit: Ints) -> Floats:
    """The seconds of ops that move if a unit goes to a device: [units, n_devices]."""
    count, devices = int(unit.max(initial=-1)) + 1, problem.n_devices
    seconds = op_seconds_on(problem, placement.device)
    seconds = seconds + LEAST * (float(seconds.max(initial=0.0)) or 1.0)
    on = np.bincount(unit.astype(np.int64) * devices + placement.device, weights=seconds, minlength=count * devices)
    on = on.reshape(count, devices)
    moved: Floats = on.sum(axis=1, keepdims=True) - on
    return np.maximum(moved, 0.0)


def _allowed_devices(problem: Problem, unit: Ints, forced: Mapping[int, int]) -> Bools:
    """Whether a device may run every op of a unit: [units, n_devices]."""
    allowed = np.ones((int(unit.max(initial=-1)) + 1, problem.n_devices), np.bool_)
    np.logical_and.at(allowed, unit, problem.allowed)
    for number, device in forced.items():
        allowed[number] &= np.arange(problem.n_devices) == device
    return allowed


def _missing_bytes(problem: Problem, device: Ints) -> Floats:
    """The bytes by which each device [n_devices] exceeds its memory."""
    short = np.zeros(problem.n_devices)
    for broken in judge_placement(problem, Placement(device)).violations:
        if broken.kind == "memory":
            short[problem.cluster.index(broken.device)] += broken.bytes_short
    return short


def _choose_devices(problem: Problem, unit: Ints, cost: Floats, capacity: Floats) -> Ints:
    """A device for every unit [units]; units with the largest regret choose first."""
    contents, sizes, free = _unit_contents(problem, unit, len(cost)), storage_bytes(problem.graph), capacity.copy()
    inside: list[set[int]] = [set() for _ in range(problem.n_devices)]
    ranked = np.sort(np.where(np.isfinite(cost), cost, cost[np.isfinite(cost)].max(initial=0.0) + 1.0), axis=1)
    regret = ranked[:, min(1, ranked.shape[1] - 1)] - ranked[:, 0]
    chosen = np.zeros(len(cost), np.int32)
    for number in np.lexsort((np.arange(len(cost)), -regret)).tolist():
        state, storages = contents[number]
        need = [state + sum(sizes[list(storages - there)].tolist()) for there in inside]
        order = sorted(range(problem.n_devices), key=lambda device: (cost[number, device], device))
        order = [device for device in order if np.isfinite(cost[number, device])] or order
        device = next((device for device in order if need[device] <= free[device]), order[0])
        chosen[number] = device
        free[device] -= need[device]
        inside[device] |= storages
    return chosen


def _unit_contents(problem: Problem, unit: Ints, count: int) -> list[tuple[float, set[int]]]:
    """Bytes of state and the weight storages of every unit."""
    graph = problem.graph
    state = np.bincount(unit, weights=graph.ops.state_bytes, minlength=count).tolist()
    storages: list[set[int]] = [set() for _ in range(count)]
    for number, storage in zip(*(column.tolist() for column in held_storages(graph, unit)), strict=True):
        storages[number].add(storage)
    return list(zip(state, storages, strict=True))


def range_bytes(problem: Problem, unit: Ints, count: int) -> Floats:
    """Resident bytes [units, units] of the units from i to j inclusive; shared weights count once."""
    graph = problem.graph
    resident = np.zeros((count, count))
    np.add.at(resident, (unit, unit), graph.ops.state_bytes)
    own = np.diag(resident).copy()
    total = np.cumsum(own)
    resident = np.maximum(total[None, :] - (total - own)[:, None], 0.0)
    size = storage_bytes(graph)
    pairs = np.unique(
        graph.weights.storage[graph.weight_edges.value].astype(np.int64) * count + unit[graph.weight_edges.consumer]
    )
    storage, where = pairs // count, pairs % count
    before = np.where(np.r_[False, storage[1:] == storage[:-1]], np.r_[-1, where[:-1]], -1) if len(pairs) else where
    shared = np.zeros((count + 1, count))  # ranges that begin after the use before and end at this one or later hold it
    np.add.at(shared, (before + 1, where), size[storage])
    np.add.at(shared, (where + 1, where), -size[storage])
    resident += np.cumsum(np.cumsum(shared, axis=0), axis=1)[:count]
    return resident


def _cut(cost: Floats, load: Floats, resident: Floats, capacity: npt.NDArray[Any]) -> tuple[int, ...]:
    """Cuts of least cost, by dynamic programming over (stage, end); () if none fits.

    The cost of a stage is the sum of `cost` [units, stages] over its units plus its squared `load` [units, stages],
    relative to the total load.
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
            price[(barred[end, stage] > barred[:end, stage]) | (resident[:end, end - 1] > capacity[stage])] = np.inf
            start = int(np.argmin(price))
            if price[start] < best[end]:
                best[end], choice[stage, end] = price[start], start
    if not np.isfinite(best[count]):
        return ()
    cuts = [count]
    for stage in reversed(range(stages)):
        cuts.append(int(choice[stage, cuts[-1]]))
    return tuple(reversed(cuts))
