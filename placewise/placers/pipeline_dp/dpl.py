"""dpl: the best split of one line of ops, by the published linearized dynamic program.

Tarnawski et al., NeurIPS 2020, section 5: a Hamiltonian path along a depth-first topological order is added to
the graph, so that n components have n + 1 ideals; then the dynamic program of `dp` runs. Quick on any graph;
exact where the order is the only one, as on a chain, and near-optimal on networks that are almost chains. It
proves nothing. For direct transfers each tensor is charged once, at its quickest link, as in `dp`.
"""

from __future__ import annotations

from typing import ClassVar

from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import (
    PlacerInfo,
    SearchContext,
)
from placewise.placers.pipeline_dp.topological_orders import last_ready_first, propose_along, unsuited
from placewise.placers.shared.memory_footprint import unmet
from placewise.simulate.contiguity import contract


class DplPlacer:
    """One topological order, split at best under memory, colocation and unequal devices."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="dpl",
        summary="the best pipeline along one depth-first order of the ops",
        source="Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423), section 5, linearized",
        objectives=frozenset({"throughput"}),
    )

    def supports(self, problem: Problem) -> str | None:
        return unsuited(problem, "dpl")

    def propose(self, search: SearchContext) -> Proposal:
        """The best split of the line, or words that say why there is none; hints are not needed."""
        problem = search.problem
        graph = contract(problem)
        missing = unmet(problem, graph.component, graph.n) if problem.constraints.contiguous else ""
        if missing:
            return Proposal(None, reason=Reason.PROVED, infeasible=missing)
        return propose_along(search, graph, last_ready_first(problem, graph), "dpl")
