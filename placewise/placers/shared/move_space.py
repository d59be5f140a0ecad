"""The move space of blocks and devices that local searches work on: `native/latency_search/move_space.hpp`."""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Ints, distinct, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import compute_footprint, may_run


def build_move_space(problem: Problem) -> _native.MoveSpace:
    """The move space of the blocks of a problem.

    If hosts run everything at once and have unlimited memory, they are equivalent, and only the first is offered.
    """
    n, graph = problem.n_blocks, problem.graph
    footprint, allowed = compute_footprint(problem, problem.block, n), may_run(problem, problem.block, n)
    by_storage = np.argsort(footprint.storage, kind="stable")
    tail = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    produced = tail >= 0
    one, other = (
        problem.block[tail[produced]].astype(np.int64),
        problem.block[graph.consumers[produced]].astype(np.int64),
    )
    pairs = distinct(np.concatenate((one * n + other, other * n + one))[np.concatenate((one != other, other != one))])
    return _native.MoveSpace(
        allowed=frozen(allowed, np.bool_),
        devices=frozen(list_offered_devices(problem, allowed), np.int32),
        capacity=frozen(problem.capacity, np.float64),
        state_bytes=frozen(footprint.state, np.int64),
        storage_bytes=frozen(footprint.stored, np.int64),
        storage_offsets=frozen(offsets_of(footprint.group, n), np.int64),
        storages=frozen(footprint.storage, np.int32),
        user_offsets=frozen(offsets_of(footprint.storage[by_storage], len(footprint.stored)), np.int64),
        users=frozen(footprint.group[by_storage], np.int32),
        neighbour_offsets=frozen(offsets_of(pairs // max(n, 1), n), np.int64),
        neighbours=frozen(pairs % max(n, 1), np.int32),
    )


def list_offered_devices(problem: Problem, allowed: Bools) -> Ints:
    """The devices that a block may be moved to; see `build_move_space`."""
    hosts = np.flatnonzero(problem.cluster.is_host)
    devices: Ints = np.arange(problem.n_devices, dtype=np.int32)
    if problem.objective.execution != "subgraph" or not len(hosts) or np.isfinite(problem.capacity[hosts]).any():
        return devices
    seconds = problem.costs.op_seconds[:, hosts]
    same = (seconds == seconds[:, :1]).all() and (allowed[:, hosts] == allowed[:, hosts[:1]]).all()
    return devices[~np.isin(devices, hosts[1:])] if same and not problem.constraints.shaped else devices
