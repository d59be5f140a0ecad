"""Fewer devices than there are: a problem in which only the best ones may be used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import may_run
from placewise.simulate.blocks import unshared_bytes
from placewise.simulate.judge.ranks import mean_op_seconds


def checked(devices: int) -> int:
    """An option `devices`; raises PlacerError."""
    if devices < 0:
        raise PlacerError(f"the option 'devices' is {devices}", remedy="give a number of devices, 0 for all of them")
    return devices


def fewer(problem: Problem, devices: int) -> Problem:
    """The same problem on the first `devices` of the best order, and on what cannot be done without; 0: on all.

    Where some block may run on none of them, or all of them together hold too little, the next devices that help
    are kept as well, hosts first.
    """
    if not 0 < devices < problem.n_devices:
        return problem
    order, host = best_order(problem), problem.cluster.is_host
    runs = may_run(problem, problem.block, problem.n_blocks)
    spare = sorted(order[devices:].tolist(), key=lambda d: not host[d])
    kept = np.zeros(problem.n_devices, np.bool_)
    kept[order[:devices]] = True
    needed = float(unshared_bytes(problem).sum())
    for d in spare:
        homeless = ~runs[:, kept].any(axis=1)
        if homeless.any() or float(problem.capacity[kept].sum()) < needed:
            kept[d] |= bool(runs[homeless, d].any()) or not homeless.any()
    machines = tuple(
        device if keep else replace(device, available=False)
        for device, keep in zip(problem.cluster, kept.tolist(), strict=True)
    )
    return problem.with_(cluster=replace(problem.cluster, devices=machines))


def best_order(problem: Problem) -> Ints:
    """The devices [n_devices]: those that run most ops first, accelerators before hosts, the quickest before the slow.

    Of devices that are as quick the one is next to which those before it send in the least time.
    """
    cluster, hop = problem.cluster, _hops(problem)
    pace = _paces(problem)
    able = problem.allowed.sum(axis=0)
    order: list[int] = []
    while len(order) < problem.n_devices:
        left = (d for d in range(problem.n_devices) if d not in order)
        order.append(min(left, key=lambda d: (cluster.is_host[d], -able[d], pace[d], hop[order, d].sum(), d)))
    return np.array(order, np.int32)


def _paces(problem: Problem) -> Floats:
    """Seconds [n_devices] of all ops on each device, at the mean of the others where it may not run one."""
    mean = mean_op_seconds(problem)
    return np.array(
        [np.where(problem.allowed[:, d], problem.costs.op_seconds[:, d], mean).sum() for d in range(problem.n_devices)]
    )


def _hops(problem: Problem) -> Floats:
    """Seconds [n_devices, n_devices] of sending every tensor from one device to another."""
    cluster, host = problem.cluster, problem.n_devices
    total = problem.costs.transfer_seconds.sum(axis=0)
    source, target = cluster.location[:, None], cluster.location[None, :]
    if cluster.transfers == "direct":
        hops: Floats = total[cluster.link_class[source, target]]
    else:
        hops = total[cluster.link_class[source, host]] + total[cluster.link_class[host, target]]
    return np.where(source == target, 0.0, hops)
