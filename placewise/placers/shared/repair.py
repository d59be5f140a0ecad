"""Placements that do not fit, made to fit: blocks move where they may run, as few bytes and as near as possible.

First every device that is too full gives up the blocks whose move costs least per byte. Where that is not enough, a
local search shifts and exchanges pairs of blocks until no byte is too many: excess travels from device to device like
an ejection chain, and a kick goes on where no pair helps. Activations are measured, taken off what devices may use,
and the search goes on with what is left.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Ints, Longs, offsets_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Stopwatch
from placewise.placers.shared.memory_footprint import memory_footprint
from placewise.placers.shared.memory_repair import PackingInstance, settle
from placewise.simulate.blocks import block_seconds
from placewise.simulate.judge.memory import device_memory

ROUNDS = 12
"""So often are activations measured."""
MOST_MEASURED, MEASURED = 3_000, 400
"""Ops of graphs whose blocks are moved one by one under the judge's own peaks, and how often that is tried."""


def packing_instance(problem: Problem) -> PackingInstance:
    """The blocks of a problem."""
    n, block = problem.n_blocks, problem.block
    held = memory_footprint(problem, block, n)
    users = np.bincount(held.storage, minlength=len(held.stored))
    private = users[held.storage] == 1
    own = held.state.copy()
    np.add.at(own, held.group[private], held.stored[held.storage[private]])
    seconds = block_seconds(problem, np.arange(problem.n_devices))
    near, other, pull = _affinity(problem)
    return PackingInstance(
        own, offsets_of(held.group[~private], n), held.storage[~private].astype(np.int32), held.stored,
        np.isfinite(seconds), seconds, near, other, pull,
    )  # fmt: skip


def _affinity(problem: Problem) -> tuple[Longs, Ints, Floats]:
    """Blocks joined by tensors, as rows of neighbours, with the seconds of the tensors at the slowest link."""
    graph, block, n = problem.graph, problem.block, problem.n_blocks
    cost = problem.costs.transfer_seconds.max(axis=1, initial=0.0)
    count = np.diff(graph.consumer_offsets)
    tensor = np.repeat(np.arange(graph.n_tensors), count)
    maker = graph.tensors.producer[tensor]
    made = maker >= 0
    tail, head = block[maker[made]].astype(np.int64), block[graph.consumers[made]].astype(np.int64)
    seconds = (cost / np.maximum(count, 1))[tensor[made]]
    crosses = tail != head
    tail, head, seconds = tail[crosses], head[crosses], seconds[crosses]
    key, inverse = np.unique(np.concatenate((tail * n + head, head * n + tail)), return_inverse=True)
    pull = np.bincount(inverse, weights=np.concatenate((seconds, seconds)), minlength=len(key))
    rows = key // max(n, 1)
    return offsets_of(rows, n), (key - rows * n).astype(np.int32), pull.astype(np.float64)


def repair(
    problem: Problem,
    device: Ints,
    *,
    cargo: PackingInstance | None = None,
    seed: int = 0,
    watch: Stopwatch | None = None,
    measured: bool = True,
) -> Ints | None:
    """A placement [n_ops] near `device` that keeps support, pins, colocation and memory; None if none is found.

    The shape of stages is not looked at. A block that stands on several devices goes to that of its first op.
    `measured`: as a last resort blocks are moved under the judge's own peaks, which takes some hundred simulations.
    """
    if not problem.n_ops:
        return np.zeros(0, np.int32)
    cargo = cargo or packing_instance(problem)
    if not cargo.runs.any(axis=1).all():
        return None
    home = np.empty(problem.n_blocks, np.int32)
    home[problem.block[::-1]] = device[::-1]
    if not settle(cargo, home, problem.capacity, seed=seed):
        return None
    for careful in (True, False):
        placed = _with_activations(problem, cargo, home.copy(), careful, seed, watch)
        if placed is not None:
            return placed
    small = measured and problem.n_ops <= MOST_MEASURED
    return _descend(problem, cargo, home, seed, watch) if small else None


def _with_activations(
    problem: Problem, cargo: PackingInstance, home: Ints, careful: bool, seed: int, watch: Stopwatch | None
) -> Ints | None:
    """Settle again and again, in place, below what activations leave: of every device if `careful`, or of full ones."""
    room = problem.capacity.copy()
    for round_ in range(ROUNDS):
        placed: Ints = home[problem.block]
        resident, peak = device_memory(problem, Placement(placed))
        over = peak > problem.capacity
        if not over.any():
            return placed
        if watch is not None and watch.out:
            return None
        spare = np.where(over, 1.0 + 0.03 * round_, 1.0)
        left = problem.capacity - np.ceil(spare * (peak - resident))
        room = np.where(over, np.minimum(room, left), np.minimum(room, left) if careful else room)
        if (room < 0).any() or not settle(cargo, home, room, seed=seed + round_):
            return None
    return None


def _descend(problem: Problem, cargo: PackingInstance, home: Ints, seed: int, watch: Stopwatch | None) -> Ints | None:
    """Move one block at a time from a device that is too full, where the judge's peaks then come closer to fitting."""
    rng = np.random.default_rng(seed)

    def missing(trial: Ints) -> tuple[float, Longs]:
        peak = device_memory(problem, Placement(trial[problem.block]))[1]
        short = np.maximum(peak - problem.capacity, 0.0)
        return float(short.sum()), np.flatnonzero(short).astype(np.int64)

    least, over = missing(home)
    for _ in range(MEASURED):
        if not least:
            return home[problem.block]
        if watch is not None and watch.out:
            return None
        block = int(rng.choice(np.flatnonzero(np.isin(home, over))))
        others = np.flatnonzero(cargo.runs[block] & (np.arange(problem.n_devices) != home[block]))
        if not len(others):
            continue
        trial = home.copy()
        trial[block] = rng.choice(others)
        if rng.random() < 0.3:
            swapped = np.flatnonzero((home == trial[block]) & cargo.runs[:, home[block]])
            if len(swapped):
                trial[rng.choice(swapped)] = home[block]
        found, where = missing(trial)
        if found <= least:
            home, least, over = trial, found, where
    return None
