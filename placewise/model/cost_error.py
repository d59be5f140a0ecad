"""How far off the costs of a placement may be, by where they come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.verdict import Uncertainty

ASSUMED = 0.15
"""Relative error of figures that follow from a device's data sheet, where it is not known how far off they are."""
MEASURED = 0.05
"""Relative error with measured op times and links, whatever their spread: the largest median error of the judge beside
runs of three models (benchmarks/results/real_prediction.md)."""
MOVED = "weights moved at every call"
"""The source of times in which a device is handed the weights of an op whenever it runs."""
OFFLOADED = "weights moved for prompts"
"""The source of times in which a device is handed the weights of an op for every micro-batch of a prompt."""
REREAD = "roofline by micro-batch"
"""The source of times in which a device reads the weights of an op for every micro-batch of a prompt."""
REWRITTEN = "roofline of llama.cpp's ops"
DENSE = "roofline of all experts"
"""The source of times of ops that llama.cpp computes otherwise than the graph says."""
_ESTIMATED = ("roofline", "assumed", REREAD, REWRITTEN, DENSE)


def expected_seconds(problem: Problem, value: float, used: int) -> float:
    """The seconds to expect of a plan on `used` devices whose value is `value`.

    More than one device, and latency: what plans that the costs chose took longer than the costs say is added.
    """
    corrected = used > 1 and problem.objective.kind == "latency"
    return value * (1 + problem.costs.runs.longer) if corrected else value


def estimate_error(problem: Problem, placed: Sequence[tuple[Placement, float]]) -> Uncertainty:
    """The error of the values of some placements, each with its seconds of transfers: the largest of theirs.

    That of one is the mean of the errors of its op and transfer times, weighted by seconds: errors of one source go
    the same way, so that none is taken to cancel another. Costs that are given have none.
    """
    errors = [_weigh(problem, placement, moved) for placement, moved in placed]
    share, source = max(errors, key=lambda found: found[0], default=(0.0, ""))
    return Uncertainty(share, source) if share > 0 else Uncertainty()


def describe_estimates(problem: Problem, placement: Placement, options: str = "") -> str:
    """That most of the time of a placement's ops is estimated and not measured here, with the command that measures it
    and its `options`; "" elsewhere.
    """
    costs, device = problem.costs, placement.device
    seconds = costs.seconds_on(device)
    estimated = costs.is_from(_ESTIMATED)[np.arange(len(device)), device]
    if float(seconds[estimated].sum()) <= float(seconds.sum()) / 2:
        return ""
    command = " ".join(filter(None, ["placewise profile MODEL -d DEVICES", options, "-o FILE"]))
    return (
        "predictions are estimates by the figures of the devices, not times of this machine: measure them with "
        f"{command}, and add --costs FILE"
    )


def _weigh(problem: Problem, placement: Placement, moved: float) -> tuple[float, str]:
    """The error of one placement, and the source of most of it."""
    costs, device = problem.costs, placement.device
    at = np.arange(len(device)), device
    seconds = np.where(np.isfinite(costs.op_seconds[at]), costs.op_seconds[at], 0.0)
    spent = np.zeros((len(costs.sources), problem.n_devices))
    np.add.at(spent, (costs.op_source[at], device), seconds)
    parts = defaultdict[str, float](float)
    for code, name in enumerate(costs.sources):
        for d in np.flatnonzero(spent[code]).tolist():
            error, source = _error_of(problem, name, d)
            parts[source] += error * float(spent[code, d])
    error, source = _error_of_transfers(problem)
    parts[source] += error * moved
    total = float(spent.sum()) + moved
    source = max(parts, key=lambda name: parts[name], default="")
    return (sum(parts.values()) / total if total > 0 else 0.0), source


def _error_of(problem: Problem, source: str, device: int) -> tuple[float, str]:
    """The relative error of the op times of one source on a device, and where that comes from."""
    fitted = problem.cluster.devices[device].error
    if source in _ESTIMATED and fitted:
        return max(fitted, MEASURED), "measured error of the devices' figures"
    if source in _ESTIMATED:
        return ASSUMED, "data sheets and assumed efficiencies"
    if source in (MOVED, OFFLOADED):
        return _error_of_transfers(problem)
    return _error_of_measured(problem) if source == "measured" else (0.0, "given")


def _error_of_transfers(problem: Problem) -> tuple[float, str]:
    """The relative error of transfer times, and where that comes from."""
    if problem.costs.transfer_source in _ESTIMATED:
        return ASSUMED, "assumed speeds of links"
    return _error_of_measured(problem) if problem.costs.transfer_source == "measured" else (0.0, "given")


def _error_of_measured(problem: Problem) -> tuple[float, str]:
    """The relative error of measured times, and where that comes from."""
    runs = problem.costs.runs
    if runs.plans and problem.objective.kind == "latency":
        errors = [(max(runs.error, MEASURED), f"runs of {runs.describe_plans()}")]
    else:
        errors = [(MEASURED, "usual with measured times"), (problem.costs.spread, "spread of the measured times")]
    return max((*errors, (runs.own_threads_error, "runs with the runtime's own threads")), key=itemgetter(0))
