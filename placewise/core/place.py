"""place(): bounds → placer → check → judge → result. No placer gets around it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np

from placewise.core.baselines import BASELINES, NO_BOUND, Baselines, Judged, Project, collect_baselines
from placewise.core.place_stages import place_stages, result_with, result_without
from placewise.core.place_step import place_step
from placewise.errors import PlacerError
from placewise.model.cost_error import expected_seconds
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import (
    Bound,
    Improvement,
    Judgement,
    Proposal,
    Reason,
    Result,
)
from placewise.placers import registry
from placewise.placers.base import (
    BOUND_SHARE,
    NO_HINTS,
    Budget,
    Evaluate,
    Hints,
    OnProgress,
    Placer,
    Progress,
    Stopwatch,
    ignore,
    make_sound,
    run_placer,
)
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.stages.ideals import enumerate_ideals
from placewise.simulate import judge_placement, lower_bound, why_infeasible
from placewise.simulate.bounds.paths import WORK
from placewise.simulate.contiguity import contract

LAST_WAIT = 0.3
"""Seconds that the first bound has after Ctrl-C."""
BOUND_PACE, BOUND_OPS = 0.1, 10_000
"""How often the default work of the first bound fits into a second of the time limit, and the most ops per
second with which that pays: searches on larger graphs need all of the time. `BOUND_SHARE` ends it."""
FEW_BLOCKS, FEW_STEPS, EXACT = 1000, 2e8, ("auto", "dp")
"""A dynamic program over ideals with so few steps, pairs of ideals times sets of devices that are used before, takes
less time than the slow bounds, and proves more; who runs it."""
PACKER, PACKING = "pack", 5.0
"""Who says how many bytes are missing, and for how many seconds it may try."""


def place(
    problem: Problem,
    placer: str | Placer = "auto",
    budget: Budget | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    hints: Hints = NO_HINTS,
    evaluate: Evaluate | None = None,
    on_progress: OnProgress = ignore,
    project: Project | None = None,
    compare: bool = True,
) -> Result:
    """Place `problem` with a placer, or one of the registry by name: checked, judged, bounded, beside naive answers.

    `project` makes of every placement, naive ones too, one that may be an answer, before it is judged; None if it
    cannot. Without `compare`, no naive answers are made: for callers that want the placement only.
    An infeasible problem is a status of the result; PlacerError says that the placer cannot take the
    problem; a proof that contradicts a value raises InternalError.
    """
    budget = budget or Budget()
    watch = Stopwatch(budget)
    if problem.ways is not None:
        return place_stages(problem, placer, watch, options, hints, evaluate, on_progress)
    if problem.objective.kind == "step":
        return place_step(problem, placer, watch, options, hints, evaluate, on_progress)
    method = placer if isinstance(placer, Placer) else registry.create(placer, options)
    placer = method.info.name
    unmet = why_infeasible(problem)
    if unmet:
        proposal = Proposal(None, reason=Reason.PROVED, infeasible=unmet)
        return result_without(problem, placer, watch, proposal, None, Bound(math.inf, "nothing fits"), {}, {})
    refusal = method.supports(problem)
    if refusal is not None:
        raise PlacerError(f"the placer {placer!r} cannot take this problem: {refusal}", remedy="try --placer auto")
    cheaply = placer in EXACT and _has_few_ideals(problem)
    bound, naive = _bound_and_compare(problem, watch, project, compare=compare, cheaply=cheaply)
    on_progress(Progress(placer, watch.elapsed, "bounded", None, bound.value))
    baselines, judging = naive.judged, naive.judging
    known = replace(hints, bound=bound) if placer != "auto" else _with_baselines(hints, bound, baselines, judging)
    proposal = Proposal(None, reason=Reason.INTERRUPTED)
    if not naive.interrupted:
        proposal = _propose(method, problem, watch, watch.short_of(judging).rest(), known, evaluate, on_progress)
    if project is not None and proposal.placement is not None:
        proposal = replace(proposal, placement=project(proposal.placement))
    if proposal.infeasible and placer != PACKER:
        proposal = _in_bytes(problem, proposal, watch)
    judgement = None if proposal.placement is None else _judge(problem, proposal.placement, baselines)
    if (placer == "auto" or naive.interrupted) and not proposal.infeasible:
        proposal, judgement = _no_worse_than(problem, placer, proposal, judgement, baselines)
    bound = max(bound, proposal.bound or bound, key=lambda known: known.value)
    if judgement is None or not judgement.valid or not math.isfinite(judgement.value):
        return result_without(problem, placer, watch, proposal, judgement, bound, baselines, naive.others)
    bound = _only_placement(problem, judgement, bound)
    history = proposal.history or (Improvement(watch.elapsed, judgement.value, placer),)
    proposal = replace(proposal, history=history)
    return result_with(problem, placer, watch, proposal, judgement, bound, baselines, naive.others)


def _bound_and_compare(
    problem: Problem, watch: Stopwatch, project: Project | None, *, compare: bool, cheaply: bool
) -> tuple[Bound, Baselines]:
    """The first bound, `cheaply` without slow ones, and the naive answers if asked for; at the same time where two
    threads may work.

    The bound is found in a thread of its own, so that Ctrl-C leaves what is proved so far. Of the time beside the naive
    answers, half counts: threads that share the interpreter get half as far.
    """
    budget, over, naive = watch.budget, Event(), Baselines()
    compared = math.inf if compare else 0.0

    def find_bound() -> Bound:
        begun = watch.elapsed

        def go_on() -> bool:
            now = watch.elapsed
            beside = max(min(now, compared) - begun, 0.0)
            return now - begun - beside / 2 < BOUND_SHARE * budget.seconds and not (over.is_set() or watch.stopped)

        return lower_bound(problem, work=0.0 if cheaply else _bound_work(problem, budget), go_on=go_on)

    pool, bounding = ThreadPoolExecutor(1), Future[Bound]()
    try:
        if budget.most_threads > 1:
            bounding = pool.submit(find_bound)
        if compare:
            naive = collect_baselines(problem, Budget(threads=budget.threads, stop=budget.stop), watch, project)
        compared = watch.elapsed
        if not naive.interrupted:
            bounding = bounding if budget.most_threads > 1 else pool.submit(find_bound)
            wait((bounding,))
    except KeyboardInterrupt:
        naive.interrupted = True
    finally:
        over.set()
        pool.shutdown(wait=False)
    if naive.interrupted:
        wait((bounding,), LAST_WAIT)
    return bounding.result() if bounding.done() else Bound(0.0, NO_BOUND), naive


def _bound_work(problem: Problem, budget: Budget) -> float:
    """The work of the first bound: more with more time, where the bound still improves with it."""
    seconds, objective = budget.seconds, problem.objective
    if (objective.kind == "latency" and not objective.op_by_op) or not math.isfinite(seconds):
        return WORK
    return WORK * max(1.0, seconds * BOUND_PACE) if problem.n_ops <= BOUND_OPS * seconds else 0.0


def _has_few_ideals(problem: Problem) -> bool:
    """Whether stages in a chain are proved optimal at once, by the dynamic program over ideals."""
    cluster, rules = problem.cluster, problem.constraints
    exact = rules.contiguous and cluster.transfers == "staged" and not cluster.wires
    if problem.objective.kind == "latency" or not exact or problem.n_blocks > FEW_BLOCKS:
        return False
    used = np.prod(np.bincount(interchangeable(problem)) + 1.0)
    return not isinstance(enumerate_ideals(contract(problem), int(math.sqrt(FEW_STEPS / used))), int)


def _with_baselines(hints: Hints, bound: Bound, baselines: Mapping[str, Judged], judging: float) -> Hints:
    """The hints, and what the naive placers made, so that auto need not ask them again."""
    named = {BASELINES[name]: judged for name, judged in baselines.items() if name in BASELINES}
    return replace(hints, baselines=named, judging=judging, bound=bound)


def _judge(problem: Problem, placement: Placement, known: Mapping[str, Judged]) -> Judgement:
    """The judge's word on a placement, which it may have given already."""
    judged = next((judgement for other, judgement in known.values() if other == placement), None)
    return judged or judge_placement(problem, placement)


