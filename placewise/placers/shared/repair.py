"""Placements that do not fit in memory, repaired: blocks move where they may run, as few bytes and as near as possible.

First every overfull device gives up the blocks whose move costs least per byte. If that is not enough, a local search
shifts blocks and exchanges pairs of them until no byte is in excess: excess travels from device to device like an
ejection chain, and a random kick continues where no pair helps. Activations are then measured and subtracted from the
memory of the devices, and the search continues with what remains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs, offsets_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Stopwatch
from placewise.placers.shared.memory_footprint import compute_footprint
from placewise.simulate.blocks import block_seconds
from placewise.simulate.judge.memory import device_memory

WORK = 40_000_000
"""Blocks that the local search may look at: some tenths of a second."""
ROUNDS = 12
"""How often activations are measured."""
MAX_MEASURED, MEASURED = 3_000, 400
"""Ops up to which blocks are moved one by one under the judge's own peaks, and the number of such moves tried."""
_UNLIMITED = 1 << 60


class PackingInstance(NamedTuple):
    """The sizes of blocks and where they may be, as the kernels read them; bytes are whole numbers.

    A storage that several blocks use is held once per device.
    """

    own: Longs  # [n_blocks] state, and weights that no other block uses
    offsets: Longs  # [n_blocks + 1] into `storage`
    storage: Ints  # shared storages of each block
    stored: Longs  # [n_storages] bytes
    runs: Bools  # [n_blocks, n_devices]
    damage: Floats  # [n_blocks, n_devices] seconds of each block
    near: Longs  # [n_blocks + 1] into `other`
    other: Ints  # blocks that exchange a tensor with each block
    pull: Floats  # seconds of that tensor


def build_packing_instance(problem: Problem) -> PackingInstance:
    """The packing instance of the blocks of a problem."""
    n, block = problem.n_blocks, problem.block
    footprint = compute_footprint(problem, block, n)
    shared = ~footprint.private
    seconds = block_seconds(problem, np.arange(problem.n_devices))
    near, other, pull = _list_neighbours(problem)
    return PackingInstance(
        footprint.own(), offsets_of(footprint.group[shared], n), footprint.storage[shared].astype(np.int32),
        footprint.stored, np.isfinite(seconds), seconds, near, other, pull,
    )  # fmt: skip


def repair_memory(
    instance: PackingInstance, assignment: Ints, room: Floats, *, seed: int = 0, work: int = WORK
) -> bool:
    """Move blocks [n_blocks], in place, until every device's bytes stay within `room` [n_devices]; whether they do.

    Every block must have a device that may run it.
    """
    return bool(_native.MemoryRepair(*instance, _whole_bytes(room)).run(assignment, seed, work))


def fill_by_size(instance: PackingInstance, room: Floats, *, even: bool) -> Ints:
    """The device [n_blocks] of every block, largest first: the roomiest if `even`, else the tightest that suffices.

    A block for which no device has room goes to the roomiest. Every block must have a device that may run it.
    """
    size = instance.own.copy()
    np.add.at(size, np.repeat(np.arange(len(size)), np.diff(instance.offsets)), instance.stored[instance.storage])
    order = np.lexsort((instance.runs.sum(axis=1), -size))
    return _native.MemoryRepair(*instance, _whole_bytes(room)).fill(order, even)


def _whole_bytes(room: Floats) -> Longs:
    """Bytes [n_devices] as whole numbers; a large number stands for no limit."""
    return np.where(np.isfinite(room), np.minimum(room, _UNLIMITED), _UNLIMITED).astype(np.int64)


def _list_neighbours(problem: Problem) -> tuple[Longs, Ints, Floats]:
    """Blocks that exchange tensors, as rows of neighbours, with the seconds of these tensors on the slowest link."""
    graph, block, n = problem.graph, problem.block, problem.n_blocks
    cost = problem.costs.transfer_seconds.max(axis=1, initial=0.0)
    count = np.diff(graph.consumer_offsets)
    tensor = np.repeat(np.arange(graph.n_tensors), count)
    producer = graph.tensors.producer[tensor]
    produced = producer >= 0
    tail, head = block[producer[produced]].astype(np.int64), block[graph.consumers[produced]].astype(np.int64)
    seconds = (cost / np.maximum(count, 1))[tensor[produced]]
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
    instance: PackingInstance | None = None,
    seed: int = 0,
    watch: Stopwatch | None = None,
    measured: bool = True,
) -> Ints | None:
    """A placement [n_ops] near `device` that keeps support, pins, colocation and memory; None if none is found.

    The shape of stages is ignored. A block whose ops are on several devices goes to the device of its first op.
    `measured`: as a last resort, move blocks under the judge's own peaks, which takes some hundred simulations.
    """
    if not problem.n_ops:
        return np.zeros(0, np.int32)
    instance = instance or build_packing_instance(problem)
    if not instance.runs.any(axis=1).all():
        return None
    assignment = np.empty(problem.n_blocks, np.int32)
    assignment[problem.block[::-1]] = device[::-1]
    if not repair_memory(instance, assignment, problem.capacity, seed=seed):
        return None
    for careful in (True, False):
        placed = _repair_activations(problem, instance, assignment.copy(), careful, seed, watch)
        if placed is not None:
            return placed
    small = measured and problem.n_ops <= MAX_MEASURED
    return _repair_peaks(problem, instance, assignment, seed, watch) if small else None


def _repair_activations(
    problem: Problem, instance: PackingInstance, assignment: Ints, careful: bool, seed: int, watch: Stopwatch | None
) -> Ints | None:
    """Repair `assignment` in place within what activations leave: on all devices if `careful`, else on full ones."""
    room = problem.capacity.copy()
    for round_ in range(ROUNDS):
        placed: Ints = assignment[problem.block]
        resident, peak = device_memory(problem, Placement(placed))
        over = peak > problem.capacity
        if not over.any():
            return placed
        if watch is not None and watch.out:
            return None
        margin = np.where(over, 1.0 + 0.03 * round_, 1.0)
        left = problem.capacity - np.ceil(margin * (peak - resident))
        room = np.where(over, np.minimum(room, left), np.minimum(room, left) if careful else room)
        if (room < 0).any() or not repair_memory(instance, assignment, room, seed=seed + round_):
            return None
    return None


def _repair_peaks(
    problem: Problem, instance: PackingInstance, assignment: Ints, seed: int, watch: Stopwatch | None
) -> Ints | None:
    """Move one block at a time off an overfull device, if that lowers the excess of the judge's peaks."""
    rng = np.random.default_rng(seed)

    def measure_excess(trial: Ints) -> tuple[float, Longs]:
        peak = device_memory(problem, Placement(trial[problem.block]))[1]
        short = np.maximum(peak - problem.capacity, 0.0)
        return float(short.sum()), np.flatnonzero(short).astype(np.int64)

    least, over = measure_excess(assignment)
    for _ in range(MEASURED):
        if not least:
            return assignment[problem.block]
        if watch is not None and watch.out:
            return None
        block = int(rng.choice(np.flatnonzero(np.isin(assignment, over))))
        others = np.flatnonzero(instance.runs[block] & (np.arange(problem.n_devices) != assignment[block]))
        if not len(others):
            continue
        trial = assignment.copy()
        trial[block] = rng.choice(others)
        if rng.random() < 0.3:
            swapped = np.flatnonzero((assignment == trial[block]) & instance.runs[:, assignment[block]])
            if len(swapped):
                trial[rng.choice(swapped)] = assignment[block]
        excess, where = measure_excess(trial)
        if excess <= least:
            assignment, least, over = trial, excess, where
    return None
