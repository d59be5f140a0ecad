"""What every reader gives back."""

from __future__ import annotations

from dataclasses import dataclass

from placewise.model.graph import Graph
from placewise.model.problem import Problem


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader gives back: a graph, a whole problem where the file says one, and what to warn of."""

    graph: Graph
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()