def _no_worse_than(
    problem: Problem, placer: str, proposal: Proposal, judgement: Judgement | None, baselines: Mapping[str, Judged]
) -> tuple[Proposal, Judgement | None]:
    """The proposal, or the best baseline that keeps the rules if that is better.

    Time can be that short, Ctrl-C can come before the placer begins, or runs of plans that these costs chose took
    longer than the costs say.
    """
    valid = {name: judged for name, judged in baselines.items() if judged[1].valid}
    if not valid:
        return proposal, judgement
    name, (placement, naive) = min(valid.items(), key=lambda item: _expect(problem, item[1][1]))
    if judgement is not None and _expect(problem, naive) >= _expect(problem, judgement):
        return proposal, judgement
    notes = (f"auto took the {name}: there was no time for more",)
    if placer != "auto":
        notes = (f"this is the {name}, since {placer} was interrupted before it began",)
    if judgement is not None and naive.value >= judgement.value:
        runs = problem.costs.runs
        notes = (f"auto took the {name}: plans that these costs chose took {runs.longer:.1%} longer than they say",)
    return replace(proposal, placement=placement, notes=notes, history=()), naive


def _expect(problem: Problem, judgement: Judgement) -> float:
    return expected_seconds(problem, judgement.value, sum(1 for use in judgement.devices if use.ops))


def _only_placement(problem: Problem, judgement: Judgement, bound: Bound) -> Bound:
    """Where every op may run on one device only, its value is the bound; calls and orders leave a choice."""
    choice = problem.objective.kind == "latency" and problem.objective.execution != "sequential"
    if choice or np.count_nonzero(problem.allowed) > problem.n_ops:
        return bound
    return Bound(judgement.value, "the only placement that the rules allow")


def _propose(
    placer: Placer,
    problem: Problem,
    watch: Stopwatch,
    budget: Budget,
    hints: Hints,
    evaluate: Evaluate | None,
    on_progress: OnProgress,
) -> Proposal:
    started = watch.elapsed
    try:
        proposal = run_placer(placer, problem, budget, hints=hints, evaluate=evaluate, on_progress=on_progress)
        history = tuple(replace(step, seconds=started + step.seconds) for step in proposal.history)
        return make_sound(placer.info, problem, replace(proposal, history=history))
    except KeyboardInterrupt:
        return Proposal(None, reason=Reason.INTERRUPTED)


def _in_bytes(problem: Problem, proposal: Proposal, watch: Stopwatch) -> Proposal:
    """A proof that nothing fits, said in bytes where that is what is missing; or that a looser rule would do."""
    free = problem.with_(constraints=replace(problem.constraints, contiguous=False, convex=False, ordered=False))
    packer = registry.create(PACKER)
    counts_bytes = " bytes)" in proposal.infeasible and not proposal.infeasible.startswith("none of the ")
    if counts_bytes or packer.supports(free) is not None:
        return proposal
    packed = run_placer(packer, free, replace(watch.rest(), seconds=min(watch.left, PACKING)))
    if packed.infeasible:
        return replace(proposal, infeasible=packed.infeasible)
    if packed.placement is not None and problem.constraints.shaped:
        freer = "stages that form no chain" if problem.constraints.contiguous else "sets that are not convex"
        return replace(proposal, infeasible=f"{proposal.infeasible}; {freer} would fit")
    return proposal
