"""Ideals of an acyclic graph: sets of components closed under predecessors, as a graph of their own."""

from __future__ import annotations

import math

from placewise import _native
from placewise.simulate.contiguity import Contraction

Ideals = _native.Ideals

MAX_BYTES = 1 << 29
"""The memory that the sets may take."""
FEWEST = 2048
"""Ideals that are enumerated in any case, since that takes no time."""


def enumerate_ideals(graph: Contraction, most: int, seconds: float = math.inf) -> Ideals | int:
    """Every ideal of the graph, or a lower bound on their number if they are too many.

    They are too many if there are more than `most`, if they do not fit in memory with the steps between them, or if
    their enumeration takes more than `seconds`.
    """
    width = max(1, (graph.n + 63) // 64)
    most = min(most, MAX_BYTES // (16 * width))
    ideals = _native.enumerate_ideals(graph.successor_offsets, graph.successors, max(most, FEWEST), seconds)
    return ideals if ideals.complete and len(ideals) <= most else len(ideals)


def list_prefixes(n: int) -> Ideals:
    """The ideals of a path of n components."""
    return _native.prefix_ideals(n)
