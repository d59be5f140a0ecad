"""place() for problems whose ops may be split over devices: baselines → placer → check → judge → result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placewise.errors import InternalError, PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Judgement, Outcome, Proposal, Reason, Result, Status, gap_of
from placewise.model.verdict import BEST_UNIFORM, MEGATRON, Baseline
from placewise.placers import registry
from placewise.placers.base import Budget, Evaluate, Hints, OnProgress, Placer, Stopwatch, run_placer
from placewise.simulate import judge_placement

BASELINE_RULES = {BEST_UNIFORM: "best", MEGATRON: "megatron"}
"""Naive answers, and the rule of `uniform` that makes each."""
BASELINE_SHARE = 0.2
"""Of the time, for the naive answers."""
NO_BOUND = Bound(0.0, "nothing")


def place_stages(
    problem: Problem, placer: str | Placer, watch: Stopwatch, options: Mapping[str, Any] | None, hints: Hints,
    evaluate: Evaluate | None, on_progress: OnProgress,
) -> Result:  # fmt: skip
    """Place a problem with ways to split its ops; see `place`.

    "auto" is `parallel_dp` from the best baseline, or the best baseline where `parallel_dp` cannot take the problem.
    """
    method = placer if isinstance(placer, Placer) else registry.create(placer, options if placer != "auto" else None)
    name = method.info.name
    automatic = name == "auto"
    if automatic:
        method = registry.create("parallel_dp", options)
    remarks: tuple[str, ...] = ()
    refusal = refuse_stages(problem, method)
    if refusal and automatic:
        remarks = (f"{method.info.name} was not asked: {refusal}",)
        method = registry.create("uniform")
    elif refusal:
        remedy = "try --placer auto" + ("" if method.info.splits else ", or leave out --tensor-parallel")
        raise PlacerError(f"the placer {name!r} cannot take this problem: {refusal}", remedy=remedy)
    baselines = _collect(problem, watch)
    known = [placement for placement, _ in baselines.values()]
    hints = replace(hints, placements=(*hints.placements, *known)) if automatic else hints
    proposal = run_placer(method, problem, watch.rest(), hints=hints, evaluate=evaluate, on_progress=on_progress)
    proposal = replace(proposal, notes=(*remarks, *proposal.notes, *_note_tokens(problem, proposal.placement)))
    others = {key: Baseline(math.inf, "none fits") for key in BASELINE_RULES if key not in baselines}
    bound = proposal.bound or NO_BOUND
    judgement = None if proposal.placement is None else judge_placement(problem, proposal.placement)
    if judgement is None or not judgement.valid or not math.isfinite(judgement.value):
        return result_without(problem, name, watch, proposal, judgement, bound, baselines, others)
    return result_with(problem, name, watch, proposal, judgement, bound, baselines, others)


def _note_tokens(problem: Problem, placement: Placement | None) -> tuple[str, ...]:
    """A note where sequence parallelism is asked for, and no stage of the plan splits its ops."""
    if placement is None or not problem.constraints.sequence_parallel:
        return ()
    split = any(group.tensor_parallel > 1 for group in placement.stages)
    return () if split else ("no stage of this plan splits its ops, so sequence parallelism changes nothing in it",)


def refuse_stages(problem: Problem, placer: Placer) -> str:
    """Why a placer cannot take a problem whose ops may be split; "" if it can."""
    if not placer.info.splits:
        return "it places whole ops, and ops of this problem may be split"
    return placer.supports(problem) or ""


def _collect(problem: Problem, watch: Stopwatch) -> dict[str, tuple[Placement, Judgement]]:
    """The naive answers that keep the rules, judged."""
    judged = {}
    for name, rule in BASELINE_RULES.items():
        budget = Budget(seconds=min(watch.left, BASELINE_SHARE * watch.budget.seconds))
        proposal = run_placer(registry.create("uniform", {"rule": rule}), problem, budget)
        if proposal.placement is not None:
            judged[name] = (proposal.placement, judge_placement(problem, proposal.placement))
    return judged


def result_with(
    problem: Problem, name: str, watch: Stopwatch, proposal: Proposal, judgement: Judgement, bound: Bound,
    baselines: Mapping[str, tuple[Placement, Judgement]], others: Mapping[str, Baseline],
) -> Result:  # fmt: skip
    """A result whose placement keeps the rules. Raises InternalError where the bound contradicts a valid value."""
    values = {name: judgement.value, **{key: found.value for key, (_, found) in baselines.items() if found.valid}}
    for who, value in values.items():
        if bound.value > value * (1 + 1e-9):
            raise InternalError(f"{bound.method} proves {bound.value!r} s and {who} reaches {value!r} s on {problem!r}")
    gap, reason = gap_of(judgement.value, bound.value), proposal.reason
    if reason is Reason.FINISHED and gap <= watch.budget.gap:
        reason = Reason.GAP
    status = Status(Outcome.OPTIMAL, Reason.PROVED) if gap <= OPTIMAL_GAP else Status(Outcome.FEASIBLE, reason)
    return Result(
        problem, proposal.placement, status, judgement, bound, name, watch.elapsed, watch.budget.seed,
        baselines, proposal.history, proposal.notes, others=others,
    )  # fmt: skip


def result_without(
    problem: Problem, name: str, watch: Stopwatch, proposal: Proposal, judgement: Judgement | None, bound: Bound,
    baselines: Mapping[str, tuple[Placement, Judgement]], others: Mapping[str, Baseline],
) -> Result:  # fmt: skip
    """A result that has no placement: infeasible where the placer proves it, else unknown."""
    notes = proposal.notes
    if judgement is not None:
        broken = "; ".join(violation.message for violation in judgement.violations) or "it cannot run"
        notes = (*notes, f"what {name} proposed breaks a rule: {broken}")
    if proposal.infeasible and any(found.valid for _, found in baselines.values()):
        raise InternalError(f"{name} proves that nothing fits {problem!r}, and {', '.join(baselines)} fits")
    if proposal.infeasible:
        bound = Bound(math.inf, "nothing fits")
    proved = Status(Outcome.INFEASIBLE, Reason.PROVED)
    status = proved if proposal.infeasible else Status(Outcome.UNKNOWN, proposal.reason)
    return Result(
        problem, None, status, None, bound, name, watch.elapsed, watch.budget.seed,
        baselines, (), notes, proposal.infeasible, others,
    )  # fmt: skip
