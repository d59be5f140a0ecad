"""cover: free placements for max-load, annealed from above and bounded by set cover from below.

Blocks move between devices by annealing, with loads and memory kept up to date. The bound decides for single
values of T whether sets of load ≤ T, one per device, can part the blocks, by column generation over decision
diagrams (placers/cover). The search has the judge's loads (placers/search); the bound charges direct transfers once
per tensor, at its quickest link, so that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason
from placewise.placers.base import (
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
)
from placewise.placers.set_cover.column_generation import Sets, raise_floor
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.stages.line_split import find_best_split
from placewise.placers.shared.stages.stage_costs import NEVER, price_stages
from placewise.placers.shared.throughput_search.clusters import clusters
from placewise.placers.shared.throughput_search.pipeline_costs import costs_of, native_costs, whole_bytes
from placewise.placers.shared.throughput_search.rounds import WALKS, Field, Round
from placewise.simulate import lower_bound
from placewise.simulate.contiguity import contract, depth_first

MOST_BLOCKS = 5000
ROUNDED = 1 - 1e-12
"""Costs were rounded down to whole units; this covers the rounding of the sums that came before."""
LONGEST_PROOF = 20.0
"""Seconds for the bound where the budget names none; the placement does not depend on them."""
_SEARCH_SHARE = 0.25
_LONGEST_ROUND = 1.0
"""Seconds after which a round of annealing is not made longer: Ctrl-C is heard between two rounds."""
_HOT, _WARM, _COLD = 0.02, 0.004, 2e-5
"""Temperatures, as shares of the max-load: from a start, from the best, and at the end."""
_SURE_PACE = 50_000
"""Moves per second that any machine makes: the first round is not longer than the time for all of them."""


@dataclass(frozen=True, slots=True)
class CoverOptions:
    """`rounds` of annealing where the budget has no seconds, of `steps` moves per block; `bound`: prove as well."""

    rounds: int = 6
    steps: int = 1500
    bound: bool = True


@dataclass(slots=True)
class _Run:
    """One call: the problem, the clock, every home of the blocks that was found, and seconds that none is below."""

    problem: Problem
    options: CoverOptions
    watch: Stopwatch
    starts: list[Ints]
    on_progress: OnProgress
    reason: Reason = Reason.FINISHED
    homes: list[Ints] = field(default_factory=list)
    floor: float = 0.0
    bound: Bound | None = None
    notes: list[str] = field(default_factory=list)
    _tries: int = 0

    @property
    def gap(self) -> float:
        """What needs no closing."""
        return max(self.watch.budget.gap, OPTIMAL_GAP / 2)

    def search(self, capacity: Floats) -> Ints | None:
        """The best placement [n_ops] within `capacity` [n_devices], or None; the first call may take longest."""
        problem = self.problem
        if self.reason is Reason.INTERRUPTED:
            return None
        costs, scale = costs_of(problem, problem.block, problem.n_blocks)
        costs = costs._replace(capacity=whole_bytes(capacity))
        able = costs.seconds[:, costs.kind] < NEVER
        starts = [start for start in self.starts if able[np.arange(len(start)), start].all()]
        if not starts and not able.any(axis=1).all():
            return None
        starts = starts or [able.argmax(axis=1).astype(np.int32)]
        native = native_costs(costs)
        rounds, best = self._rounds(native, clusters(costs), scale, starts), starts[0]
        try:
            while (after := next(rounds, None)) is not None:
                best = after
        except KeyboardInterrupt:
            self.reason = Reason.INTERRUPTED
        if _native.PipelineState(native, best).missing_bytes:
            return None
        if not self._tries:
            self.homes.append(best)
        self._tries += 1
        placed: Ints = best[problem.block]
        return placed

    def _rounds(
        self, costs: _native.ThroughputCosts, joined: _native.Clusters, scale: float, starts: list[Ints]
    ) -> Iterator[Ints]:
        """Annealing in pairs, from each start hot, then by turns hot from the start and warm from the best.

        Gives the best devices of blocks [n_blocks] so far after each round.
        """
        steps, until = min(self.options.steps * len(starts[0]), 1_000_000), self.watch.budget.seconds * _SEARCH_SHARE
        timed = np.isfinite(until)
        if timed:
            steps = min(steps, max(int(until * _SURE_PACE), 1000))
        best, round_, seed = starts[0], 0, self.watch.budget.seed * 1000 + 97 * self._tries
        state = _native.PipelineState(costs, best)
        least = state.missing_bytes, state.max_load
        rounds = self.watch.budget.iterations or self.options.rounds
        search = Field(costs, joined, lambda: self.watch.elapsed, threads=self.watch.budget.most_threads)
        while (self.watch.elapsed < until if timed else round_ < rounds) or not round_:
            begun = self.watch.elapsed
            warm = round_ > 1 and round_ % 2 == 1
            froms = [(best if warm else starts[(round_ + i) % len(starts)], None) for i in range(WALKS)]
            plan = Round(_WARM if warm else _HOT, _COLD, steps)
            seeds = range(seed + WALKS * round_, seed + WALKS * (round_ + 1))
            for walk in search.run(froms, plan, seeds, lambda _: None):
                if not self._tries:
                    self.homes.append(walk.incumbent)
                if walk.quality < least:
                    least, best = walk.quality, walk.incumbent
            value = least[1] / scale
            self.on_progress(Progress("cover", self.watch.elapsed, f"round {round_}", value))
            yield best
            if not least[0] and value * (1 - self.gap) <= self.floor:
                break
            round_ += 1
            if timed and round_ % 4 == 0 and self.watch.elapsed - begun < _LONGEST_ROUND:
                steps *= 2
            if costs.n_devices < 2:
                break


class CoverPlacer:
    """Any block on any device: the strongest search and bound here for throughput without contiguity."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="cover",
        summary="free placements for throughput by annealing, with bounds by set cover",
        source="set-cover column generation over decision diagrams, for the problem of arXiv 2006.16423",
        exact=True,
        objectives=frozenset({"throughput"}),
    )
    Options: ClassVar[type[CoverOptions]] = CoverOptions

    def __init__(self, options: CoverOptions | None = None) -> None:
        self.options = options or CoverOptions()

    def supports(self, problem: Problem) -> str | None:
        if problem.objective.kind != "throughput":
            return "cover minimizes the max-load of a pipeline, not latency"
        if problem.constraints.shaped:
            shape = "contiguous" if problem.constraints.contiguous else "convex"
            return f"cover places blocks freely, and the stages must be {shape}"
        if problem.n_blocks > MOST_BLOCKS:
            return (
                f"{problem.n_blocks:,} groups of ops on {problem.n_devices} devices are too many to anneal: "
                f"{MOST_BLOCKS:,} are the most that cover takes; use auto, dpl or etf"
            )
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement met, hints included, under the highest bound that was proved in time."""
        problem, watch = search.problem, search.watch
        valid = [h.device for h in search.hints.placements if not find_broken_rule(problem, h.device)]
        found = list(valid)
        starts = [_home(problem, device) for device in valid]
        run = _Run(problem, self.options, watch, starts, search.on_progress)
        try:
            run.floor = lower_bound(problem).value
            run.starts += _split(problem, watch)
            device, _ = fit_memory(problem, run.search)
            found += [] if device is None else [device]
            if self.options.bound and run.reason is Reason.FINISHED:
                _prove(run)
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        if watch.out and run.reason is Reason.FINISHED:
            run.reason = Reason.TIME_LIMIT
        if not found:
            run.notes.append("no placement was found that fits in memory")
            return Proposal(None, run.bound, run.reason, tuple(run.notes))
        values = search.price(np.stack(found[::-1]))
        best = found[::-1][int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
        return Proposal(Placement(relabel(problem, best)), run.bound, run.reason, tuple(run.notes))


def _prove(run: _Run) -> None:
    """Refute ever higher max-loads by set cover; the run has the highest at any time."""
    problem, watch = run.problem, run.watch
    priced = price_stages(problem, problem.block, problem.n_blocks, problem.capacity)
    kind = {d: k for k, devices in enumerate(priced.devices) for d in devices}
    end = watch.elapsed + min(watch.left, watch.left if np.isfinite(watch.budget.seconds) else LONGEST_PROOF)
    sets = Sets.of(priced.costs)
    values = []
    for home in run.homes[-12:]:
        parts = [(kind[d], home == d) for d in np.unique(home).tolist() if d in kind]
        loads = [sets.load_of(k, part) for k, part in parts]
        known = [load for load in loads if load is not None]
        if len(known) == len(np.unique(home)):
            values.append(max(known))
            for (k, part), load in zip(parts, known, strict=True):
                sets.add(k, part, load)
    if not values:
        return
    low = int(run.floor * priced.scale)

    def tell(floor: int) -> None:
        run.bound = Bound((floor + 1) / priced.scale * ROUNDED, "set cover")
        value = min(values) / priced.scale
        run.on_progress(Progress("cover", watch.elapsed, "proving", value, run.bound.value))

    if not raise_floor(sets, low, min(values), run.gap, lambda: end - watch.elapsed, tell) and not watch.out:
        run.reason = Reason.TIME_LIMIT
        run.notes.append(f"the proof was given {LONGEST_PROOF:g} s: a longer time limit may raise the bound")


def _home(problem: Problem, device: Ints) -> Ints:
    """The device of each block [n_blocks] of a placement [n_ops] that keeps blocks together."""
    home = np.zeros(problem.n_blocks, np.int32)
    home[problem.block] = device
    return home


def _split(problem: Problem, watch: Stopwatch) -> list[Ints]:
    """Where a contiguous pipeline along one line of the ops would have the blocks, if there is one."""
    graph = contract(problem)
    lines = (np.arange(graph.n, dtype=np.int32), depth_first(graph))
    split = find_best_split(problem, graph.component, lines, problem.capacity, lambda *_: not watch.out)
    return [] if split.device is None else [_home(problem, split.device)]
