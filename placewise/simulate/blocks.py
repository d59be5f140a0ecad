"""Sums over blocks (colocation groups) and classes of equal devices, for bounds and exact methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Floats, Ints, Longs, distinct, firsts_of, frozen, sealed
from placewise.model.graph import Graph
from placewise.model.problem import Problem, cached_per_problem

SMALL = 1e-4
"""Weights with a smaller share of all bytes, such as constants, are not reported as copied."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceClasses:
    """Classes of devices with equal costs, rules and capacity: `of` [n_devices] is the class of each device."""

    of: Ints
    count: Longs  # [n_classes]
    example: Longs  # [n_classes] the first device of each


class OpTimes(NamedTuple):
    """Seconds of ops [n_columns, n_ops], inf where one may not run, and the column of each device [n_devices]."""

    seconds: Floats
    of: Ints


@cached_per_problem
def op_times(problem: Problem) -> OpTimes:
    """The distinct columns of `op_seconds`; with many equal devices there are few, which are quicker to sum."""
    seconds = problem.costs.op_seconds
    if not problem.allowed.all():
        seconds = np.where(problem.allowed, seconds, np.inf)
    of, first = np.full(problem.n_devices, -1, np.int32), list[int]()
    while (of < 0).any():
        left = np.flatnonzero(of < 0)
        equal = (seconds if len(first) == 0 else seconds[:, left]) == seconds[:, left[:1]]
        of[left[equal.all(axis=0)]] = len(first)
        first.append(int(left[0]))
    return OpTimes(sealed(np.ascontiguousarray(seconds[:, first].T)), frozen(of, np.int32))


def best_seconds(problem: Problem, devices: Longs) -> Floats:
    """The least seconds of each op [n_ops] on any of some devices; inf where none of them may run it."""
    times = op_times(problem)
    least: Floats = times.seconds[np.unique(times.of[devices])].min(axis=0, initial=np.inf)
    return least


def device_classes(problem: Problem) -> DeviceClasses:
    """Equal devices: the same times, the same allowed ops, capacity, streams and links to the host."""
    cluster, host, columns = problem.cluster, problem.n_devices, op_times(problem)
    keys: dict[tuple[float, ...], int] = {}
    of = []
    for d, device in enumerate(cluster):
        place = cluster.location[d]
        marks = (
            problem.capacity[d], device.streams, device.call_overhead, cluster.is_host[d],
            cluster.link_class[place, host], cluster.link_class[host, place],
        )  # fmt: skip
        of.append(keys.setdefault((*marks, int(columns.of[d])), len(keys)))
    classes = np.array(of, np.int32)
    _, example, count = np.unique(classes, return_index=True, return_counts=True)
    return DeviceClasses(classes, count, example)


def block_firsts(problem: Problem) -> Longs:
    """The first op of each block [n_blocks]."""
    return firsts_of(problem.block)


def block_sums(problem: Problem, values: Floats) -> Floats:
    """Σ of a column over the ops of each block [n_blocks]."""
    if problem.n_blocks == problem.n_ops:
        return values.astype(np.float64)
    return np.bincount(problem.block, weights=values, minlength=problem.n_blocks).astype(np.float64)


def block_seconds(problem: Problem, devices: Longs) -> Floats:
    """Time of each block on chosen devices [n_blocks, len(devices)]; inf where a member may not run."""
    times = op_times(problem)
    columns = {column: block_sums(problem, times.seconds[column]) for column in np.unique(times.of[devices]).tolist()}
    return np.stack([columns[column] for column in times.of[devices].tolist()], axis=1)


@cached_per_problem
def block_bytes(problem: Problem) -> Floats:
    """Resident bytes of each block [n_blocks] on any device; weights tied inside it count once."""
    return _resident(problem, np.ones_like)


def storage_bytes(graph: Graph) -> Floats:
    """Bytes of each weight storage; tied weights share one."""
    size = np.zeros(int(graph.weights.storage.max(initial=-1)) + 1)
    np.maximum.at(size, graph.weights.storage.astype(np.intp), graph.weights.bytes.astype(np.float64))
    return size


def held_storages(graph: Graph, owner: Ints) -> tuple[Longs, Longs]:
    """The storages of weights that the ops of each `owner` [n_ops] use: distinct pairs, sorted by owner."""
    count = max(int(graph.weights.storage.max(initial=-1)) + 1, 1)
    used = graph.weights.storage[graph.weight_edges.value]
    pairs = distinct(owner[graph.weight_edges.consumer].astype(np.int64) * count + used)
    holder = pairs // count
    return holder, pairs - holder * count  # a remainder takes eight times as long


def held_by_several(problem: Problem, device: Ints) -> tuple[str, ...]:
    """The weights that several devices hold because their ops use them; not those below `SMALL`."""
    graph, size = problem.graph, storage_bytes(problem.graph)
    several = np.bincount(held_storages(graph, device)[1], minlength=len(size)) > 1
    copied = np.flatnonzero(several & (size >= SMALL * size.sum())).tolist()
    return tuple(graph.weights.name[int(np.argmax(graph.weights.storage == which))] for which in copied)


@cached_per_problem
def _storages_of_blocks(problem: Problem) -> tuple[Longs, Longs]:
    return held_storages(problem.graph, problem.block)


def _resident(problem: Problem, sharers: Callable[[Longs], npt.NDArray[Any]]) -> Floats:
    """State and weights of each block; `sharers` gives the divisor of the bytes of each (block, storage) pair."""
    graph = problem.graph
    total = block_sums(problem, graph.ops.state_bytes.astype(np.float64))
    block, held = _storages_of_blocks(problem)
    total += np.bincount(block, weights=storage_bytes(graph)[held] / sharers(held), minlength=len(total))
    total.flags.writeable = False
    return total


@cached_per_problem
def unshared_bytes(problem: Problem) -> Floats:
    """Resident bytes of each block [n_blocks] whose sum over any set of blocks never exceeds the set's need.

    A storage that several blocks use is split evenly among them.
    """
    return _resident(problem, lambda storage: np.bincount(storage)[storage])
