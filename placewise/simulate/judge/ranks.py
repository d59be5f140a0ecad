"""Mean costs and upward ranks, the priorities of list schedulers."""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.model.columns import Floats
from placewise.model.problem import Problem, once
from placewise.simulate.problem_arrays import ProblemArrays, native_problem


def upward_ranks(problem: Problem, a: ProblemArrays) -> Floats:
    """Longest remaining path from each op [n_ops], itself included, at mean cost (HEFT, Topcuoglu et al. 2002).

    Mean over the devices that may run the op, and over ordered pairs of different devices for a transfer.
    """
    return _native.upward_ranks(native_problem(a), mean_op_seconds(problem), mean_transfer_seconds(problem))


def downward_ranks(problem: Problem, a: ProblemArrays) -> Floats:
    """Longest path to each op [n_ops], itself not included, at the same mean costs."""
    return _native.downward_ranks(native_problem(a), mean_op_seconds(problem), mean_transfer_seconds(problem))


@once
def mean_op_seconds(problem: Problem) -> Floats:
    """Mean time of each op [n_ops] over the devices that may run it; 0 where none may."""
    times = np.where(problem.allowed, problem.costs.op_seconds, 0.0)
    mean: Floats = _row_sums(times) / np.maximum(problem.allowed.sum(axis=1), 1)
    return mean


@once
def mean_transfer_seconds(problem: Problem) -> Floats:
    """Mean time of each tensor [n_tensors] over ordered pairs of different devices (0 on a single device)."""
    cluster = problem.cluster
    host, weight = len(cluster), np.zeros(len(cluster.class_bandwidth))
    for source in range(host):
        for target in range(host):
            if source == target:
                continue
            here, there = cluster.location[source], cluster.location[target]
            hops = ((here, host), (host, there)) if cluster.transfers == "staged" else ((here, there),)
            for hop in hops:
                weight[cluster.link_class[hop]] += 1
    return _row_sums(problem.costs.transfer_seconds * (weight / max(host * (host - 1), 1)))


def _row_sums(table: Floats) -> Floats:
    """Sums of rows, column after column: every machine rounds alike, and equal ranks are equal everywhere."""
    total = np.zeros(len(table))
    for column in table.T:
        total += column
    return total
