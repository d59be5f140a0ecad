"""What every reader gives back."""

from __future__ import annotations

from dataclasses import dataclass

from placewise.model.columns import Floats
from placewise.model.graph import Graph
from placewise.model.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a reader gives back: a graph, a whole problem where the file says one, and what to warn of.

    `op_seconds` [n_ops] are the times on an accelerator, where the file is a profile of one.
    """

    graph: Graph
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()
    op_seconds: Floats | None = None
