"""The state of a run of `auto`: the best placements, bounds, which placer found what and when, and why it stopped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Improvement, Judgement, Proposal, Reason, gap_of
from placewise.placers.base import Evaluate, OnProgress, Progress, Stopwatch
from placewise.placers.shared.objective_value import objective_value
from placewise.placers.shared.starting_placements import keeps_rules
from placewise.simulate import Evaluator

POOL = 4
"""The number of best placements that searches get as hints."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A valid proposal, the placer that made it, and its value in seconds."""

    placer: str
    proposal: Proposal
    value: float


@dataclass(slots=True)
class History:
    """One run of `auto`; `judging` is the longest time in seconds that judging a proposal took.

    `timed`: the budget has a time limit; `turns` counts placers run; `tried` names them. `pool` has the best candidates
    of the run, `recent` those since the last restart of the search: searches go on from these.
    """

    problem: Problem
    price: Evaluate
    watch: Stopwatch
    on_progress: OnProgress
    timed: bool
    reason: Reason = Reason.FINISHED
    turns: int = 0
    pool: list[Candidate] = field(default_factory=list)
    recent: list[Candidate] = field(default_factory=list)
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
        return max(self.bounds, key=lambda bound: bound.value, default=None)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The best placements since the last restart, as hints for searches."""
        return tuple(kept.proposal.placement for kept in self.recent if kept.proposal.placement is not None)

    @property
    def recent_value(self) -> float:
        return self.recent[0].value if self.recent else float("inf")

    def optimal(self, gap: float) -> bool:
        """Whether the bounds prove that nothing better exists, up to the gap."""
        bound = max((bound.value for bound in self.bounds), default=0.0)
        return bool(self.pool) and gap_of(self.value, bound) <= gap

    def report(self, state: Progress) -> None:
        """Pass on a placer's progress with the best value of all placers; claims are judged later."""
        bound = max([bound.value for bound in self.bounds] + [state.bound or 0.0])
        value, placer = (self.value, self.pool[0].placer) if self.pool else (None, "")
        if state.value is not None and state.value < self.value:
            self._claims.append(replace(state, seconds=self.watch.elapsed))
            value, placer = state.value, state.placer
        self.on_progress(Progress(state.placer, self.watch.elapsed, state.message, value, bound or None, placer))

    def record(self, name: str, proposal: Proposal, judgement: Judgement | None = None) -> bool:
        """Judge a proposal, unless `judgement` is given, and keep it if it is good; whether it is the best so far."""
        self.turns += 1
        if name not in self.tried:
            self.tried.append(name)
        self.bounds += [proposal.bound] if proposal.bound else []
        if proposal.reason is Reason.INTERRUPTED or (proposal.reason is not Reason.FINISHED and not self.timed):
            self.reason = proposal.reason
        started = self.watch.elapsed
        candidate, claims = self._judge(name, proposal, judgement), self._claims
        self.judging = max(self.judging, self.watch.elapsed - started)
        self._claims = []
        if candidate is None:
            self.notes += [f"{name}: {note}" for note in proposal.notes]
            return False
        before = self.value
        self.pool, self.recent = _keep(self.pool, candidate), _keep(self.recent, candidate)
        if candidate.value >= before:
            return False
        self._record_improvements(candidate, claims, before)
        return True

    def adopt(self, tighter: History) -> None:
        """Keep what a run on the problem with tighter rules found; its bounds do not hold here."""
        for candidate in tighter.pool:
            self.record(candidate.placer, replace(candidate.proposal, bound=None))
        self.tried += [name for name in tighter.tried if name not in self.tried]
        if tighter.reason is Reason.INTERRUPTED:
            self.reason = tighter.reason

    def _judge(self, name: str, proposal: Proposal, judgement: Judgement | None) -> Candidate | None:
        """The proposal as a candidate, None if it is invalid or cannot run."""
        placement = proposal.placement
        if placement is None or not (judgement.valid if judgement else keeps_rules(self.problem, placement)):
            return None
        judged = judgement is not None and isinstance(self.price, Evaluator)
        value = judgement.value if judgement and judged else objective_value(self.problem, placement, self.price)
        return Candidate(name, proposal, value) if np.isfinite(value) else None

    def _record_improvements(self, candidate: Candidate, claims: list[Progress], before: float) -> None:
        """Record when the candidate was found, and the claims on the way that are no better than its judged value."""
        reached = before
        when = self.watch.elapsed
        for claim in claims:
            assert claim.value is not None
            if claim.value < reached and claim.value >= candidate.value * (1 - 1e-9):
                reached = claim.value
                if reached <= candidate.value * (1 + 1e-9):
                    when = claim.seconds
                    break
                self.history.append(Improvement(claim.seconds, reached, claim.by or candidate.placer))
        self.history.append(Improvement(when, candidate.value, candidate.placer))

    def answer(self) -> Proposal:
        """The best proposal under the best bound; without one, a note on what was tried."""
        if self.best is None:
            tried = [f"no placement that keeps every rule was found by {', '.join(self.tried)}"] if self.tried else []
            return Proposal(None, self.bound, self.reason, (*tried, *dict.fromkeys(self.notes)))
        notes = (f"auto took the placement of {self.best.placer}", *self.best.proposal.notes)
        history = tuple(self.history)
        return replace(self.best.proposal, bound=self.bound, reason=self.reason, notes=notes, history=history)


def _keep(pool: list[Candidate], candidate: Candidate) -> list[Candidate]:
    """The best candidates of a pool and one more."""
    if any(candidate.proposal.placement == kept.proposal.placement for kept in pool):
        return pool
    return sorted([*pool, candidate], key=lambda kept: kept.value)[:POOL]
