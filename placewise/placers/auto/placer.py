"""auto: an anytime portfolio of naive placers and heuristics, then the exact method, searches, and proofs.

With a time limit, searches take turns in slices, each from the best placements so far; a search that improves on them
gets longer slices. Once none of them finds anything, the remaining time goes into a proof. Without a time limit each
placer runs once, with its own amount of work; under a budget of iterations placers that count them run again and again,
each time with twice as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewise.coarsen.scopes import join_parts
from placewise.errors import MissingExtraError
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Proposal, Reason
from placewise.placers.auto import strategy
from placewise.placers.auto.history import History
from placewise.placers.auto.strategy import Turn
from placewise.placers.base import Placer, PlacerInfo, Progress, SearchContext, make_sound, run_placer
from placewise.placers.registry import create
from placewise.placers.shared.starting_placements import keeps_rules

QUICK_PACE = 8e-6
"""Seconds per op of a quick placer on a large graph, on a busy machine."""
NEEDED_PACE, NEEDED_TURN = 2.5e-6, 4.0
"""The same for a quick placer that is needed, on an idle machine; and the judgements that it takes on any machine."""
QUICK_SHARE, HUGE_SHARE = 0.2, 0.4
"""Of the time, for quick placers; and on huge graphs, where they take seconds and searches find little."""
SEARCH_SHARE = 0.5
"""Of the time, for searches before a proof is tried."""
FIRST_SLICE, SLICES, SLICE_PER_OP = 0.5, 24, 3e-5
"""The first slice of a search has at least this many seconds, this part of the time, and this many seconds per op."""
MIN_TURN = 3.0
"""A placer runs only if the remaining time is more than this many judgements take."""
KEPT_TURNS = 2.0
"""A placer leaves the time of so many judgements: of its placement, and of the best in the end, which may take longer
than that of an even split."""
LEAST_SLICE = 0.5
"""Searches that move whole parts of the model are tried where their slices are this part of a first slice or longer."""
LONGEST_SLICE = 0.2
"""Of the time, for one slice."""
PATIENCE = 2
"""A proof is tried once each search had this many slices in a row without an improvement."""
WORTH_GOING_ON, FEW_ROUNDS, SECONDS_PER_OP = 0.01, 3, 5e-4
"""A search for latency begins again once twice its time made the value smaller by less than this share, but not before
it had so many rounds of slices, and so many seconds per op: on large graphs a search is slow, not converged."""
SOON_SEARCHED = 30
"""With this many groups of ops or fewer, searches end after `PATIENCE` slices; with more, when the time is over."""


class _RunOver(Exception):
    """Nothing is left to do: proved, infeasible or interrupted."""


@dataclass(slots=True)
class _Searcher:
    """A search, the seconds of its next slice, and its slices in a row without improvement (inf: it ended early)."""

    turn: Turn
    seconds: float
    idle: float = 0


class AutoPlacer:
    """Naive placements first, then every placer that suits the problem; the best placement of all."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="auto",
        summary="the best of the placers that suit the problem",
        source="a portfolio of the placers here",
        replicates=True,
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best valid proposal or hint with its notes, under the tightest bound that any placer proved."""
        return _Portfolio(search).answer()


class _Portfolio:
    """One call of the placer."""

    def __init__(self, search: SearchContext) -> None:
        self._context, self.problem, self.hints, self.watch = search, search.problem, search.hints, search.watch
        self.timed = bool(np.isfinite(search.budget.seconds))
        self.history = History(
            self.problem, search.price, self.watch, search.on_progress, self.timed, judging=search.hints.judging
        )
        self._infeasible: Proposal | None = None
        self._tighter: _Portfolio | None = None
        self._work, self._passes, self._over = search.budget.iterations, 0, False

    def answer(self) -> Proposal:
        budget = self.watch.budget
        for work in (budget.iterations,) if self.timed else strategy.works(budget.iterations):
            self.run_pass(work)
        if self.watch.out and self.history.reason is Reason.FINISHED:
            self.history.reason = Reason.TIME_LIMIT
        return self._infeasible or self.history.answer()

    def run_pass(self, work: int | None) -> None:
        """Give each placer a turn of so many iterations, after the first pass from the best of the passes before.

        No pass depends on how many follow it. So more of them never make the answer worse.
        """
        if self._over:
            return
        try:
            self._work = work
            if not self._passes:
                self._take_hints()
            self._solve_tighter()
            self._run_quick_placers()
            seconds = self.watch.budget.seconds
            for turn in (*strategy.main(self.problem, seconds), *strategy.others(self.problem, seconds)):
                if turn.placer != strategy.LAST_RESORT or self.history.best is None:
                    self._take(turn, turn.share * self.watch.left)
            self._search(strategy.searches(self.problem))
        except _RunOver:
            self._over = True
        except KeyboardInterrupt:
            self.history.reason, self._over = Reason.INTERRUPTED, True
        self._passes += 1

    def _take_hints(self) -> None:
        self.history.bounds.append(self._context.bound)
        for name, (placement, judgement) in self.hints.baselines.items():
            self.history.record(name, Proposal(placement), judgement)
        for placement in self.hints.placements:
            self.history.record("a hint", Proposal(placement))

    def _solve_tighter(self) -> None:
        """Without a time limit: solve the problem of the next tighter shape, as if it had been asked for, first.

        So the answer is no worse than the one of that problem, nor of a still tighter one. Raises `_RunOver`.
        """
        shape = strategy.tighter(self.problem)
        if self.timed or shape is None:
            return
        history = self.history
        self._tighter = self._tighter or _Portfolio(
            SearchContext(
                with_shape(self.problem, shape),
                self.watch.budget,
                replace(self.hints, baselines={}, bound=None),
                history.price,
                lambda state: history.report(replace(state, bound=None)),
            )
        )
        self._tighter.run_pass(self._work)
        history.adopt(self._tighter.history)
        if history.reason is Reason.INTERRUPTED or history.optimal(max(self.watch.budget.gap, OPTIMAL_GAP)):
            raise _RunOver

    def _run_quick_placers(self) -> None:
        share = HUGE_SHARE if self.problem.n_ops > strategy.HUGE_OPS else QUICK_SHARE
        until = share * self.watch.budget.seconds
        for turn in strategy.quick(self.problem):
            if turn.placer in self.hints.baselines:
                continue
            late = self.watch.elapsed + QUICK_PACE * self.problem.n_ops >= until
            if self.history.best is not None and not (self._ends_in_time() if turn.needed else not late):
                continue
            left = self.watch.left if turn.needed else max(until - self.watch.elapsed, 0.0)
            self._take(turn, min(turn.share * self.watch.left, left or self.watch.left))

    def _ends_in_time(self) -> bool:
        """Whether a quick placer can be expected to end, and its placement to be judged, before the time is over."""
        expected = max(NEEDED_PACE * self.problem.n_ops, NEEDED_TURN * self.history.judging)
        return expected < self.watch.left

    def _search(self, turns: Sequence[Turn]) -> None:
        """Run searches, then proofs, then searches again until the time is over."""
        self._check_time()
        proofs = strategy.proofs(self.problem)
        if not self.timed:
            for turn in (*turns, *proofs):
                self._take(turn, np.inf)
            return
        first = max(FIRST_SLICE, self.watch.budget.seconds / SLICES, SLICE_PER_OP * self.problem.n_ops)
        searchers = [_Searcher(turn, first) for turn in turns if self._placer(turn)]
        proofs = tuple(turn for turn in proofs if self._placer(turn))
        until = SEARCH_SHARE * self.watch.budget.seconds if proofs else self.watch.budget.seconds
        objective, few = self.problem.objective, self.problem.n_blocks <= SOON_SEARCHED
        if objective.kind == "latency" and objective.op_by_op and not few:
            self._restart(searchers)
        self._rotate(searchers, until, PATIENCE)
        for turn in proofs:
            self._take(turn, turn.share * self.watch.left)
        patience = PATIENCE if few else np.inf
        for searcher in searchers:
            searcher.idle = 0
        self._rotate(searchers, self.watch.budget.seconds, patience)

    def _restart(self, searchers: Sequence[_Searcher]) -> None:
        """Search from the same beginning again and again, while there is time for another search.

        Which optimum a search runs into is decided early, and by chance. What follows goes on from the best of all.
        """
        history, start, first, longest = self.history, self.history.pool, searchers[0].seconds, 0.0
        parts = self._try_parts(searchers)
        while any(np.isfinite(searcher.idle) for searcher in searchers):
            begun = self.watch.elapsed
            self._converge(searchers)
            longest = max(longest, self.watch.elapsed - begun)
            if self.watch.left <= longest:
                break
            history.recent = start
            self._search_parts(parts)
            _renew(searchers, first)
        history.recent = history.pool

    def _try_parts(self, searchers: Sequence[_Searcher]) -> Sequence[_Searcher]:
        """The searches that move whole parts of the model, if these get further than the others in about the same time.

        The better of the two goes on from what it found.
        """
        history, start, first = self.history, self.history.pool, searchers[0].seconds
        turns, seconds = strategy.by_parts(self.problem), strategy.PARTS_SHARE * self.watch.left
        each = min(seconds / max(len(turns), 1), first)
        if not turns or each < LEAST_SLICE * first:
            return ()
        parts, begun = [_Searcher(turn, each) for turn in turns], self.watch.elapsed
        self._search_parts(parts)
        found, history.recent = history.recent, start
        self._rotate(searchers, self.watch.elapsed + (self.watch.elapsed - begun), PATIENCE)
        if not found or history.recent_value <= found[0].value:
            return ()
        history.recent = found
        _renew(searchers, first)
        return parts

    def _search_parts(self, searchers: Sequence[_Searcher]) -> None:
        """Search for placements of whole parts of the model, so that later searches go on from these."""
        if not searchers:
            return
        joined, each = join_parts(self.problem), searchers[0].seconds
        self.history.recent = [
            kept
            for kept in self.history.recent
            if kept.proposal.placement is not None and keeps_rules(joined, kept.proposal.placement)
        ]
        self._rotate(searchers, self.watch.elapsed + strategy.PARTS_SHARE * self.watch.left, PATIENCE)
        _renew(searchers, each)

    def _converge(self, searchers: Sequence[_Searcher]) -> None:
        """Run slices until twice the time brings less than `WORTH_GOING_ON`, or until half of the time is over."""
        begun, reached = self.watch.elapsed, [(0.0, self.history.recent_value)]
        while any(np.isfinite(searcher.idle) for searcher in searchers):
            self._run_round(searchers)
            spent, value = self.watch.elapsed - begun, self.history.recent_value
            earlier = min(value for when, value in reached if when <= spent / 2)
            reached.append((spent, value))
            long = len(reached) > FEW_ROUNDS and spent > SECONDS_PER_OP * self.problem.n_ops
            converged = long and earlier - value < WORTH_GOING_ON * earlier
            if converged or self.watch.left < spent:
                return

    def _rotate(self, searchers: Sequence[_Searcher], until: float, patience: float) -> None:
        """Run slices by turns until `until`, or until every search had `patience` slices without an improvement.

        Slices grow. A search without improvements is skipped while others make some.
        """
        while self.watch.elapsed < until and any(searcher.idle < patience for searcher in searchers):
            self._run_round(searchers, until)

    def _run_round(self, searchers: Sequence[_Searcher], until: float = np.inf) -> None:
        """Run a slice of each search before `until`, but of those without improvements only while none makes any."""
        for searcher in searchers:
            if self.watch.elapsed >= until:
                return
            waits = searcher.idle >= PATIENCE and any(other.idle == 0 for other in searchers)
            if not waits and np.isfinite(searcher.idle):
                self._run_slice(searcher, searchers)

    def _run_slice(self, searcher: _Searcher, searchers: Sequence[_Searcher]) -> None:
        """Run one slice of a search and make its next one longer; any improvement wakes the others."""
        started, seconds = self.watch.elapsed, min(searcher.seconds, self.watch.left)
        if self._take(searcher.turn, seconds):
            for other in searchers:
                other.idle = min(other.idle, PATIENCE)
            searcher.idle = 0
        else:
            searcher.idle += 1 if self.watch.elapsed - started > seconds / 2 else np.inf
        longest = LONGEST_SLICE * self.watch.budget.seconds
        searcher.seconds = max(min(searcher.seconds * 1.5, longest), searcher.seconds)

    def _placer(self, turn: Turn) -> Placer | None:
        """The placer of a turn, or None where its extra is missing or it does not support the problem."""
        try:
            placer = create(turn.placer, turn.options)
        except MissingExtraError:
            return None
        return placer if placer.supports(self._problem(turn)) is None else None

    def _problem(self, turn: Turn) -> Problem:
        """What the placer of a turn is asked to solve."""
        return with_shape(self.problem, turn.shape) if turn.shape else self.problem

    def _check_time(self) -> None:
        """Raise `_RunOver` where no placer could run, and its placement be judged, any more."""
        history = self.history
        if history.turns and self.watch.left <= (MIN_TURN * history.judging if history.best is not None else 0.0):
            history.reason = Reason.TIME_LIMIT
            raise _RunOver

    def _take(self, turn: Turn, seconds: float) -> bool:
        """Run a placer for some seconds; whether it improved on the best. Raises `_RunOver`."""
        history, gap = self.history, max(self.watch.budget.gap, OPTIMAL_GAP)
        self._check_time()
        placer, rest, counts = self._placer(turn), self.watch.rest(), turn.placer in strategy.COUNTING
        if placer is None or (self._passes and not counts) or (self._work == 0 and counts):
            return False
        work = self._work if turn.work is None else turn.work
        seed = (rest.seed + 7919 * (history.turns if self.timed else self._passes)) % (1 << 31)
        most = max(rest.seconds - KEPT_TURNS * history.judging, 0.0)
        budget = replace(rest, seconds=min(seconds, most), latest=most, iterations=work, seed=seed)
        history.report(Progress(turn.placer, self.watch.elapsed, "starting"))
        known = history.placements if turn.hinted or not turn.shape else ()
        looser = turn.shape == "any"
        bound = history.bounds[0] if looser else history.bound  # the first one holds for stages of any shape
        hints = replace(self.hints, placements=known, baselines={}, bound=bound)
        proposal = run_placer(
            placer,
            self._problem(turn),
            budget,
            hints=hints,
            evaluate=history.price,
            on_progress=(lambda state: history.report(replace(state, value=None))) if looser else history.report,
        )
        proposal = make_sound(placer.info, self.problem, proposal)
        if looser:
            proposal = replace(proposal, placement=None)
        elif turn.shape:
            proposal = replace(proposal, bound=None, infeasible="")
        if proposal.infeasible:
            self._infeasible = proposal
            raise _RunOver
        before = history.recent_value
        history.record(turn.placer, proposal)
        better = history.recent_value < before
        if proposal.reason is Reason.INTERRUPTED or history.optimal(gap):
            raise _RunOver
        return better


def _renew(searchers: Sequence[_Searcher], seconds: float) -> None:
    """Let searches begin anew, with slices of so many seconds."""
    for searcher in searchers:
        searcher.seconds, searcher.idle = seconds, 0


def with_shape(problem: Problem, shape: strategy.Shape) -> Problem:
    """The problem of a shape.

    Placements of a tighter one keep the problem's rules, where its bounds do not hold; of a looser one, the reverse.
    """
    if shape == "parts":
        return join_parts(problem)
    contiguous, convex = shape == "contiguous", shape == "convex"
    return problem.with_(constraints=replace(problem.constraints, contiguous=contiguous, convex=convex))
