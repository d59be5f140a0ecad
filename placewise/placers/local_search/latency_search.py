"""Local search for latency by parallel tempering.

In `operator` execution the chains price their moves themselves, from the first moment that a move affects
(`latency_chains.py`). In other executions, and where values are measured, the evaluator prices whole placements
(`parallel_tempering.py`). The search stops where a lower bound proves that the best placement is optimal; with a time
limit, a share of the time goes into that bound first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.quantized import held_bytes
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason, gap_of
from placewise.placers.base import Budget, Progress, SearchContext, run_placer
from placewise.placers.local_search.latency_chains import run_chains
from placewise.placers.local_search.parallel_tempering import KeepsRules, TemperingState, temper
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.move_space import build_move_space
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.starting_placements import StartingPlacements, find_starting_placements
from placewise.simulate import Evaluator
from placewise.simulate.blocks import block_firsts
from placewise.simulate.judge.memory import resident_bytes

SETUP = 1.5e-6
"""Seconds per op and edge that a search needs before its first move; with less time left none begins."""
BOUNDED_OPS = 200_000
"""With a time limit, larger graphs get no bound: it would take too long."""
BOUNDING, BOUND_SHARE = "paths", 0.25
"""The placer that proves bounds in `subgraph` execution, and its share of the remaining time."""
WORK, OVERHEAD = 1.6e7, 400
"""Without any limit: ops and edges to price, where each placement counts as `OVERHEAD` more; about a second."""
ROUNDS_PER_BLOCK = 10
SLACK = 0.1
"""Seconds by which a round may overrun the budget."""
REPORT_INTERVAL = 0.5


def search_latency(search: SearchContext, searches: int, name: str, *, find_bound: bool) -> Proposal:
    """The best placement found from the starting placements, with the best lower bound known.

    `name` stands in progress reports.
    """
    problem, bound = search.problem, search.hints.bound
    starts = find_starting_placements(search)
    if starts.infeasible:
        return Proposal(None, reason=Reason.PROVED, infeasible=starts.infeasible)
    reason = Reason.INTERRUPTED if starts.interrupted else Reason.FINISHED
    best: Ints | None = None
    try:
        if find_bound and search.hints.bound is None:
            reason = _prove_bound(search, starts, reason)
        bound = starts.bound or Bound(0.0, "nonnegative costs")
        devices = np.array(starts.devices, np.int32).reshape(len(starts.placements), problem.n_ops)
        values = np.asarray(search.price(devices), np.float64) if len(devices) else np.zeros(0)
        finite = np.flatnonzero(np.isfinite(values))
        if not len(finite):
            return Proposal(None, bound, reason, ("no placement was found to start from",))
        devices, values = devices[finite], values[finite]
        best = devices[int(values.argmin())]
        if reason is not Reason.INTERRUPTED:
            best, reason = _run_rounds(search, devices, values, bound.value, searches, name)
    except KeyboardInterrupt:
        reason = Reason.INTERRUPTED
    return Proposal(None if best is None else Placement(relabel(problem, best)), bound, reason)


def _prove_bound(search: SearchContext, starts: StartingPlacements, reason: Reason) -> Reason:
    """Raise `starts.bound`; the placer that proves one may add a placement of its own. Whether it was interrupted."""
    problem, watch = search.problem, search.watch
    placer = create(BOUNDING)
    if problem.objective.execution != "subgraph":
        if problem.n_ops <= BOUNDED_OPS or not np.isfinite(watch.budget.seconds):
            starts.bound = search.bound
    elif reason is not Reason.INTERRUPTED and placer.supports(problem) is None:
        budget = replace(watch.rest(), seconds=BOUND_SHARE * watch.left)
        proposal = run_placer(placer, problem, budget, evaluate=search.price, on_progress=search.on_progress)
        starts.bound = proposal.bound
        if proposal.placement is not None and not find_broken_rule(problem, proposal.placement.device):
            starts.placements.append(Placement(proposal.placement.device))
        return Reason.INTERRUPTED if proposal.reason is Reason.INTERRUPTED else reason
    return reason


def _run_rounds(
    search: SearchContext, starts: Ints, values: Floats, bound: float, searches: int, name: str
) -> tuple[Ints, Reason]:
    """The best placement [n_ops], and why the search ended; `starts` [S, n_ops] have finite values."""
    problem, watch = search.problem, search.watch
    first = block_firsts(problem)
    most_rounds, most_work = _work_limits(problem, watch.budget)
    rounds = _rounds(search, starts[:, first], values, searches, most_work)
    state = TemperingState(starts[int(values.argmin())][first], float(values.min()), 0)
    reported, count, slowest = 0.0, 0, SETUP * (problem.n_ops + problem.graph.n_edges)
    reason = Reason.FINISHED
    try:
        while gap_of(state.value, bound) > max(watch.budget.gap, OPTIMAL_GAP):
            if watch.out or watch.left < slowest - SLACK:
                reason = Reason.TIME_LIMIT
                break
            if count >= most_rounds or state.work + searches > most_work:
                break
            started = watch.elapsed
            after = next(rounds, None)
            if after is None:
                break
            slowest = watch.elapsed - started if count else 0.0
            state, count = after, count + 1
            if watch.elapsed > reported + REPORT_INTERVAL:
                reported = watch.elapsed
                search.on_progress(Progress(name, reported, f"round {count}", state.value, bound))
    except KeyboardInterrupt:
        reason = Reason.INTERRUPTED
    return state.assignment[problem.block], reason


def _rounds(
    search: SearchContext, starts: Ints, values: Floats, searches: int, most_work: float
) -> Iterator[TemperingState]:
    """Rounds of tempering from assignments of blocks [S, n_blocks]; at most `most_work` placements are priced."""
    problem, budget, price = search.problem, search.budget, search.price
    if problem.objective.op_by_op and isinstance(price, Evaluator):
        most = None if np.isinf(most_work) else int(most_work)
        keeps_rules = _rule_check(problem) if problem.constraints.shaped else None
        return run_chains(
            problem, starts, values, keeps_rules,
            seed=budget.seed, most=most, threads=budget.most_threads,
            count_seconds=lambda: search.watch.left,
        )  # fmt: skip
    return temper(
        build_move_space(problem), starts, values, lambda blocks: price(blocks[:, problem.block]),
        _rule_check(problem),
        searches=searches, seed=budget.seed,
    )  # fmt: skip


def _work_limits(problem: Problem, budget: Budget) -> tuple[float, float]:
    """The most rounds, and the most placements to price; a fixed amount of work where the budget has no limit."""
    if np.isfinite(budget.seconds) or budget.iterations is not None or budget.evaluations is not None:
        most = [np.inf if limit is None else limit for limit in (budget.iterations, budget.evaluations)]
        return most[0], most[1]
    return ROUNDS_PER_BLOCK * problem.n_blocks, WORK / (OVERHEAD + problem.n_ops + problem.graph.n_edges)


def _rule_check(problem: Problem) -> KeepsRules | None:
    """The check of the rules that moves may break, live activations and the shape of stages; None without them."""
    if problem.objective.memory != "live" and not problem.constraints.shaped:
        return None
    activations = float(held_bytes(problem).sum())

    def keeps_rules(assignment: Ints) -> bool:
        device = assignment[problem.block]
        if not problem.constraints.shaped:
            resident = resident_bytes(problem, device)
            most = resident + np.where(np.bincount(device, minlength=len(resident)), activations, 0)
            if (most <= problem.capacity).all():
                return True
        return not find_broken_rule(problem, device)

    return keeps_rules
