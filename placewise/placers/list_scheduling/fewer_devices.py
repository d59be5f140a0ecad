"""Placement on fewer devices: a problem in which only the best devices are available."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import may_run
from placewise.simulate.blocks import unshared_bytes
from placewise.simulate.judge.ranks import mean_op_seconds


def keep_best_devices(problem: Problem, devices: int) -> Problem:
    """The same problem on the first `devices` devices by `rank_devices`; 0: on all.

    If some block may run on none of them, or if together they hold too little, the next devices that help are kept as
    well, hosts first.
    """
    if not 0 < devices < problem.n_devices:
        return problem
    order, host = rank_devices(problem), problem.cluster.is_host
    runs = may_run(problem, problem.block, problem.n_blocks)
    others = sorted(order[devices:].tolist(), key=lambda d: not host[d])
    kept = np.zeros(problem.n_devices, np.bool_)
    kept[order[:devices]] = True
    needed = float(unshared_bytes(problem).sum())
    for d in others:
        homeless = ~runs[:, kept].any(axis=1)
        if homeless.any() or float(problem.capacity[kept].sum()) < needed:
            kept[d] |= bool(runs[homeless, d].any()) or not homeless.any()
    kept_devices = tuple(
        device if keep else replace(device, available=False)
        for device, keep in zip(problem.cluster, kept.tolist(), strict=True)
    )
    return problem.with_(cluster=replace(problem.cluster, devices=kept_devices))


def rank_devices(problem: Problem) -> Ints:
    """The devices [n_devices]: accelerators before hosts, then by the number of ops that they may run, then by speed.

    Ties go to the device to which the devices before it send in the least time.
    """
    cluster, hop = problem.cluster, _sum_link_seconds(problem)
    pace = _sum_op_seconds(problem)
    able = problem.allowed.sum(axis=0)
    order: list[int] = []
    while len(order) < problem.n_devices:
        left = (d for d in range(problem.n_devices) if d not in order)
        order.append(min(left, key=lambda d: (cluster.is_host[d], -able[d], pace[d], hop[order, d].sum(), d)))
    return np.array(order, np.int32)


def _sum_op_seconds(problem: Problem) -> Floats:
    """Seconds [n_devices] of all ops on each device; an op that it may not run counts with its mean over the others."""
    mean = mean_op_seconds(problem)
    return np.array(
        [np.where(problem.allowed[:, d], problem.costs.op_seconds[:, d], mean).sum() for d in range(problem.n_devices)]
    )


def _sum_link_seconds(problem: Problem) -> Floats:
    """Seconds [n_devices, n_devices] of sending every tensor from one device to another."""
    cluster, host = problem.cluster, problem.n_devices
    total = problem.costs.transfer_seconds.sum(axis=0)
    source, target = cluster.location[:, None], cluster.location[None, :]
    if cluster.transfers == "direct":
        hops: Floats = total[cluster.link_class[source, target]]
    else:
        hops = total[cluster.link_class[source, host]] + total[cluster.link_class[host, target]]
    return np.where(source == target, 0.0, hops)
