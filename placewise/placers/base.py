"""The placer contract: what every placer is given, and what it must give back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from placewise import _native
from placewise._util.cores import usable_cores
from placewise.errors import InputError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Judgement, Proposal, Reason
from placewise.placers.shared.calls import make_runnable
from placewise.simulate import Evaluator, lower_bound, why_infeasible


@dataclass(frozen=True, slots=True)
class PlacerInfo:
    """What a placer is: `exact` if it proves its answers, what it takes, what it needs, where it is from.

    `replicates` says that its bounds hold where several devices may share a stage, `splits` that it takes problems
    whose ops may be split over devices.
    """

    name: str
    summary: str
    source: str
    exact: bool = False
    objectives: frozenset[str] = frozenset({"throughput", "latency"})
    extra: str = ""
    replicates: bool = False
    splits: bool = False


MAX_COUNT = 1 << 31
"""Seeds, iterations and evaluations stay below it: what every library here can count."""
MAX_THREADS = 1 << 10
BOUND_SHARE = 0.15
"""Of the time, for the first bound, where that can take long."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: whichever comes first of seconds, iterations, evaluations, or a gap reached; and the seed.

    `threads` may work at a time (None: one per core that this process may use); the answer depends on them only where
    seconds end the search. `stop` is how another thread ends it. Where `seconds` are only a share, what would be lost
    unless it ends may go on for `latest` seconds. Raises InputError.
    """

    seconds: float = math.inf
    iterations: int | None = None
    evaluations: int | None = None
    gap: float = 0.0
    seed: int = 0
    threads: int | None = None
    stop: _native.StopFlag | None = field(default=None, compare=False, repr=False)
    latest: float | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("gap", self.gap)):
            if isinstance(value, bool) or not isinstance(value, Real) or not value >= 0:
                raise InputError(f"the budget's {name} is {value!r}", remedy="give a number, zero or more")
        counts = {"iterations": self.iterations, "evaluations": self.evaluations, "seed": self.seed}
        for name, count in counts.items():
            if count is None and name != "seed":
                continue
            if not _whole(count) or not 0 <= count < MAX_COUNT:
                raise InputError(f"the budget's {name} is {count!r}", remedy="give a whole number from 0 to 2^31 − 1")
        if self.threads is not None and not (_whole(self.threads) and 1 <= self.threads <= MAX_THREADS):
            remedy = f"give a whole number from 1 to {MAX_THREADS}"
            raise InputError(f"the budget's number of threads is {self.threads!r}", remedy=remedy)

    @property
    def most_threads(self) -> int:
        """How many threads may work at a time."""
        return self.threads or usable_cores()


def _whole(number: object) -> TypeGuard[int]:
    return isinstance(number, Integral) and not isinstance(number, bool)


class Stopwatch:
    """A running budget of seconds."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self._start = budget, time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        return 0.0 if self.stopped else max(0.0, self.budget.seconds - self.elapsed)

    @property
    def last(self) -> float:
        """The seconds left to what would be lost unless it ends."""
        latest = self.budget.seconds if self.budget.latest is None else self.budget.latest
        return 0.0 if self.stopped else max(0.0, latest - self.elapsed)

    @property
    def stopped(self) -> bool:
        """Whether another thread has ended the search."""
        return self.budget.stop is not None and self.budget.stop.is_set()

    @property
    def out(self) -> bool:
        return self.left <= 0

    def short_of(self, seconds: float) -> Stopwatch:
        """The same clock for a search that must leave so many seconds to what comes after it."""
        return self._limited_to(max(0.0, self.budget.seconds - seconds))

    def extended(self, share: float) -> Stopwatch:
        """The same clock for what would be lost unless it ends, with this share of the seconds left to that."""
        return self._limited_to(max(self.budget.seconds, self.elapsed + share * self.last))

    def _limited_to(self, seconds: float) -> Stopwatch:
        """The same clock with so many seconds in all."""
        watch = Stopwatch(replace(self.budget, seconds=seconds))
        watch._start = self._start
        return watch

    def rest(self) -> Budget:
        """The budget that remains, for a placer that calls another."""
        return replace(self.budget, seconds=self.left, latest=None if self.budget.latest is None else self.last)


