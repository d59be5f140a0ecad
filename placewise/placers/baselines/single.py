"""single: everything on the best single device, the baseline that every split must beat."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.rules import find_broken_rule


class SinglePlacer:
    """The device on which the whole model runs best; ops that it may not run go where they run best."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="single", summary="everything on the best single device", source="the baseline of every placement paper"
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best device that may run and hold everything, or a note of why there is none.

        If no device may run every op, the ops that it may not run are placed elsewhere.
        """
        problem = search.problem
        whole = [d for d in _list_representatives(problem) if problem.allowed[:, d].all()]
        candidates = [np.full(problem.n_ops, d, np.int32) for d in whole]
        if not whole:
            candidates = [
                c for c in (_prefer_device(problem, d) for d in _list_representatives(problem)) if c is not None
            ]
        reasons = [find_broken_rule(problem, device) for device in candidates]
        valid = [device for device, reason in zip(candidates, reasons, strict=True) if not reason]
        if not valid:
            why = reasons[0] if reasons else "some group of ops may run nowhere"
            return Proposal(None, notes=(f"no single device can hold the model: {why}",))
        values = search.price(np.stack(valid))
        best = valid[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
        return Proposal(Placement(best), notes=() if whole else (_describe_moved(problem, best),))


def _list_representatives(problem: Problem) -> list[int]:
    """The first device of each class of interchangeable devices, if it may run anything."""
    kind = interchangeable(problem)
    return [d for d in range(problem.n_devices) if kind[d] == d and (problem.allowed[:, d].any() or not problem.n_ops)]


def _prefer_device(problem: Problem, device: int) -> Ints | None:
    """Every block on `device` if it may run there, else on the quickest that may run it; None if there is none."""
    allowed = may_run(problem, problem.block, problem.n_blocks)
    if not allowed.any(axis=1).all():
        return None
    seconds = np.where(allowed, 0.0, np.inf)
    np.add.at(seconds, problem.block, np.where(problem.allowed, problem.costs.op_seconds, 0.0))
    assignment = np.where(allowed[:, device], device, seconds.argmin(axis=1)).astype(np.int32)
    return assignment[problem.block]


def _describe_moved(problem: Problem, device: Ints) -> str:
    counts = np.bincount(device, minlength=problem.n_devices)
    main = int(counts.argmax())
    others = ", ".join(f"{counts[d]} on {problem.cluster.names[d]}" for d in np.flatnonzero(counts) if d != main)
    return f"no device may run every op: {others}, the rest on {problem.cluster.names[main]}"
