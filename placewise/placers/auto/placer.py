"""auto: an anytime portfolio. Naive answers and heuristics at once, then the exact method, searches, and proofs.

With a time limit, searches take turns in slices that grow while they pay: each goes on from the best placements that
anybody found. Where none of them finds anything any more, what is left of the time goes into a proof; without a time
limit everybody has one turn with its own amount of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import ClassVar

import numpy as np

from placewise.errors import MissingExtraError
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Proposal, Reason
from placewise.placers.auto import strategy
from placewise.placers.auto.history import History
from placewise.placers.auto.strategy import Turn
from placewise.placers.base import (
    Hints,
    Placer,
    PlacerInfo,
    Progress,
    SearchContext,
    run_placer,
    sound,
)
from placewise.placers.registry import create
from placewise.simulate import lower_bound

QUICK_PACE = 8e-6
"""Seconds per op of a quick placer on a large graph."""
QUICK_SHARE = 0.2
"""Of the time, for quick placers, which may not be quick on large graphs."""
HUGE_SHARE = 0.4
"""The same where they take seconds and searches find little."""
SEARCH_SHARE = 0.5
"""Of the time, for searches before a proof is tried."""
FIRST_SLICE, SLICES, SLICE_PER_OP = 0.5, 24, 3e-5
"""Seconds of a search's first slice, the most equal parts into which slices cut a long time, and what searches need
per op to begin at all."""
LEAST_TURN = 3.0
"""A placer that has less time than so many judgements take is not asked: it would only begin."""
LONGEST_SLICE = 0.2
"""Of the time, for one slice."""
PATIENCE = 2
"""So many slices of every search without a find are enough, before a proof is tried."""
SOON_SEARCHED = 30
"""Groups of ops among which searches soon have seen everything; elsewhere they go on until the time is over."""


class _Over(Exception):
    """Nothing is left to do: proved, infeasible or interrupted."""


@dataclass(slots=True)
class _Searcher:
    """A search, the seconds of its next slice, and how many in a row found nothing (inf: it stopped by itself)."""

    turn: Turn
    seconds: float
    idle: float = 0


class AutoPlacer:
    """Everything that people do by hand, then every method here that suits, and the best of it all."""

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
        return _Run(search).answer()


class _Run:
    """One call."""

    def __init__(self, search: SearchContext) -> None:
        self.problem, self.given, self.watch = search.problem, search.hints, search.watch
        self.timed = bool(np.isfinite(search.budget.seconds))
        self.history = History(
            self.problem, search.price, self.watch, search.on_progress, self.timed, judging=search.hints.judging
        )
        self._infeasible: Proposal | None = None

    def answer(self) -> Proposal:
        try:
            self.history.bounds.append(self.given.bound or lower_bound(self.problem))
            for who, (placement, judgement) in self.given.baselines.items():
                self.history.hear(who, Proposal(placement), judgement)
            makers = chain(self.given.by, repeat("a hint"))
            for placement, who in zip(self.given.placements, makers, strict=False):
                self.history.hear(who, Proposal(placement))
            self._quick()
            for turn in (*strategy.main(self.problem), *strategy.others(self.problem, self.watch.budget.seconds)):
                if turn.placer != strategy.LAST_RESORT or self.history.best is None:
                    self._take(turn, turn.share * self.watch.left)
            self._search(strategy.searches(self.problem))
        except _Over:
            pass
        except KeyboardInterrupt:
            self.history.reason = Reason.INTERRUPTED
        if self.watch.out and self.history.reason is Reason.FINISHED:
            self.history.reason = Reason.TIME_LIMIT
        return self._infeasible or self.history.answer()

    def _quick(self) -> None:
        share = HUGE_SHARE if self.problem.n_ops > strategy.HUGE_OPS else QUICK_SHARE
        until = share * self.watch.budget.seconds
        for turn in strategy.quick(self.problem):
            if turn.placer in (*self.given.by, *self.given.baselines):
                continue
            if self.history.best is not None and self.watch.elapsed + QUICK_PACE * self.problem.n_ops >= until:
                return
            self._take(turn, min(turn.share * self.watch.left, max(until - self.watch.elapsed, 0.0) or self.watch.left))

    def _search(self, turns: Sequence[Turn]) -> None:
        """Searches, then proofs, then searches again for as long as there is time."""
        proofs = strategy.proofs(self.problem)
        if not self.timed:
            for turn in (*turns, *proofs):
                self._take(turn, np.inf)
            return
        first = max(FIRST_SLICE, self.watch.budget.seconds / SLICES, SLICE_PER_OP * self.problem.n_ops)
        searchers = [_Searcher(turn, first) for turn in turns if self._placer(turn)]
        proofs = tuple(turn for turn in proofs if self._placer(turn))
        until = SEARCH_SHARE * self.watch.budget.seconds if proofs else self.watch.budget.seconds
        self._rotate(searchers, until, PATIENCE)
        for turn in proofs:
            self._take(turn, self.watch.left)
        patience = PATIENCE if self.problem.n_blocks <= SOON_SEARCHED else np.inf
        self._rotate(searchers, self.watch.budget.seconds, patience)

    def _rotate(self, searchers: Sequence[_Searcher], until: float, patience: float) -> None:
        """Slices by turns until then, or until nobody has found anything in so many slices.

        Who finds something gets longer slices; who does not is passed over while others do.
        """
        for searcher in searchers:
            searcher.idle = 0
        while self.watch.elapsed < until and any(searcher.idle < patience for searcher in searchers):
            for searcher in searchers:
                if self.watch.elapsed >= until:
                    return
                if searcher.idle >= PATIENCE and any(other.idle == 0 for other in searchers):
                    continue
                begun, seconds = self.watch.elapsed, min(searcher.seconds, self.watch.left)
                if self._take(searcher.turn, seconds):
                    for other in searchers:
                        other.idle = min(other.idle, PATIENCE)
                    searcher.idle = 0
                else:
                    searcher.idle += 1 if self.watch.elapsed - begun > seconds / 2 else np.inf
                longest = LONGEST_SLICE * self.watch.budget.seconds
                searcher.seconds = max(min(searcher.seconds * 1.5, longest), searcher.seconds)

    def _placer(self, turn: Turn) -> Placer | None:
        """Who is asked in a turn, or None where its extra is missing or the problem is not for it."""
        try:
            placer = create(turn.placer, turn.options)
        except MissingExtraError:
            return None
        return placer if placer.supports(self.problem) is None else None

    def _take(self, turn: Turn, seconds: float) -> bool:
        """Let a placer work for some seconds; whether it found something better. Raises `_Over`."""
        history, gap = self.history, max(self.watch.budget.gap, OPTIMAL_GAP)
        if history.turns and self.watch.left <= (LEAST_TURN * history.judging if history.best is not None else 0.0):
            raise _Over
        placer, rest = self._placer(turn), self.watch.rest()
        if placer is None:
            return False
        work = rest.iterations if turn.work is None else turn.work
        seed = (rest.seed + 7919 * history.turns) % (1 << 31) if self.timed else rest.seed
        most = max(rest.seconds - history.judging, 0.0)
        budget = replace(rest, seconds=min(seconds, most), iterations=work, seed=seed)
        history.tell(Progress(turn.placer, self.watch.elapsed, "starting"))
        found = run_placer(placer,
            self.problem, budget, hints=self._hints(), evaluate=history.price, on_progress=history.tell
        )  # fmt: skip
        found = sound(placer.info, self.problem, found)
        if found.infeasible:
            self._infeasible = found
            raise _Over
        better = history.hear(turn.placer, found)
        if found.reason is Reason.INTERRUPTED or history.closed(gap):
            raise _Over
        return better

    def _hints(self) -> Hints:
        return replace(self.given, placements=self.history.placements, by=(), baselines={}, bound=self.history.bound)
