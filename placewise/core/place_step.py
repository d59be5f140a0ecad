"""place() for the objective `step`: bound → baselines → placer → judge → result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from placewise.core.baselines import NO_BOUND, Baselines, Judged, collect_baselines
from placewise.core.place_stages import result_with, result_without
from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Bound, Judgement, Proposal, Reason, Result, Violation
from placewise.model.verdict import NO_TIME, REPLICAS, Baseline
from placewise.model.ways import StageGroup
from placewise.placers import registry
from placewise.placers.base import (
    Budget,
    Evaluate,
    Hints,
    OnProgress,
    Placer,
    Progress,
    SearchContext,
    Stopwatch,
    run_placer,
)
from placewise.simulate import judge_placement, why_infeasible
from placewise.simulate.replicas import equal_devices
from placewise.simulate.step.pipelines import pipeline_of, placement_of_pipeline
from placewise.simulate.step.stage_costs import Pipeline

SEARCH = "pipeline_search"
"""What `auto` is for this objective."""
BASELINE_SHARE = 0.2
"""Of the time, for the naive answers."""


def place_step(
    problem: Problem, placer: str | Placer, watch: Stopwatch, options: Mapping[str, Any] | None, hints: Hints,
    evaluate: Evaluate | None, on_progress: OnProgress,
) -> Result:  # fmt: skip
    """Place a problem of the objective `step`; see `place`. "auto" is `pipeline_search` from the best naive answer."""
    method = placer if isinstance(placer, Placer) else registry.create(placer, options if placer != "auto" else None)
    name = method.info.name
    automatic = name == "auto"
    if automatic:
        method = registry.create(SEARCH, options)
    unmet = why_infeasible(problem)
    if unmet:
        bound = Bound(math.inf, "nothing fits")
        proposal = Proposal(None, reason=Reason.PROVED, infeasible=unmet)
        return result_without(problem, name, watch, proposal, None, bound, {}, {})
    refusal = refuse_step(problem, method)
    if refusal:
        raise PlacerError(f"the placer {name!r} cannot take this problem: {refusal}", remedy="try --placer auto")
    naive, bound = _collect(problem, watch), Bound(0.0, NO_BOUND)
    try:
        bound = SearchContext(problem, watch.rest()).bound
    except KeyboardInterrupt:
        naive.interrupted = True
    on_progress(Progress(name, watch.elapsed, "bounded", None, bound.value))
    baselines, others = naive.judged, naive.others
    known = tuple(placement for placement, _ in baselines.values())
    hints = replace(hints, bound=bound, placements=(*hints.placements, *(known if automatic else ())))
    started = watch.elapsed
    proposal = Proposal(None, reason=Reason.INTERRUPTED)
    if not naive.interrupted:
        proposal = run_placer(method, problem, watch.rest(), hints=hints, evaluate=evaluate, on_progress=on_progress)
    history = tuple(replace(found, seconds=started + found.seconds) for found in proposal.history)
    proposal = replace(proposal, history=history)
    placement = None if proposal.placement is None else _settle_pipeline(problem, proposal.placement)
    judgement = None if placement is None else judge_placement(problem, placement)
    if automatic:
        placement, judgement = _no_worse_than(placement, judgement, baselines)
    bound = max(bound, proposal.bound or bound, key=lambda one: one.value)
    if placement is None or judgement is None or not judgement.valid or not math.isfinite(judgement.value):
        return result_without(problem, name, watch, proposal, judgement, bound, baselines, others)
    proposal = replace(proposal, placement=placement)
    return result_with(problem, name, watch, proposal, judgement, bound, baselines, others)


def refuse_step(problem: Problem, placer: Placer) -> str:
    """Why a placer cannot take a problem of the objective `step`; "" if it can."""
    if "step" not in placer.info.objectives and placer.info.name != "auto":
        return "it does not place for a training step"
    return "" if placer.info.name == "auto" else placer.supports(problem) or ""


def _settle_pipeline(problem: Problem, placement: Placement) -> Placement:
    """The placement with its stages and the schedule under which it is judged, where it says neither."""
    if placement.schedule or not problem.n_ops:
        return placement
    use = judge_placement(problem, placement).pipeline
    pipeline = pipeline_of(problem, placement, use.schedule) if use is not None else None
    return placement_of_pipeline(pipeline) if isinstance(pipeline, Pipeline) else placement


def _collect(problem: Problem, watch: Stopwatch) -> Baselines:
    """The naive answers, judged as steps, and why others are missing; a pipeline takes its best schedule."""
    free = problem.with_(objective=Objective("throughput", memory=problem.objective.memory))
    short = Stopwatch(replace(watch.budget, seconds=BASELINE_SHARE * watch.budget.seconds))
    budget = Budget(seconds=short.left, threads=watch.budget.threads, stop=watch.budget.stop)
    naive = collect_baselines(free, budget, short)
    judged: dict[str, Judged] = {}
    others = {name: baseline for name, baseline in naive.others.items() if name != REPLICAS}
    for name, (placement, _) in naive.judged.items():
        settled = _settle_pipeline(problem, placement)
        found = judge_placement(problem, settled)
        if math.isfinite(found.value):
            judged[name] = (settled, found)
        else:
            broken = found.violations[0] if found.violations else Violation("schedule", "it cannot run")
            others[name] = Baseline(math.inf, broken.message, rule=broken.kind)
    if problem.n_devices > 1 and problem.n_ops:
        copies = Baseline(math.inf, NO_TIME) if watch.out else _copy_model(problem)
        others[REPLICAS] = copies if isinstance(copies, Baseline) else _as_figures(problem, copies)
    return Baselines(judged, others, interrupted=naive.interrupted)


def _copy_model(problem: Problem) -> Placement | Baseline:
    """The whole model on as many equal devices as divide the micro-batches, or why there are none."""
    kind = equal_devices(problem)
    able = np.flatnonzero(problem.allowed.all(axis=0))
    groups = [able[kind[able] == head].tolist() for head in np.unique(kind[able]).tolist()]
    total = problem.constraints.microbatches
    counts = [max((c for c in range(2, len(group) + 1) if total % c == 0), default=0) for group in groups]
    if not any(counts):
        return Baseline(math.inf, "no two equal devices may run the whole model and divide its micro-batches")
    best = int(np.argmax(counts))
    members = tuple(groups[best][: counts[best]])
    asked = problem.objective.schedule
    schedule = asked if asked in ("gpipe", "1f1b", "zb-h1") else "1f1b"
    stage = np.zeros(problem.n_ops, np.int32)
    stages = (StageGroup(members, len(members)),)
    return Placement(np.full(problem.n_ops, members[0], np.int32), stages=stages, stage=stage, schedule=schedule)


def _as_figures(problem: Problem, placement: Placement) -> Baseline:
    free = problem.with_(
        objective=replace(problem.objective, schedule="auto"),
        constraints=replace(problem.constraints, replicas=0, ordered=False),
    )
    judged = judge_placement(free, placement)
    broken = judged.violations[0].message if judged.violations else ""
    names = tuple(problem.cluster.names[d] for d in placement.stages[0].devices)
    return Baseline(judged.value, broken, names)


def _no_worse_than(
    placement: Placement | None, judgement: Judgement | None, baselines: Mapping[str, Judged]
) -> tuple[Placement | None, Judgement | None]:
    """The placement, or the best naive one that keeps the rules if that is better (time can be that short)."""
    valid = [judged for judged in baselines.values() if judged[1].valid]
    if not valid:
        return placement, judgement
    naive = min(valid, key=lambda judged: judged[1].value)
    if judgement is not None and judgement.valid and judgement.value <= naive[1].value:
        return placement, judgement
    return naive
