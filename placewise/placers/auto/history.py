"""What `auto` knows while it works: the best placements, bounds, who found what and when, and why it stopped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Improvement, Judgement, Proposal, Reason, gap_of
from placewise.placers.base import Evaluate, OnProgress, Progress, Stopwatch
from placewise.placers.shared.objective_value import objective_value
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator, judge_placement

REMEMBERED = 4
"""So many of the best placements are where searches may begin."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal that keeps the rules, who made it, and its value in seconds."""

    placer: str
    proposal: Proposal
    value: float


@dataclass(slots=True)
class History:
    """One run of `auto`; `judging` is the most seconds that it took to judge a proposal."""

    problem: Problem
    price: Evaluate
    watch: Stopwatch
    on_progress: OnProgress
    timed: bool
    reason: Reason = Reason.FINISHED
    turns: int = 0
    pool: list[Candidate] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    history: list[Improvement] = field(default_factory=list)
    judging: float = 0.0
    _claims: list[Progress] = field(default_factory=list)

    @property
    def best(self) -> Candidate | None:
        """The candidate of the least value, the first of several."""
        return self.pool[0] if self.pool else None

    @property
    def value(self) -> float:
        return self.pool[0].value if self.pool else float("inf")

    @property
    def bound(self) -> Bound | None:
        return max(self.bounds, key=lambda known: known.value, default=None)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The best ones, where a search may begin."""
        return tuple(held.proposal.placement for held in self.pool if held.proposal.placement is not None)

    def closed(self, gap: float) -> bool:
        """Nothing is left to find."""
        bound = max((known.value for known in self.bounds), default=0.0)
        return bool(self.pool) and bound > 0 and gap_of(self.value, bound) <= gap

    def tell(self, state: Progress) -> None:
        """Pass on a placer's sign of life, with the best that anybody has; what it claims is judged later."""
        if state.value is not None and state.value < self.value:
            self._claims.append(replace(state, seconds=self.watch.elapsed))
        bound = max([known.value for known in self.bounds] + [state.bound or 0.0])
        value, who = (self.value, self.pool[0].placer) if self.pool else (None, "")
        if state.value is not None and state.value < self.value:
            value, who = state.value, state.placer
        self.on_progress(Progress(state.placer, self.watch.elapsed, state.message, value, bound or None, who))

    def hear(self, name: str, found: Proposal, judgement: Judgement | None = None) -> bool:
        """Judge a proposal, unless that is done, and keep what is worth keeping; whether it is the best so far."""
        self.turns += 1
        if name not in self.tried:
            self.tried.append(name)
        self.bounds += [found.bound] if found.bound else []
        if found.reason is Reason.INTERRUPTED or (found.reason is not Reason.FINISHED and not self.timed):
            self.reason = found.reason
        begun = self.watch.elapsed
        candidate, claims = self._judged(name, found, judgement), self._claims
        self.judging = max(self.judging, self.watch.elapsed - begun)
        self._claims = []
        if candidate is None:
            self.notes += [f"{name}: {note}" for note in found.notes]
            return False
        before = self.value
        self._keep(candidate)
        if candidate.value >= before:
            return False
        self._write(candidate, claims, before)
        return True

    def _judged(self, name: str, found: Proposal, judgement: Judgement | None) -> Candidate | None:
        if found.placement is None:
            return None
        if not judgement.valid if judgement else _refused(self.problem, found.placement):
            return None
        said = judgement is not None and isinstance(self.price, Evaluator)
        value = judgement.value if judgement and said else objective_value(self.problem, found.placement, self.price)
        return Candidate(name, found, value) if np.isfinite(value) else None

    def _keep(self, candidate: Candidate) -> None:
        """Into the pool, unless the same placement is there; the best first."""
        if not any(candidate.proposal.placement == held.proposal.placement for held in self.pool):
            self.pool = sorted([*self.pool, candidate], key=lambda held: held.value)[:REMEMBERED]

    def _write(self, candidate: Candidate, claims: list[Progress], before: float) -> None:
        """Who found it and when; of what was claimed on the way, only what is no better than what was judged."""
        reached = before
        when = self.watch.elapsed
        for claim in claims:
            assert claim.value is not None
            if claim.value < reached and claim.value >= candidate.value * (1 - 1e-9):
                reached = claim.value
                if reached <= candidate.value * (1 + 1e-9):
                    when = claim.seconds
                    break
                self.history.append(Improvement(claim.seconds, reached, candidate.placer))
        self.history.append(Improvement(when, candidate.value, candidate.placer))

    def answer(self) -> Proposal:
        """The best proposal under the best bound; without one, what was tried."""
        if self.best is None:
            tried = f"no placement that keeps every rule was found by {', '.join(self.tried)}" if self.tried else ""
            notes = [*([tried] if tried else []), *dict.fromkeys(self.notes)]
            return Proposal(None, self.bound, self.reason, tuple(notes))
        said = (f"auto took the placement of {self.best.placer}", *self.best.proposal.notes)
        return replace(
            self.best.proposal, bound=self.bound, reason=self.reason, notes=said, history=tuple(self.history)
        )


def _refused(problem: Problem, placement: Placement) -> bool:
    """Whether a placement breaks a rule; calls and orders of its own change how much is alive at once."""
    if placement.call is None and placement.order is None:
        return bool(find_broken_rule(problem, placement.device))
    return not judge_placement(problem, placement).valid
