"""Rounds of windows for throughput: free parts of the best placement, solve them, accept what is no worse.

`dp` solves parts of chains and `cpsat` others, both through the registry; several at once, each in a thread of its own.
A solution is accepted if no load is higher, the largest compared first: a window helps even where it does not reach
every device that sets the value.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np

from placewise import _native
from placewise.model.columns import Floats
from placewise.model.placement import Placement
from placewise.model.result import OPTIMAL_GAP, Improvement, Proposal, Reason, gap_of
from placewise.placers.base import Budget, Hints, Progress, SearchContext, Stopwatch, run_placer
from placewise.placers.large_neighbourhood.choice import KINDS, choose_window
from placewise.placers.large_neighbourhood.subproblem import Subproblem, ThroughputWindow, cut_window, movable_units
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import relabel_placement
from placewise.placers.shared.objective_value import objective_value
from placewise.placers.shared.starting_placements import find_starting_placements, keeps_rules
from placewise.simulate import judge_placement

SOLVERS: dict[bool, tuple[tuple[str, dict[str, int]], ...]] = {
    True: (("dp", {"max_ideals": 60_000}), ("cpsat", {})),
    False: (("cpsat", {}),),
}
"""For parts of chains, and for others: placers and their options; the first that supports the part solves it."""
TOO_LARGE = Proposal(None, reason=Reason.TIME_LIMIT)
SMALLEST = 8
LARGEST = {True: 4000, False: 400}
"""Groups in a window, of chains and of others."""
MAX_INSIDE = 4
SLICE = 0.5
"""The most seconds for one window."""
QUICK = 0.1
"""A window that is solved in fewer seconds makes the next one much larger."""
WORK = 1
"""The most of a solver's own work on one window, without a time limit."""
ROUNDS = 8
"""Rounds where the budget has no limit."""
STALE = 2
"""The search ends after this many rounds whose windows freed everything, were solved, and improved nothing."""
MIN_GAIN = 1e-12
"""Relative gains below this are rounding errors."""


@dataclass(frozen=True, slots=True)
class _JudgedPlacement:
    """A valid placement, its value, and the loads of devices [n_devices]."""

    placement: Placement
    value: float
    loads: Floats

    def key(self) -> tuple[float, ...]:
        return (self.value, *np.sort(self.loads)[::-1].tolist())


@dataclass(frozen=True, slots=True)
class _WindowSolution:
    """A solver's proposal for a part, the growth factor for the next window, and whether this one freed everything."""

    part: Subproblem
    kind: str
    proposal: Proposal
    grow: float
    complete: bool


