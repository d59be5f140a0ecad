"""What is known while a search goes on: placements that keep the rules, with their values, and a bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason, gap_of
from placewise.placers.base import Evaluate, Hints, OnProgress, Stopwatch, run_placer
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.objective_value import objective_value
from placewise.simulate import judge_placement, lower_bound

SEARCH = "temper"
SEARCH_EVALUATIONS = 3000
"""What the search for a start may price where the budget has no seconds."""


def value_of(problem: Problem, placement: Placement, evaluate: Evaluate | None) -> float:
    """Seconds of a placement, inf where it breaks a rule or cannot run; measured where a measurement is given."""
    judgement = judge_placement(problem, placement)
    if not judgement.valid:
        return float("inf")
    value = judgement.value if evaluate is None else objective_value(problem, placement, evaluate)
    return value if np.isfinite(value) else float("inf")


@dataclass(slots=True)
class Known:
    """The best placement so far and what was proved."""

    problem: Problem
    evaluate: Evaluate | None
    bound: Bound
    best: Placement | None = None
    value: float = float("inf")
    reason: Reason = Reason.FINISHED
    gap: float = OPTIMAL_GAP

    def offer(self, placement: Placement) -> bool:
        """Keep a placement if it is better; without its calls or order where those of the judge do as well."""
        value = value_of(self.problem, placement, self.evaluate)
        plain = Placement(placement.device)
        if placement != plain:
            of_judge = value_of(self.problem, plain, self.evaluate)
            if of_judge <= value:
                placement, value = plain, of_judge
        if value >= self.value:
            return False
        self.best, self.value = placement, value
        return True

    def prove(self, bound: Bound) -> None:
        """Keep a bound if it is higher."""
        self.bound = max(self.bound, bound, key=lambda known: known.value)

    @property
    def closed(self) -> bool:
        """Nothing is left to find."""
        return self.best is not None and gap_of(self.value, self.bound.value) <= self.gap

    def answer(self, notes: tuple[str, ...] = ()) -> Proposal:
        if self.best is None:
            return Proposal(None, self.bound, self.reason, (*notes, "no placement was found that keeps the rules"))
        best = self.best
        named = Placement(relabel(self.problem, best.device), best.call, best.order)
        return Proposal(named, self.bound, self.reason, notes)


def start(
    problem: Problem, watch: Stopwatch, hints: Hints, evaluate: Evaluate | None, on_progress: OnProgress, share: float
) -> Known:
    """The hints that keep the rules, what a search of a share of the time finds, and the best bound of both.

    Ctrl-C ends it with what there is.
    """
    known = Known(problem, evaluate, Bound(0.0, "nonnegative costs"), gap=max(watch.budget.gap, OPTIMAL_GAP))
    try:
        for hint in hints.placements:
            known.offer(hint)
        known.prove(hints.bound or lower_bound(problem))
        if not known.closed and (share or known.best is None):
            _search(known, watch, hints, on_progress, share)
    except KeyboardInterrupt:
        known.reason = Reason.INTERRUPTED
    return known


def _search(known: Known, watch: Stopwatch, hints: Hints, on_progress: OnProgress, share: float) -> None:
    """Local search from the best so far, or from what the quick placers find."""
    budget = replace(watch.rest(), iterations=None, evaluations=None)
    if np.isfinite(budget.seconds):
        budget = replace(budget, seconds=share * budget.seconds)
    else:
        budget = replace(budget, evaluations=SEARCH_EVALUATIONS)
    best = () if known.best is None else (known.best,)
    seeds = Hints(best, probabilities=hints.probabilities, bound=known.bound)
    found = run_placer(create(SEARCH),
        known.problem, budget, hints=seeds, evaluate=known.evaluate, on_progress=on_progress
    )  # fmt: skip
    if found.placement is not None:
        known.offer(found.placement)
    if found.bound is not None:
        known.prove(found.bound)
    if found.reason is Reason.INTERRUPTED:
        known.reason = Reason.INTERRUPTED
