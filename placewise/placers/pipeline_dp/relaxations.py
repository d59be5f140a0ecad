"""Other readings of a problem with direct transfers, for proposals only.

Where devices send to each other, what a stage pays depends on where its neighbours are, which the dynamic
program does not know. It charges the quickest link; that gives a bound, and stages that may turn out to talk
over a slow one. Charging the slowest link, or leaving the host devices or all nodes but one out, errs on the other
side: the judge tells which of the placements is best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from placewise.model.columns import Bools
from placewise.model.costs import CostTable
from placewise.model.problem import Problem, Rule
from placewise.placers.pipeline_dp.node_hierarchy import partitions


def readings(problem: Problem) -> Iterator[Problem]:
    """The same problem at its slowest links; without its host devices where the others can do it all; in one node.

    The node is the largest of each level of link speed, with the host devices.
    """
    if problem.cluster.transfers != "direct" or len(problem.cluster) < 2:
        return
    costs = problem.costs
    if costs.transfer_seconds.shape[1] > 2:
        slowest = np.repeat(costs.transfer_seconds.max(axis=1, keepdims=True), costs.transfer_seconds.shape[1], axis=1)
        slowest[:, 0] = 0.0
        table = CostTable(costs.op_seconds, slowest, costs.op_source, costs.sources, costs.transfer_source)
        yield problem.with_(costs=table)
    hosts = problem.cluster.is_host
    if hosts.any():
        yield from _without(problem, hosts)
    for node in partitions(problem):
        largest = np.bincount(node[node >= 0]).argmax()
        yield from _without(problem, (node != largest) & ~hosts)


def _without(problem: Problem, out: Bools) -> list[Problem]:
    """The problem that leaves some devices `out` [n_devices], if the others can do it all."""
    if not problem.allowed[:, ~out].any(axis=1).all():
        return []
    rules = tuple(Rule("", problem.cluster.names[d]) for d in np.flatnonzero(out))
    constraints = replace(problem.constraints, forbidden=(*problem.constraints.forbidden, *rules))
    return [problem.with_(constraints=constraints)]
