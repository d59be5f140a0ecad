"""What moves of blocks between devices need to know: `native/latency_search/move_space.hpp`."""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, distinct, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import compute_footprint, may_run
from placewise.placers.shared.priors import empty_priors


def build_move_space(problem: Problem, priors: Floats | None = None) -> _native.MoveSpace:
    """The blocks of a problem, and the probabilities of their devices if there are any.

    Where hosts run everything at once and are not limited, any of them does; only the first is offered, if all may
    run the same.
    """
    n, graph = problem.n_blocks, problem.graph
    held, allowed = compute_footprint(problem, problem.block, n), may_run(problem, problem.block, n)
    by_storage = np.argsort(held.storage, kind="stable")
    tail = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    made = tail >= 0
    one, other = problem.block[tail[made]].astype(np.int64), problem.block[graph.consumers[made]].astype(np.int64)
    pairs = distinct(np.concatenate((one * n + other, other * n + one))[np.concatenate((one != other, other != one))])
    return _native.MoveSpace(
        allowed=frozen(allowed, np.bool_),
        devices=frozen(list_offered_devices(problem, allowed), np.int32),
        capacity=frozen(problem.capacity, np.float64),
        state_bytes=frozen(held.state, np.int64),
        storage_bytes=frozen(held.stored, np.int64),
        storage_offsets=frozen(offsets_of(held.group, n), np.int64),
        storages=frozen(held.storage, np.int32),
        user_offsets=frozen(offsets_of(held.storage[by_storage], len(held.stored)), np.int64),
        users=frozen(held.group[by_storage], np.int32),
        neighbour_offsets=frozen(offsets_of(pairs // max(n, 1), n), np.int64),
        neighbours=frozen(pairs % max(n, 1), np.int32),
        priors=frozen(empty_priors(problem.n_devices) if priors is None else priors, np.float64),
    )


def list_offered_devices(problem: Problem, allowed: Bools) -> Ints:
    """The devices worth choosing from; see `movable`."""
    hosts = np.flatnonzero(problem.cluster.is_host)
    devices: Ints = np.arange(problem.n_devices, dtype=np.int32)
    if problem.objective.execution != "subgraph" or not len(hosts) or np.isfinite(problem.capacity[hosts]).any():
        return devices
    seconds = problem.costs.op_seconds[:, hosts]
    same = (seconds == seconds[:, :1]).all() and (allowed[:, hosts] == allowed[:, hosts[:1]]).all()
    return devices[~np.isin(devices, hosts[1:])] if same and not problem.constraints.shaped else devices
