"""dp: the best contiguous pipeline by dynamic programming, over ideals or along one order of the ops.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, section 5. Three
methods:

"ideals" is exact; see `ideals_dp`.

"line" is the published linearized program (DPL): a Hamiltonian path along a depth-first topological order is added to
the graph, so that n components have n + 1 ideals. It is quick on any graph, exact if the order is the only one, as on a
chain, and near-optimal on networks that are almost chains. It proves nothing. For direct transfers each tensor is
charged once, at its quickest link, as with "ideals".

"max_load" is the "max-load split" baseline for latency: the pipeline with the least max-load, by "ideals", judged by
its latency. Many pipelines share the least max-load, and which of them the published program returns depends on its
inner order, so values may differ from the published ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, Progress, SearchContext, run_placer
from placewise.placers.pipeline_dp.ideals_dp import bound_hints, propose_over_ideals
from placewise.placers.pipeline_dp.topological_orders import explain_refusal, propose_split, sort_last_ready_first
from placewise.placers.shared.memory_footprint import find_unplaceable_group
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import contract

Method = Literal["ideals", "line", "max_load"]

_INFO = {
    "ideals": PlacerInfo(
        name="dp",
        summary="the best contiguous pipeline, proved, by dynamic programming over ideals",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5",
        exact=True,
        objectives=frozenset({"throughput"}),
        replicates=True,
    ),
    "line": PlacerInfo(
        name="dpl",
        summary="the best pipeline along one depth-first order of the ops",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5, linearized",
        objectives=frozenset({"throughput"}),
    ),
    "max_load": PlacerInfo(
        name="max_load_dp",
        summary="the best contiguous pipeline, judged by latency",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), the max-load split baseline for latency",
        objectives=frozenset({"latency"}),
    ),
}


@dataclass(frozen=True, slots=True)
class DpOptions:
    """`max_ideals`: with more ideals, many orders of the components are split instead, under a relaxed bound.

    With 0 only this bound is proved, and no placement is proposed.

    `proof_share`: where a portfolio gives this placer a part of its time, the share of all that is left which a proof
    over at most 20,000 ideals may take instead.

    `method`: "ideals", "line" (the placer `dpl`) or, for latency, "max_load" (the placer `max_load_dp`).
    """

    max_ideals: int = 1_000_000
    method: Method = "ideals"
    proof_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.proof_share <= 1:
            raise PlacerError(f"dp does not support proof_share={self.proof_share}", remedy="give a share from 0 to 1")


class DpPlacer:
    """The dynamic program over ideals or, if ideals are too many or time is too short, the best split of an order."""

    Options: ClassVar[type[DpOptions]] = DpOptions

    def __init__(self, options: DpOptions | None = None) -> None:
        self.options = options or DpOptions()
        self.info = _INFO[self.options.method]

    def supports(self, problem: Problem) -> str | None:
        if self.options.method != "max_load":
            return explain_refusal(problem, self.info.name)
        if problem.objective.kind != "latency":
            return f"{self.info.name} is a baseline for latency: for throughput it is dp itself"
        return explain_refusal(_as_pipeline(problem), self.info.name)

    def propose(self, search: SearchContext) -> Proposal:
        """The best pipeline, with its proof if there is one, or a note of why there is none. Hints are ignored."""
        problem = search.problem
        if self.options.method == "max_load":
            return self._propose_max_load(search)
        graph = contract(problem)
        infeasible = find_unplaceable_group(problem, graph.component, graph.n) if problem.constraints.contiguous else ""
        if infeasible:
            return Proposal(None, reason=Reason.PROVED, infeasible=infeasible)
        if self.options.method == "ideals" and not self.options.max_ideals:
            return bound_hints(search, graph)
        if self.options.method == "line":
            return propose_split(search, graph, sort_last_ready_first(problem, graph), self.info.name)
        share = self.options.proof_share
        return propose_over_ideals(search, graph, self.options.max_ideals, self.info.name, proof_share=share)

    def _propose_max_load(self, search: SearchContext) -> Proposal:
        """The pipeline with the least max-load. Its bound and its progress are in max-load and are left out."""
        problem = search.problem

        def report(state: Progress) -> None:
            search.on_progress(Progress(self.info.name, state.seconds, state.message))

        splitter = DpPlacer(DpOptions(self.options.max_ideals))
        pipeline = run_placer(splitter, _as_pipeline(problem), search.watch.rest(), on_progress=report)
        if pipeline.placement is None:
            infeasible = pipeline.infeasible if problem.constraints.contiguous else ""
            notes = (*pipeline.notes, *((pipeline.infeasible,) if pipeline.infeasible and not infeasible else ()))
            return Proposal(None, None, Reason.PROVED if infeasible else pipeline.reason, notes, infeasible)
        device = pipeline.placement.device
        fault = find_broken_rule(problem, device)
        if not fault and not np.isfinite(Evaluator(problem, threads=1)(device[None])[0]):
            fault = "its calls wait for each other in a cycle"
        if fault:
            return Proposal(
                None, None, pipeline.reason, (*pipeline.notes, f"the split is no placement for latency: {fault}")
            )
        return Proposal(Placement(device), None, pipeline.reason, pipeline.notes)


def _as_pipeline(problem: Problem) -> Problem:
    """The same problem for max-load, contiguous, with every transfer part of the load: the published rule."""
    return problem.with_(
        objective=Objective("throughput", communication="blocking", memory=problem.objective.memory),
        constraints=replace(problem.constraints, contiguous=True, convex=False, replicas=1),
    )
