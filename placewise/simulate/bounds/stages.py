"""A lower bound on pipelines of split stages: the least work of every unit over all devices, or one after the other.

`parallel_dp` proves more. Whatever the stages are, a device of a stage with d replicas over t devices each is busy for
Σ p / d, so that all devices together are busy for at least the least t · p of every unit.
"""

from __future__ import annotations

import numpy as np

from placewise.model.problem import Problem
from placewise.model.result import Bound

ROUNDING = 1e-12


def stages_bound(problem: Problem) -> Bound:
    """Seconds that no pipeline beats, by the fastest class of devices for every way."""
    ways = problem.require_ways()
    able = np.ones((ways.n_units, problem.n_devices), np.bool_)
    np.logical_and.at(able, ways.unit, problem.allowed)
    seconds = np.full(ways.n_ways, np.inf)
    for kind in range(ways.n_classes):
        can = np.logical_or.reduce(able[:, ways.device_class == kind], axis=1)
        seconds = np.minimum(seconds, np.where(can[ways.way_unit], ways.seconds[:, kind], np.inf))
    sums = problem.objective.kind == "latency"
    work = np.full(ways.n_units, np.inf)
    np.minimum.at(work, ways.way_unit, seconds if sums else seconds * ways.degree)
    if not np.isfinite(work).all():
        return Bound(0.0, "no bound: some unit may run nowhere")
    devices = 1 if sums else int((ways.device_class >= 0).sum())
    method = "sum of best times" if sums else "work over devices"
    return Bound(float(work.sum()) / max(devices, 1) * (1 - ROUNDING), method)
