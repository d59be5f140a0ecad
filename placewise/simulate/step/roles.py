"""What each op of a training graph does in a step: forward, backward, gradients of weights only, or the update."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Bytes8, frozen
from placewise.model.problem import Problem, cached_per_problem
from placewise.simulate.step.orders import BACKWARD, FORWARD, WEIGHT

UPDATE = 3
"""The role of the optimizer's ops, which run once per step."""
OPTIMIZER = "optimizer::"
SUMS = ("Add", "Sum")
"""Kinds of op that add up the gradients of a weight with several uses."""


@cached_per_problem
def op_roles(problem: Problem) -> Bytes8:
    """FORWARD, BACKWARD, WEIGHT or UPDATE [n_ops].

    A backward op is WEIGHT if all that it makes becomes gradients of weights: each reader is an update, or is WEIGHT
    itself and in the same colocation group, or adds up the gradients of a weight. An op that makes both kinds of
    gradients is BACKWARD; so is every backward op of a graph without updates.
    """
    graph = problem.graph
    kinds = graph.ops.kind
    updates = np.array([kind.startswith(OPTIMIZER) for kind in kinds.values], np.bool_)[kinds.codes]
    sums = np.array([kind in SUMS for kind in kinds.values], np.bool_)[kinds.codes]
    roles = np.where(updates, UPDATE, np.where(graph.ops.backward, BACKWARD, FORWARD)).astype(np.int8)
    group, first, readers = graph.ops.group, graph.consumer_offsets, graph.consumers
    for op in np.flatnonzero(roles == BACKWARD)[::-1].tolist():
        low, high = graph.out_offsets[op], graph.out_offsets[op + 1]
        read = readers[first[low] : first[high]]
        adds = (group[read] == group[op]) | sums[read]
        if len(read) and ((roles[read] == UPDATE) | ((roles[read] == WEIGHT) & adds)).all():
            roles[op] = WEIGHT
    return frozen(roles, np.int8)
