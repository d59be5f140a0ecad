"""The value of a placement, for placers that choose among several."""

from __future__ import annotations

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate
from placewise.simulate import Evaluator, judge_placement
from placewise.simulate.judge.schedule import timeline


def objective_value(problem: Problem, placement: Placement, price: Evaluate) -> float:
    """Seconds of a placement: by `price`, or by the judge for what batches of devices cannot express.

    The latter are replicated stages, and calls or an order of the placement's own, which measurements ignore.
    """
    decided = placement.call is not None or placement.order is not None
    if placement.replicas is not None or (decided and isinstance(price, Evaluator)):
        return judge_placement(problem, placement).value
    if problem.objective.kind == "latency" and problem.objective.op_by_op and isinstance(price, Evaluator):
        return timeline(problem, placement)[0]  # kept for the check of its memory, and for the judge
    return float(price(placement.device[None])[0])
