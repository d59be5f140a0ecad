"""windows: large-neighbourhood search. Part of a good placement is freed and solved exactly, again and again.

The search starts from the hints and a short local search, and accepts every solution that the judge prices no higher.
For latency CP-SAT solves the windows (`latency_windows.py`), for throughput placers of the registry do
(`throughput_windows.py`). Windows grow while the solver finishes early and shrink where it does not. Several are solved
at once, in threads. Shaw, CP 1998 (large-neighbourhood search).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

from placewise.errors import PlacerError
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.large_neighbourhood.throughput_windows import ThroughputWindows
from placewise.placers.shared.schedule_models.incumbent import find_incumbent

_LATENCY = "placewise.placers.large_neighbourhood.latency_rounds"
MAX_OPS = 3000


@dataclass(frozen=True, slots=True)
class WindowsOptions:
    """`size`: groups in the first windows; `together`: windows solved at once; `search`: the share of the time for a
    local search first.
    """

    size: int = 16
    together: int = 2
    search: float = 0.4

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("together", self.together)):
            if not isinstance(value, int) or value < 1:
                raise PlacerError(f"windows does not support {name}={value}", remedy="give 1 or more")
        if not 0 <= self.search <= 1:
            raise PlacerError(f"windows does not support search={self.search}", remedy="give a share from 0 to 1")


class WindowsPlacer:
    """Anytime; better than local search where good moves are many small moves at once."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="windows",
        summary="parts of a placement solved exactly, again and again",
        source="large-neighbourhood search: Shaw, CP 1998; windows solved by OR-Tools CP-SAT, and by dp in pipelines",
    )
    Options: ClassVar[type[WindowsOptions]] = WindowsOptions

    def __init__(self, options: WindowsOptions | None = None) -> None:
        self.options = options or WindowsOptions()

    def supports(self, problem: Problem) -> str | None:
        objective = problem.objective
        if objective.kind == "throughput":
            return None
        if objective.execution == "sequential":
            return "windows does not support sequential execution, only subgraph and operator execution for latency"
        if problem.constraints.shaped:
            return "windows does not support contiguous or convex stages for latency"
        if problem.n_ops > MAX_OPS:
            return f"{problem.n_ops:,} ops make windows too slow, and {MAX_OPS:,} are the most: use local or auto"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement found, with calls or an order of its own where they help."""
        options = self.options
        if search.problem.objective.kind == "throughput":
            windows = ThroughputWindows(search, size=options.size, together=options.together)
            windows.start(options.search)
            try:
                windows.run()
            except KeyboardInterrupt:
                windows.reason = Reason.INTERRUPTED
            return windows.answer()
        incumbent = find_incumbent(search, options.search)
        if incumbent.best is not None and incumbent.reason is not Reason.INTERRUPTED:
            try:
                # Importing CP-SAT takes longer than many problems: only those that it is used for wait for it.
                rounds = import_module(_LATENCY).LatencyWindows
                rounds(search, incumbent, size=options.size, together=options.together).run()
            except KeyboardInterrupt:
                incumbent.reason = Reason.INTERRUPTED
        return incumbent.answer()
