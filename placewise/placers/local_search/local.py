"""local: anytime local search from the best placements known, by objective.

Throughput: simulated annealing of max-load (`throughput_annealing.py`). Latency: parallel tempering
(`latency_search.py`). Both run compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from placewise.errors import PlacerError
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.local_search.latency_search import search_latency
from placewise.placers.local_search.throughput_annealing import search_throughput


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """`rounds`, for throughput: rounds of annealing where the budget has no time limit.

    `searches`, for latency in `subgraph` and `sequential` execution: how many go on at once, each at its own
    temperature; in `operator` execution the size of the graph decides. `bound`, for latency: compute a lower bound too.
    """

    rounds: int = 6
    searches: int = 16
    bound: bool = True

    def __post_init__(self) -> None:
        for name, value in (("rounds", self.rounds), ("searches", self.searches)):
            if value < 1:
                raise PlacerError(f"local search cannot make {value} {name}", remedy="give 1 or more")


class LocalPlacer:
    """Anytime; never worse than its starting placements. Without a limit it does a fixed amount of work."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="local",
        summary="local search: groups of ops move between devices, annealed or tempered",
        source="simulated annealing: Kirkpatrick, Gelatt and Vecchi, Science 220 (1983); parallel tempering: Swendsen "
        "and Wang, Phys. Rev. Lett. 57 (1986); the moves are ours",
    )
    Options: ClassVar[type[LocalOptions]] = LocalOptions

    def __init__(self, options: LocalOptions | None = None) -> None:
        self.options = options or LocalOptions()

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement found; for latency with the best bound found."""
        options, name = self.options, self.info.name
        if search.problem.objective.kind == "throughput":
            return search_throughput(search, options.rounds, name)
        return search_latency(search, options.searches, name, find_bound=options.bound)


class TemperPlacer(LocalPlacer):
    """`local` for latency under its former name."""

    info: ClassVar[PlacerInfo] = replace(
        LocalPlacer.info,
        name="temper",
        summary="local search for latency, several temperatures at once",
        source="parallel tempering: Swendsen and Wang, Phys. Rev. Lett. 57 (1986)",
        objectives=frozenset({"latency"}),
    )

    def supports(self, problem: Problem) -> str | None:
        return None if problem.objective.kind == "latency" else "temper searches for latency, not throughput"
