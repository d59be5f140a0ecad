"""Calls of a placement in `subgraph` execution: whether the fewest of them run, and calls that always do."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import Evaluator
from placewise.simulate.check.check import check_coverage


def circles(problem: Problem, device: Ints) -> bool:
    """Whether the calls of a placement [n_ops] wait for each other in a circle, in `subgraph` execution."""
    if problem.objective.kind != "latency" or problem.objective.execution != "subgraph":
        return False
    return not np.isfinite(Evaluator(problem, threads=1)(device[None])[0])


def runnable(problem: Problem, placement: Placement) -> Placement:
    """The placement; with an op per call, in the order of the ops, where fewer calls would wait in a circle."""
    if placement.call is not None or check_coverage(problem, placement) or not circles(problem, placement.device):
        return placement
    return Placement(placement.device, call=np.arange(len(placement), dtype=np.int32), order=placement.order)
