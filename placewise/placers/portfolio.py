"""auto: a few placers that suit the problem, one after the other, and the best of what they propose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Improvement, Proposal, Reason, gap_of
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
from placewise.simulate import Evaluator, simulate

LAST_RESORT = "pack"
FEW_OPS = 10
"""So few ops are placed by one program with its proof, if `LITTLE_WORK` is enough, about as many seconds."""
LITTLE_WORK = 4
SEARCH_SHARE = 0.65
"""Of the time for latency in subgraph execution, for temper; windows take the rest, where they can."""


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
            for number, turn in enumerate(_suitable(problem, budget)):
                name = turn.placer
                if state.closed(max(budget.gap, OPTIMAL_GAP)):
                    break
                if watch.out and number:
                    state.reason = Reason.TIME_LIMIT
                    break
                placer = create(name, turn.options)
                if placer.supports(problem) is not None or (name == LAST_RESORT and state.best is not None):
                    continue
                on_progress(Progress(name, watch.elapsed, "starting", state.best.value if state.best else None))
                rest = turn.budget(watch.rest())
                found = placer.propose(problem, rest, hints=hints, evaluate=price, on_progress=on_progress)
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

    def closed(self, gap: float) -> bool:
        """Nothing is left to find."""
        bound = max((known.value for known in self.bounds), default=0.0)
        return self.best is not None and bound > 0 and gap_of(self.best.value, bound) <= gap

    def answer(self) -> Proposal:
        bound = max(self.bounds, key=lambda b: b.value, default=None)
        if self.best is None:
            return Proposal(None, bound, self.reason, tuple(self.notes))
        said = (f"auto took the placement of {self.best.placer}", *self.best.proposal.notes)
        return replace(self.best.proposal, bound=bound, reason=self.reason, notes=said, history=tuple(self.history))


@dataclass(frozen=True, slots=True)
class _Turn:
    """A placer and its options, the share of the time that is left for it, and the most work of a solver in it."""

    placer: str
    options: dict[str, Any] = field(default_factory=dict)
    share: float = 1.0
    work: int | None = None

    def budget(self, rest: Budget) -> Budget:
        work = rest.iterations if self.work is None else self.work
        return replace(rest, seconds=self.share * rest.seconds, iterations=work)


def _suitable(problem: Problem, budget: Budget) -> tuple[_Turn, ...]:
    """Placers and their options, the quick ones first, so that there is an answer early."""
    first = _Turn("single"), _Turn("balanced")
    etf = _Turn("etf"), _Turn("etf", {"by": "start"})
    if problem.objective.kind == "latency":
        turns = (*first, _Turn("greedy"), *etf, _Turn(LAST_RESORT))
        if problem.n_ops <= FEW_OPS:
            return (*turns, _Turn("temper", share=0.5), _Turn("cpsat", {"search": 0.0}, work=LITTLE_WORK))
        in_calls = problem.objective.execution == "subgraph"
        if in_calls and np.isfinite(budget.seconds) and create("windows").supports(problem) is None:
            return (*turns, _Turn("temper", share=SEARCH_SHARE), _Turn("windows", {"search": 0.0}))
        return (*turns, _Turn("temper"))
    pipelines = (*first, *etf, _Turn("dp"), _Turn(LAST_RESORT))
    if problem.constraints.convex and not problem.constraints.contiguous:
        return (*pipelines, _Turn("cpsat"))
    if problem.n_ops <= FEW_OPS and not problem.constraints.contiguous:
        return (*pipelines, _Turn("cpsat", work=LITTLE_WORK), _Turn("cover"))
    return (*pipelines, _Turn("cover"))


def _judged(problem: Problem, name: str, found: Proposal, price: Evaluate) -> _Candidate | None:
    if found.placement is None or _refused(problem, found.placement):
        return None
    value = worth(problem, found.placement, price)
    return _Candidate(name, found, value) if np.isfinite(value) else None


def _refused(problem: Problem, placement: Placement) -> bool:
    """Whether a placement breaks a rule; calls and orders of its own change how much is alive at once."""
    if placement.call is None and placement.order is None:
        return bool(broken(problem, placement.device))
    return not simulate(problem, placement).valid
