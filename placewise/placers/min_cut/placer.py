"""min_cut: placements by minimum cuts, with lower bounds for latency.

Two methods, by the execution of the objective. In `sequential` execution on the host and one other device, the best
placement is a minimum cut (`two_device_cut`). In `subgraph` execution a path through the model is cut into calls
(`paths`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.min_cut.paths import explain_path_refusal, propose_path_cut
from placewise.placers.min_cut.two_device_cut import explain_cut_refusal, propose_two_device_cut

Method = Literal["auto", "paths", "two_way"]

_INFO = {
    "auto": PlacerInfo(
        name="min_cut",
        summary="minimum cuts between two devices that take turns, or along a path into calls, with a lower bound",
        source="Stone, IEEE Trans. Software Engineering SE-3 (1977), and dynamic programming over cuts along a path",
        exact=True,
        objectives=frozenset({"latency"}),
    ),
    "paths": PlacerInfo(
        name="paths",
        summary="the longest path, and chains beside it, cut into calls, with a lower bound",
        source="dynamic programming over minimum cuts along a path, for the latency of Tarnawski et al., NeurIPS 2020",
        exact=True,
        objectives=frozenset({"latency"}),
    ),
    "two_way": PlacerInfo(
        name="two_way",
        summary="the best placement on the host and one device that take turns, by a minimum cut",
        source="Stone, IEEE Trans. Software Engineering SE-3 (1977)",
        exact=True,
        objectives=frozenset({"latency"}),
    ),
}


@dataclass(frozen=True, slots=True)
class MinCutOptions:
    """`method`: "paths" for subgraph execution, "two_way" for sequential, "auto" by the execution of the problem."""

    method: Method = "auto"


class MinCutPlacer:
    """Quick, with a lower bound. Optimal where calls cost nothing and memory does not bind."""

    Options: ClassVar[type[MinCutOptions]] = MinCutOptions

    def __init__(self, options: MinCutOptions | None = None) -> None:
        self.options = options or MinCutOptions()
        self.info = _INFO[self.options.method]

    def supports(self, problem: Problem) -> str | None:
        return explain_cut_refusal(problem) if self._is_two_way(problem) else explain_path_refusal(problem)

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement behind a cut, and its bound; only the bound if the placement breaks a rule."""
        if self._is_two_way(search.problem):
            return propose_two_device_cut(search)
        return propose_path_cut(search, self.info.name)

    def _is_two_way(self, problem: Problem) -> bool:
        sequential = problem.objective.execution == "sequential"
        return self.options.method == "two_way" or (self.options.method == "auto" and sequential)
