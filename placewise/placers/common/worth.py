"""What a placement is worth to a placer that chooses among several."""

from __future__ import annotations

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate
from placewise.simulate import simulate


def worth(problem: Problem, placement: Placement, price: Evaluate) -> float:
    """Seconds of a placement: what `price` says, or the judge where stages are replicated, which it cannot see."""
    if placement.replicas is not None:
        return simulate(problem, placement).value
    return float(price(placement.device[None])[0])
