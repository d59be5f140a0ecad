"""max_load_dp: the best pipeline for throughput, taken as it is for latency.

The "max-load split" baseline of Tarnawski et al., NeurIPS 2020: ops are split contiguously so that the largest load
of a device is least, as the dynamic program over ideals does, and the judge then says what the split means for one
sample: it is cut into calls, or pieces, or scheduled. Many splits have the least max-load, and which of them the
published program returns depends on its inner order: values can differ from those that were published.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import (
    PlacerInfo,
    Progress,
    SearchContext,
    run_placer,
)
from placewise.placers.registry import create
from placewise.placers.shared.rules import broken
from placewise.simulate import Evaluator

SPLITTERS = ("dp", "dpl")
"""The first that can take the problem splits it."""


class MaxLoadDpPlacer:
    """A baseline: what is best for a stream of samples is seldom best for one, and says how much there is to gain."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="max_load_dp",
        summary="the best contiguous pipeline, judged by latency",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), the max-load split baseline for latency",
        objectives=frozenset({"latency"}),
    )

    def supports(self, problem: Problem) -> str | None:
        if problem.objective.kind != "latency":
            return "max_load_dp is a baseline for latency: for throughput it is dp itself"
        pipeline = _pipeline(problem)
        refusals = [create(name).supports(pipeline) for name in SPLITTERS]
        return None if None in refusals else refusals[0]

    def propose(self, search: SearchContext) -> Proposal:
        """The split, or words that say why there is none; its bound is one for throughput and left out."""
        problem = search.problem
        pipeline, watch = _pipeline(problem), search.watch
        splitter = next(placer for placer in map(create, SPLITTERS) if placer.supports(pipeline) is None)
        found = run_placer(splitter, pipeline, watch.rest(), on_progress=lambda state: search.on_progress(_own(state)))
        if found.placement is None:
            infeasible = found.infeasible if problem.constraints.contiguous else ""
            notes = (*found.notes, *((found.infeasible,) if found.infeasible and not infeasible else ()))
            return Proposal(None, None, Reason.PROVED if infeasible else found.reason, notes, infeasible)
        device = found.placement.device
        why_not = broken(problem, device)
        if not why_not and not np.isfinite(Evaluator(problem, threads=1)(device[None])[0]):
            why_not = "its calls wait for each other in a circle"
        if why_not:
            return Proposal(None, None, found.reason, (*found.notes, f"the split will not do for latency: {why_not}"))
        return Proposal(Placement(device), None, found.reason, found.notes)


def _own(state: Progress) -> Progress:
    """The splitter's sign of life as one of this placer: its value and bound are those of another objective."""
    return Progress("max_load_dp", state.seconds, state.message)


def _pipeline(problem: Problem) -> Problem:
    """The same problem for max-load, contiguous, every transfer part of the load: the published rule."""
    return problem.with_(
        objective=Objective("throughput", communication="blocking", memory=problem.objective.memory),
        constraints=replace(problem.constraints, contiguous=True, convex=False, replicas=1),
    )
