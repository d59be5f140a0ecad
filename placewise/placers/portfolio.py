"""auto: a few placers that suit the problem, one after the other, and the best of what they propose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
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
)
from placewise.placers.common.rules import broken
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
        name="auto", summary="the best of the placers that suit the problem", source="a portfolio of the placers here"
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
        bounds: list[Bound] = []
        notes: list[str] = []
        reason = Reason.FINISHED
        for name in _suitable(problem):
            placer = create(name)
            if placer.supports(problem) is not None or (name == LAST_RESORT and best is not None):
                continue
            on_progress(Progress(name, watch.elapsed, "starting", best.value if best else None))
            found = placer.propose(problem, watch.rest(), hints=hints, evaluate=price, on_progress=on_progress)
            if found.infeasible:
                return found if name == LAST_RESORT else _in_bytes(problem, found, watch)
            bounds += [found.bound] if found.bound else []
            candidate = _judged(problem, name, found, price)
            if candidate is not None and found.placement is not None:
                hints = replace(hints, placements=(*hints.placements, found.placement))
            if candidate is None:
                notes += [f"{name}: {note}" for note in found.notes]
            elif best is None or candidate.value < best.value:
                best = candidate
            if found.reason is not Reason.FINISHED:
                reason = found.reason
            if reason is Reason.INTERRUPTED or watch.out:
                break
        bound = max(bounds, key=lambda b: b.value, default=None)
        if best is None:
            return Proposal(None, bound, reason, tuple(notes))
        said = (f"auto took the placement of {best.placer}", *best.proposal.notes)
        return replace(best.proposal, bound=bound, reason=reason, notes=said)


def _suitable(problem: Problem) -> tuple[str, ...]:
    """Quick placers first, so that there is an answer early."""
    if problem.objective.kind == "latency":
        return "single", "balanced", "greedy", "etf", LAST_RESORT, "temper"
    return "single", "balanced", "etf", "dp", LAST_RESORT


def _in_bytes(problem: Problem, found: Proposal, watch: Stopwatch) -> Proposal:
    """A proof that nothing fits, said in bytes where that is what is missing; or that a looser rule would do."""
    free = problem.with_(constraints=replace(problem.constraints, contiguous=False))
    packer = create(LAST_RESORT)
    if packer.supports(free) is not None:
        return found
    packed = packer.propose(free, watch.rest())
    if packed.infeasible:
        return replace(found, infeasible=packed.infeasible)
    if packed.placement is not None and problem.constraints.contiguous:
        return replace(found, infeasible=f"{found.infeasible}; stages that form no chain would fit")
    return found


def _judged(problem: Problem, name: str, found: Proposal, price: Evaluate) -> _Candidate | None:
    if found.placement is None or broken(problem, found.placement.device):
        return None
    value = float(price(found.placement.device[None])[0])
    return _Candidate(name, found, value) if np.isfinite(value) else None
