"""The incumbent of a search for latency: the best placement so far, its value, and a lower bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason, gap_of
from placewise.placers.base import Evaluate, SearchContext
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.objective_value import objective_value
from placewise.placers.shared.starting_placements import find_starting_placements
from placewise.simulate import judge_placement


def value_of(problem: Problem, placement: Placement, evaluate: Evaluate | None) -> float:
    """Seconds of a placement, measured if `evaluate` is given; inf if it breaks a rule or cannot run."""
    judgement = judge_placement(problem, placement)
    if not judgement.valid:
        return float("inf")
    value = judgement.value if evaluate is None else objective_value(problem, placement, evaluate)
    return value if np.isfinite(value) else float("inf")


@dataclass(slots=True)
class Incumbent:
    """The best placement so far, and the best bound; `reason` says why the search ended.

    `infeasible` is a proof that no placement exists, or empty.
    """

    problem: Problem
    evaluate: Evaluate | None
    bound: Bound
    best: Placement | None = None
    value: float = float("inf")
    reason: Reason = Reason.FINISHED
    gap: float = OPTIMAL_GAP
    infeasible: str = ""

    def offer(self, placement: Placement) -> bool:
        """Keep a placement if it is better, without its calls or order where the judge's own do as well."""
        value = value_of(self.problem, placement, self.evaluate)
        plain = Placement(placement.device)
        if placement != plain:
            plain_value = value_of(self.problem, plain, self.evaluate)
            if plain_value <= value:
                placement, value = plain, plain_value
        if value >= self.value:
            return False
        self.best, self.value = placement, value
        return True

    def prove(self, bound: Bound) -> None:
        """Keep a bound if it is higher."""
        self.bound = max(self.bound, bound, key=lambda bound: bound.value)

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that nothing better exists, up to the gap."""
        return self.best is not None and gap_of(self.value, self.bound.value) <= self.gap

    def answer(self, notes: tuple[str, ...] = ()) -> Proposal:
        if self.infeasible:
            return Proposal(None, reason=Reason.PROVED, infeasible=self.infeasible)
        if self.best is None:
            return Proposal(None, self.bound, self.reason, (*notes, "no placement was found that keeps the rules"))
        named = Placement(relabel(self.problem, self.best.device), self.best.call, self.best.order)
        return Proposal(named, self.bound, self.reason, notes)


def find_incumbent(search: SearchContext, search_share: float) -> Incumbent:
    """The best of the starting placements, after a local search for a share of the time, with the best bound.

    Ctrl-C ends it with the best so far.
    """
    problem = search.problem
    gap = max(search.budget.gap, OPTIMAL_GAP)
    incumbent = Incumbent(problem, search.evaluate, Bound(0.0, "nonnegative costs"), gap=gap)
    try:
        incumbent.prove(search.bound)
        for hint in search.hints.placements:
            incumbent.offer(hint)
        if not incumbent.optimal:
            starts = find_starting_placements(search, plain=False, search_share=search_share)
            incumbent.infeasible = starts.infeasible
            incumbent.reason = Reason.INTERRUPTED if starts.interrupted else Reason.FINISHED
            for placement in starts.placements:
                if placement not in search.hints.placements:
                    incumbent.offer(placement)
            incumbent.prove(starts.bound or incumbent.bound)
    except KeyboardInterrupt:
        incumbent.reason = Reason.INTERRUPTED
    return incumbent
