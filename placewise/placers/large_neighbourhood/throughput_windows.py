"""Rounds of windows for throughput: cut parts out of the best placement, have them solved, take what is no worse.

Parts of chains go to `dp`, others to `cpsat`, both through the registry; several at once, each in a thread of its own.
An answer is taken if the judge finds its loads no higher, the largest first: so a window helps also where it cannot
reach every device that sets the value.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace

import numpy as np

from placewise import _native
from placewise.model.columns import Floats
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Improvement, Proposal, Reason, gap_of
from placewise.placers.base import Budget, Evaluate, Hints, OnProgress, Progress, Stopwatch, run_placer
from placewise.placers.large_neighbourhood.choice import KINDS, choose
from placewise.placers.large_neighbourhood.subproblem import Part, Window, cut
from placewise.placers.large_neighbourhood.units import units_of
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import relabel_placement
from placewise.placers.shared.objective_value import objective_value
from placewise.simulate import judge_placement

SOLVERS: dict[bool, tuple[tuple[str, dict[str, int]], ...]] = {
    True: (("dp", {"max_ideals": 60_000}), ("cpsat", {})),
    False: (("cpsat", {}),),
}
"""For parts of chains, and for others: placers and their options, the first that takes the part."""
TOO_LARGE = Proposal(None, reason=Reason.TIME_LIMIT)
SEEDS = ("balanced", "single", "dpl")
"""Who makes the placements to start from where there are no hints and no time is for a search."""
SEEDING = 0.2
"""Of the time that is left, for each of them."""
LAST_RESORT = "pack"
SEARCH = "local"
"""Who makes a better one where a share of the time is for that."""
SMALLEST = 8
LARGEST = {True: 4000, False: 400}
"""Groups in a window, of chains and of others."""
MOST_INSIDE = 4
SLICE = 0.5
"""The most seconds for one window."""
QUICK = 0.1
"""Seconds in which a window is solved so quickly that the next is to be much larger."""
WORK = 1
"""The most of a solver's own work on one window where the budget has no seconds."""
ROUNDS = 8
"""Rounds of windows where the budget has no limit."""
STALE = 2
"""Rounds in which every window held all there is, was solved and changed nothing: then nothing is left to find."""
WORTH = 1e-12
"""What is gained below this share is rounding."""


