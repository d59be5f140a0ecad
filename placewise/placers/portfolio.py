"""auto: a few placers that suit the problem, one after the other, and the best of what they propose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from placewise.model.problem import Problem
from placewise.model.result import Bound, Improvement, Proposal, Reason
from placewise.placers.base import (
    NO_HINTS,
    Budget,
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    Stopwatch,
    ignore,
    sound,
)
from placewise.placers.common.rules import broken
from placewise.placers.common.worth import worth
from placewise.placers.registry import create
from placewise.simulate import Evaluator

LAST_RESORT = "pack"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A proposal that keeps the rules, who made it, and its value in seconds."""

    placer: str
    proposal: Proposal
    value: float


class AutoPlacer:
    """What people do by hand first, then the method for the objective: dp for pipelines, temper for latency."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="auto",
        summary="the best of the placers that suit the problem",
        source="a portfolio of the placers here",
        replicates=True,
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(
        self,
        problem: Problem,
        budget: Budget,
        *,
        hints: Hints = NO_HINTS,
        evaluate: Evaluate | None = None,
        on_progress: OnProgress = ignore,
    ) -> Proposal:
        """The best valid proposal or hint with its notes, under the tightest bound that any placer proved."""
        watch, price = Stopwatch(budget), evaluate or Evaluator(problem)
        hinted = (_judged(problem, "a hint", Proposal(placement), price) for placement in hints.placements)
        best = min((hint for hint in hinted if hint is not None), key=lambda hint: hint.value, default=None)
        state = _State(best)
        try:
            for turn, (name, options) in enumerate(_suitable(problem)):
                if watch.out and turn:
                    state.reason = Reason.TIME_LIMIT
                    break
                placer = create(name, options)
                if placer.supports(problem) is not None or (name == LAST_RESORT and state.best is not None):
                    continue
                on_progress(Progress(name, watch.elapsed, "starting", state.best.value if state.best else None))
                found = placer.propose(problem, watch.rest(), hints=hints, evaluate=price, on_progress=on_progress)
                found = sound(placer.info, problem, found)
                if found.infeasible:
                    return found
                candidate = _judged(problem, name, found, price)
                state.hear(name, found, candidate, watch.elapsed)
                if candidate is not None and found.placement is not None:
                    hints = replace(hints, placements=(*hints.placements, found.placement))
                if found.reason is Reason.INTERRUPTED:
                    break
        except KeyboardInterrupt:
            state.reason = Reason.INTERRUPTED
        return state.answer()


@dataclass(slots=True)
class _State:
    """What has come out so far."""

    best: _Candidate | None
    reason: Reason = Reason.FINISHED
    bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    history: list[Improvement] = field(default_factory=list)

    def hear(self, name: str, found: Proposal, candidate: _Candidate | None, seconds: float) -> None:
        self.bounds += [found.bound] if found.bound else []
        if candidate is None:
            self.notes += [f"{name}: {note}" for note in found.notes]
        elif self.best is None or candidate.value < self.best.value:
            self.best = candidate
            self.history.append(Improvement(seconds, candidate.value, name))
        if found.reason is not Reason.FINISHED:
            self.reason = found.reason

    def answer(self) -> Proposal:
        bound = max(self.bounds, key=lambda b: b.value, default=None)
        if self.best is None:
            return Proposal(None, bound, self.reason, tuple(self.notes))
        said = (f"auto took the placement of {self.best.placer}", *self.best.proposal.notes)
        return replace(self.best.proposal, bound=bound, reason=self.reason, notes=said, history=tuple(self.history))


def _suitable(problem: Problem) -> tuple[tuple[str, dict[str, str]], ...]:
    """Placers and their options, the quick ones first, so that there is an answer early."""
    plain: dict[str, str] = {}
    etf = (("etf", plain), ("etf", {"by": "start"}))
    if problem.objective.kind == "latency":
        return ("single", plain), ("balanced", plain), ("greedy", plain), *etf, (LAST_RESORT, plain), ("temper", plain)
    last = "cpsat" if problem.constraints.convex and not problem.constraints.contiguous else "cover"
    return ("single", plain), ("balanced", plain), *etf, ("dp", plain), (LAST_RESORT, plain), (last, plain)


def _judged(problem: Problem, name: str, found: Proposal, price: Evaluate) -> _Candidate | None:
    if found.placement is None or broken(problem, found.placement.device):
        return None
    value = worth(problem, found.placement, price)
    return _Candidate(name, found, value) if np.isfinite(value) else None