class ThroughputWindows:
    """One call: the best placement so far, and the size of windows of each kind. `start` must come before `run`."""

    def __init__(self, search: SearchContext, *, size: int, together: int) -> None:
        self._search, self._problem, self._watch = search, search.problem, search.watch
        self._bound, self._together = search.bound, together
        self._chained = search.problem.constraints.contiguous
        self._rng, self._stop = np.random.default_rng(search.budget.seed), _native.StopFlag()
        self._size = dict.fromkeys(KINDS, float(size))
        self.reason, self._infeasible = Reason.FINISHED, ""
        self._asked: list[str] = []
        self.history: list[Improvement] = []
        self._now: _JudgedPlacement | None = None

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that nothing better exists, up to the gap."""
        gap = max(self._watch.budget.gap, OPTIMAL_GAP)
        return self._now is not None and gap_of(self._now.value, self._bound.value) <= gap

    def answer(self) -> Proposal:
        """The best placement, with interchangeable devices in the order of their first ops."""
        if self._now is None and self._infeasible:
            return Proposal(None, reason=Reason.PROVED, infeasible=self._infeasible)
        if self._now is None:
            return Proposal(None, self._bound, self.reason, (f"no placement was found by {', '.join(self._asked)}",))
        named = relabel_placement(self._problem, self._now.placement)
        return Proposal(named, self._bound, self.reason, history=tuple(self.history))

    def start(self, search_share: float) -> None:
        """Start from the best hint or, without a valid one, from a local search for a share of the time."""
        hinted = any(keeps_rules(self._problem, hint) for hint in self._search.hints.placements)
        starts = find_starting_placements(self._search, plain=False, search_share=0.0 if hinted else search_share)
        self._infeasible, self._asked = starts.infeasible, starts.asked
        if starts.bound is not None:
            self._bound = max(self._bound, starts.bound, key=lambda bound: bound.value)
        if starts.interrupted:
            self.reason = Reason.INTERRUPTED
        judged = [state for state in map(self._judge, starts.placements) if state is not None]
        self._now = min(judged, key=_JudgedPlacement.key, default=None)

    def run(self) -> None:
        """Solve windows until the budget is exhausted or nothing is left to find."""
        if self._now is None or self.reason is Reason.INTERRUPTED:
            return
        self._units = movable_units(self._problem)
        rounds, stale, reported, quickest, budget = 0, 0, 0.0, 0.0, self._watch.budget
        most = ROUNDS if budget.iterations is None and not np.isfinite(budget.seconds) else budget.iterations or np.inf
        if budget.iterations == 0 or self._problem.n_devices < 2:
            return
        with ThreadPoolExecutor(min(self._together, budget.most_threads)) as pool:
            while not self.optimal and rounds < most and stale < STALE:
                started = self._watch.elapsed
                if self._watch.left <= quickest / 2:
                    self.reason = Reason.TIME_LIMIT
                    return
                solutions = self._solve_windows(pool)
                if solutions is None:
                    self.reason = Reason.INTERRUPTED
                    return
                changed = self._take(solutions)
                complete = all(solution.complete and solution.grow > 1 for solution in solutions)
                stale = stale + 1 if complete and not changed else 0
                rounds, quickest = rounds + 1, min(quickest or np.inf, self._watch.elapsed - started)
                if self._watch.elapsed > reported + 0.5:
                    reported = self._watch.elapsed
                    progress = Progress("windows", reported, f"round {rounds}", self._now.value, self._bound.value)
                    self._search.on_progress(progress)

    def _solve_windows(self, pool: ThreadPoolExecutor) -> list[_WindowSolution] | None:
        """The solutions of some windows, None after Ctrl-C."""
        assert self._now is not None
        jobs: list[Future[_WindowSolution]] = []
        try:
            for number in range(self._together):
                kind = KINDS[int(self._rng.integers(len(KINDS)))]
                size, n_inside = round(self._size[kind]), int(self._rng.integers(2, MAX_INSIDE + 1))
                assignment = self._units.assignment(self._now.placement.device)
                window = choose_window(kind, self._units, assignment, self._now.loads, size, n_inside, self._rng)
                seed = int(self._rng.integers(1 << 30))
                jobs.append(pool.submit(self._solve, kind, window, self._now.placement, seed + number))
            return [_result(job) for job in jobs]
        except KeyboardInterrupt:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            return None

    def _solve(self, kind: str, window: ThroughputWindow, now: Placement, seed: int) -> _WindowSolution:
        part = cut_window(self._problem, self._units, now, window)
        watch, small = Stopwatch(self._budget(seed)), part.coarse.problem
        solvers = (create(name, options) for name, options in SOLVERS[self._chained])
        solver = next((placer for placer in solvers if placer.supports(small) is None), None)
        hints = Hints((part.hint,))
        proposal = TOO_LARGE if solver is None else run_placer(solver, small, watch.budget, hints=hints)
        finished, timed = proposal.reason in (Reason.FINISHED, Reason.PROVED), np.isfinite(watch.budget.seconds)
        grow = 1.6 if timed and watch.elapsed < QUICK else 1.15
        if not finished or (timed and watch.elapsed > 0.8 * SLICE):
            grow = 0.75
        complete = len(window.devices) == self._problem.n_devices and len(np.unique(window.group)) == self._units.n
        return _WindowSolution(part, kind, proposal, grow, complete)

    def _budget(self, seed: int) -> Budget:
        """The budget of one window, which has one thread; others run beside it."""
        budget = Budget(gap=OPTIMAL_GAP, seed=seed, threads=1, stop=self._stop)
        if np.isfinite(self._watch.budget.seconds):
            return replace(budget, seconds=min(SLICE, self._watch.left))
        return replace(budget, iterations=WORK)

    def _take(self, solutions: list[_WindowSolution]) -> bool:
        """Continue from solutions that are no worse and adapt the sizes of windows; whether one was better."""
        better = False
        for solution in solutions:
            size = min(self._size[solution.kind] * solution.grow, LARGEST[self._chained], self._units.n)
            self._size[solution.kind] = max(size, SMALLEST)
            if solution.proposal.placement is not None:
                better |= self._offer(solution.part.lift(solution.proposal.placement), solution.part)
        return better

    def _offer(self, placement: Placement, part: Subproblem) -> bool:
        now = self._now
        assert now is not None
        if now.placement is not part.now and not self._chained:
            mixed = np.where(
                part.inside & (placement.device != part.now.device), placement.device, now.placement.device
            )
            placement = replace(now.placement, device=mixed)
        if placement == now.placement:
            return False
        state = self._judge(placement)
        if state is None or state.key() > now.key():
            return False
        self._now = state
        if state.value < now.value * (1 - MIN_GAIN):
            self.history.append(Improvement(self._watch.elapsed, state.value, "windows"))
        return any(a < b * (1 - MIN_GAIN) for a, b in zip(state.key(), now.key(), strict=True))

    def _judge(self, placement: Placement) -> _JudgedPlacement | None:
        judgement = judge_placement(self._problem, placement)
        if not judgement.valid or not np.isfinite(judgement.value):
            return None
        value = judgement.value
        if self._search.evaluate is not None:
            value = objective_value(self._problem, placement, self._search.evaluate)
        loads = np.array([use.load for use in judgement.devices])
        return _JudgedPlacement(placement, value, loads) if np.isfinite(value) else None


def _result(job: Future[_WindowSolution]) -> _WindowSolution:
    """A future's result; it waits in short steps, so that Ctrl-C gets through."""
    while not wait((job,), timeout=0.1).done:
        pass
    return job.result()
