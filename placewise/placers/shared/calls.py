"""Calls in `subgraph` execution: whether the calls of a placement deadlock, and calls that never do."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import Evaluator
from placewise.simulate.check.check import check_coverage


def has_deadlocked_calls(problem: Problem, device: Ints) -> bool:
    """Whether, in `subgraph` execution, the calls of a placement [n_ops] wait for each other in a cycle."""
    if problem.objective.kind != "latency" or problem.objective.execution != "subgraph":
        return False
    return not np.isfinite(Evaluator(problem, threads=1)(device[None])[0])


def make_runnable(problem: Problem, placement: Placement) -> Placement:
    """The placement; with one call per op, in the order of the ops, if fewer calls would deadlock."""
    if placement.call is not None or check_coverage(problem, placement):
        return placement
    if not has_deadlocked_calls(problem, placement.device):
        return placement
    return Placement(placement.device, call=np.arange(len(placement), dtype=np.int32), order=placement.order)
