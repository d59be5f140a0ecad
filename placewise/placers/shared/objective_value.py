"""What a placement is worth to a placer that chooses among several."""

from __future__ import annotations

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate
from placewise.simulate import Evaluator, judge_placement


def objective_value(problem: Problem, placement: Placement, price: Evaluate) -> float:
    """Seconds of a placement: what `price` says, or the judge on what its batches cannot see.

    That is replicated stages, and calls and an order of the placement's own; a measurement sees none of the latter.
    """
    decided = placement.call is not None or placement.order is not None
    if placement.replicas is not None or (decided and isinstance(price, Evaluator)):
        return judge_placement(problem, placement).value
    return float(price(placement.device[None])[0])
