"""Mean costs and upward ranks, the priorities of list schedulers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, sealed
from placewise.model.problem import Problem, cached_per_problem
from placewise.simulate.blocks import op_times
from placewise.simulate.problem_arrays import native_problem

RANK_BITS = 40


@cached_per_problem
def upward_ranks(problem: Problem) -> Floats:
    """Longest remaining path from each op [n_ops], itself included, at mean cost (HEFT, Topcuoglu et al. 2002).

    Mean over the devices that may run the op, and over ordered pairs of different devices for a transfer.
    """
    native, seconds = native_problem(problem), mean_op_seconds(problem)
    return sealed(_native.upward_ranks(native, seconds, mean_transfer_seconds(problem)))


@cached_per_problem
def downward_ranks(problem: Problem) -> Floats:
    """Longest path to each op [n_ops], itself not included, at the same mean costs."""
    native, seconds = native_problem(problem), mean_op_seconds(problem)
    return sealed(_native.downward_ranks(native, seconds, mean_transfer_seconds(problem)))


def round_ranks(rank: Floats) -> Floats:
    """Ranks [n_ops] as whole numbers of steps: equal sums stay equal, however floating point rounds their terms.

    A step is 2^-40 of the least power of two above the largest rank.
    """
    _, exponent = np.frexp(rank.max(initial=0.0))
    return np.rint(np.ldexp(rank, RANK_BITS - int(exponent)))


@cached_per_problem
def mean_op_seconds(problem: Problem) -> Floats:
    """Mean time of each op [n_ops] over the devices that may run it; 0 where none may."""
    times = op_times(problem)
    runs = np.isfinite(times.seconds)
    seconds = np.where(runs, times.seconds, 0.0)
    return _sum_columns(seconds, times.of) / np.maximum(np.bincount(times.of) @ runs, 1.0)


@cached_per_problem
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
    total = np.zeros(problem.graph.n_tensors)
    for k, share in enumerate((weight / max(host * (host - 1), 1)).tolist()):
        total += problem.costs.transfer_seconds[:, k] * share
    return total


def _sum_columns(columns: Floats, which: Iterable[int]) -> Floats:
    """The sum of some columns [n_columns, n], one after the other, so that every machine rounds alike."""
    total = np.zeros(columns.shape[1])
    for column in which:
        total += columns[column]
    return total