@dataclass(frozen=True, slots=True)
class _State:
    """A placement that keeps the rules, its value, and the loads of devices [n_devices]."""

    placement: Placement
    value: float
    loads: Floats

    def key(self) -> tuple[float, ...]:
        return (self.value, *np.sort(self.loads)[::-1].tolist())


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a solver said of a part; how many times as large the next window is to be; if this one was all there is."""

    part: Part
    kind: str
    found: Proposal
    grow: float
    whole: bool


class Search:
    """One call: the best placement so far, and how large windows of each kind are."""

    def __init__(
        self,
        problem: Problem,
        hints: Hints,
        watch: Stopwatch,
        bound: Bound,
        *,
        size: int,
        together: int,
        evaluate: Evaluate | None,
        on_progress: OnProgress,
    ) -> None:
        self._problem, self._watch, self._bound, self._evaluate = problem, watch, bound, evaluate
        self._tell, self._together, self._likely = on_progress, together, hints.probabilities
        self._chained = problem.constraints.contiguous
        self._rng, self._stop = np.random.default_rng(watch.budget.seed), _native.StopFlag()
        self._size = dict.fromkeys(KINDS, float(size))
        self.reason, self._proof = Reason.FINISHED, ""
        self._asked: list[str] = []
        self.history: list[Improvement] = []
        judged = [state for state in map(self._judged, hints.placements) if state is not None]
        self._now = min(judged, key=_State.key, default=None)

    @property
    def found(self) -> bool:
        return self._now is not None

    @property
    def closed(self) -> bool:
        """Nothing is left to find."""
        gap = max(self._watch.budget.gap, OPTIMAL_GAP)
        return self._now is not None and gap_of(self._now.value, self._bound.value) <= gap

    def answer(self) -> Proposal:
        """The best placement, devices named by their first op."""
        if self._proof and self._now is None:
            return Proposal(None, reason=Reason.PROVED, infeasible=self._proof)
        if self._now is None:
            return Proposal(None, self._bound, self.reason, (f"no placement was found by {', '.join(self._asked)}",))
        named = relabel_placement(self._problem, self._now.placement)
        return Proposal(named, self._bound, self.reason, history=tuple(self.history))

    def begin(self, share: float) -> None:
        """Start from what a local search finds in a share of the time, or quick placers if that is 0."""
        rest = replace(self._watch.rest(), iterations=None)
        if share:
            self._ask(SEARCH, replace(rest, seconds=share * rest.seconds))
        for name in () if share else SEEDS:
            self._ask(name, replace(rest, seconds=SEEDING * rest.seconds))
        if self._now is None:
            self._ask(LAST_RESORT, self._watch.rest())

    def _ask(self, name: str, budget: Budget) -> None:
        """Keep what a placer finds, its bound and its proof."""
        placer = create(name)
        if self.reason is Reason.INTERRUPTED or placer.supports(self._problem) is not None:
            return
        self._asked.append(name)
        known = () if self._now is None else (self._now.placement,)
        seeds = Hints(known, probabilities=self._likely, bound=self._bound)
        found = run_placer(placer, self._problem, budget, hints=seeds, evaluate=self._evaluate, on_progress=self._tell)
        state = None if found.placement is None else self._judged(found.placement)
        if state is not None and (self._now is None or state.key() <= self._now.key()):
            self._now = state
        self._proof = self._proof or found.infeasible
        if found.bound is not None and (placer.info.replicates or self._problem.most_replicas == 1):
            self._bound = max(self._bound, found.bound, key=lambda known: known.value)
        if found.reason is Reason.INTERRUPTED:
            self.reason = Reason.INTERRUPTED

    def run(self) -> None:
        """Windows until the budget is used up or nothing is left to find."""
        self._units = units_of(self._problem)
        rounds, stale, told, quickest, budget = 0, 0, 0.0, 0.0, self._watch.budget
        most = ROUNDS if budget.iterations is None and not np.isfinite(budget.seconds) else budget.iterations or np.inf
        if budget.iterations == 0 or self._problem.n_devices < 2:
            return
        with ThreadPoolExecutor(min(self._together, budget.most_threads)) as pool:
            while not self.closed and rounds < most and stale < STALE:
                began = self._watch.elapsed
                if self._watch.left <= quickest / 2:
                    self.reason = Reason.TIME_LIMIT
                    return
                answers = self._round(pool)
                if answers is None:
                    self.reason = Reason.INTERRUPTED
                    return
                changed = self._take(answers)
                alone = all(answer.whole and answer.grow > 1 for answer in answers)
                stale = stale + 1 if alone and not changed else 0
                rounds, quickest = rounds + 1, min(quickest or np.inf, self._watch.elapsed - began)
                if self._watch.elapsed > told + 0.5 and self._now is not None:
                    told = self._watch.elapsed
                    self._tell(Progress("windows", told, f"round {rounds}", self._now.value, self._bound.value))

    def _round(self, pool: ThreadPoolExecutor) -> list[_Answer] | None:
        """The answers to some windows, None after Ctrl-C."""
        assert self._now is not None
        jobs: list[Future[_Answer]] = []
        try:
            for number in range(self._together):
                kind = KINDS[int(self._rng.integers(len(KINDS)))]
                size, n_inside = round(self._size[kind]), int(self._rng.integers(2, MOST_INSIDE + 1))
                home = self._units.home(self._now.placement.device)
                window = choose(kind, self._units, home, self._now.loads, size, n_inside, self._rng)
                seed = int(self._rng.integers(1 << 30))
                jobs.append(pool.submit(self._solve, kind, window, self._now.placement, seed + number))
            return [_result(job) for job in jobs]
        except KeyboardInterrupt:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            return None

    def _solve(self, kind: str, window: Window, now: Placement, seed: int) -> _Answer:
        part = cut(self._problem, self._units, now, window)
        watch, small = Stopwatch(self._budget(seed)), part.coarse.problem
        solvers = (create(name, options) for name, options in SOLVERS[self._chained])
        solver = next((placer for placer in solvers if placer.supports(small) is None), None)
        found = TOO_LARGE if solver is None else run_placer(solver, small, watch.budget, hints=Hints((part.hint,)))
        finished, timed = found.reason in (Reason.FINISHED, Reason.PROVED), np.isfinite(watch.budget.seconds)
        grow = 1.6 if timed and watch.elapsed < QUICK else 1.15
        if not finished or (timed and watch.elapsed > 0.8 * SLICE):
            grow = 0.75
        whole = len(window.devices) == self._problem.n_devices and len(np.unique(window.group)) == self._units.n
        return _Answer(part, kind, found, grow, whole)

    def _budget(self, seed: int) -> Budget:
        """What one window may take; windows are side by side, and each of them has one thread."""
        budget = Budget(gap=OPTIMAL_GAP, seed=seed, threads=1, stop=self._stop)
        if np.isfinite(self._watch.budget.seconds):
            return replace(budget, seconds=min(SLICE, self._watch.left))
        return replace(budget, iterations=WORK)

    def _take(self, answers: list[_Answer]) -> bool:
        """Go on from answers that are no worse; whether one was better. Sizes of windows follow their solvers."""
        better = False
        for answer in answers:
            size = min(self._size[answer.kind] * answer.grow, LARGEST[self._chained], self._units.n)
            self._size[answer.kind] = max(size, SMALLEST)
            if answer.found.placement is not None:
                better |= self._offer(answer.part.whole(answer.found.placement), answer.part)
        return better

    def _offer(self, placement: Placement, part: Part) -> bool:
        now = self._now
        assert now is not None
        if now.placement is not part.now and not self._chained:
            mixed = np.where(
                part.inside & (placement.device != part.now.device), placement.device, now.placement.device
            )
            placement = replace(now.placement, device=mixed)
        if placement == now.placement:
            return False
        state = self._judged(placement)
        if state is None or state.key() > now.key():
            return False
        self._now = state
        if state.value < now.value * (1 - WORTH):
            self.history.append(Improvement(self._watch.elapsed, state.value, "windows"))
        return any(a < b * (1 - WORTH) for a, b in zip(state.key(), now.key(), strict=True))

    def _judged(self, placement: Placement) -> _State | None:
        judgement = judge_placement(self._problem, placement)
        if not judgement.valid or not np.isfinite(judgement.value):
            return None
        value = judgement.value
        if self._evaluate is not None:
            value = objective_value(self._problem, placement, self._evaluate)
        loads = np.array([use.load for use in judgement.devices])
        return _State(placement, value, loads) if np.isfinite(value) else None


def _result(job: Future[_Answer]) -> _Answer:
    """A future's result; waits in small steps, so that Ctrl-C is heard."""
    while True:
        try:
            return job.result(timeout=0.1)
        except NotYet:
            if job.done():
                raise