@dataclass(frozen=True, slots=True)
class Hints:
    """Where to start: placements, and a lower bound that is proved already.

    `baselines` are what naive placers answered, by their names, and what the judge said; `judging` are the seconds that
    it took for one.
    """

    placements: tuple[Placement, ...] = ()
    baselines: Mapping[str, tuple[Placement, Judgement]] = field(default_factory=dict)
    judging: float = 0.0
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life: who works, since when, on what; with the best value and bound so far if known.

    `by` is who found that value, where it may be another placer.
    """

    placer: str
    seconds: float
    message: str = ""
    value: float | None = None
    bound: float | None = None
    by: str = ""


OnProgress = Callable[[Progress], None]
Evaluate = Callable[[Ints], Floats]
"""Placements [K, n_ops] → seconds [K], NaN or inf where one failed."""


def ignore(_: Progress) -> None:
    """The progress listener that does not listen."""


NO_HINTS = Hints()


def make_sound(info: PlacerInfo, problem: Problem, proposal: Proposal) -> Proposal:
    """The proposal in calls that run, without a bound that leaves out replicated stages where they are allowed."""
    placement = None if proposal.placement is None else make_runnable(problem, proposal.placement)
    told = info.replicates or problem.max_replicas == 1
    return replace(proposal, placement=placement, bound=proposal.bound if told else None)


@dataclass(frozen=True)
class SearchContext:
    """What a placer gets: the problem, a budget, where to start, how to price placements, and who hears of progress.

    `watch` starts when the context is made.
    """

    problem: Problem
    budget: Budget = field(default_factory=Budget)
    hints: Hints = NO_HINTS
    evaluate: Evaluate | None = None
    on_progress: OnProgress = ignore
    watch: Stopwatch = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "watch", Stopwatch(self.budget))

    @cached_property
    def price(self) -> Evaluate:
        """Seconds [K] of placements [K, n_ops]: `evaluate` where one is given, else the judge's evaluator."""
        return self.evaluate or Evaluator(self.problem, threads=self.budget.threads)

    @cached_property
    def bound(self) -> Bound:
        """The bound of the hints, or else one that is found in a share of the time."""
        seconds = BOUND_SHARE * self.budget.seconds
        return self.hints.bound or lower_bound(
            self.problem, go_on=lambda: self.watch.elapsed < seconds and not self.watch.stopped
        )


def run_placer(
    placer: Placer,
    problem: Problem,
    budget: Budget | None = None,
    *,
    hints: Hints = NO_HINTS,
    evaluate: Evaluate | None = None,
    on_progress: OnProgress = ignore,
) -> Proposal:
    """Ask a placer for a proposal. A problem without ops, or proved infeasible at once, never reaches it."""
    infeasible = why_infeasible(problem)
    if infeasible:
        return Proposal(None, reason=Reason.PROVED, infeasible=infeasible)
    if not problem.n_ops:
        return Proposal(Placement(np.zeros(0, np.int32)))
    return placer.propose(SearchContext(problem, budget or Budget(), hints, evaluate, on_progress))


@runtime_checkable
class Placer(Protocol):
    """Stateless; same problem, options, work budget and seed give the same placement, with any number of threads.

    Anytime: at the end of its budget, or on KeyboardInterrupt, it returns the best that it has.
    It never scores itself: `place()` checks and judges what it proposes.
    """

    @property
    def info(self) -> PlacerInfo:
        """What the placer is, under the name that it was asked for by."""

    def supports(self, problem: Problem) -> str | None:
        """None, or in words why this placer cannot take the problem."""

    def propose(self, search: SearchContext) -> Proposal:
        """A placement, or a Proposal without one that says why."""
