"""cover: free placements for max-load by annealing, and a lower bound by set cover.

Blocks move between devices by annealing, with the judge's loads (`shared/throughput_search`). The bound decides for
single values T whether sets of load ≤ T, one per device, can partition the blocks, by column generation over decision
diagrams. It charges direct transfers once per tensor, at the quickest link, and so stays valid.
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
from placewise.placers.base import PlacerInfo, Progress, SearchContext
from placewise.placers.set_cover.column_generation import DeviceSets, raise_floor
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.stages.stage_costs import NEVER, price_stages
from placewise.placers.shared.starting_placements import find_starting_placements
from placewise.placers.shared.throughput_search.annealing import WALKS, Annealer, AnnealingRound, clusters
from placewise.placers.shared.throughput_search.pipeline_costs import costs_of, native_costs, whole_bytes
from placewise.simulate.blocks import block_firsts
from placewise.simulate.bounds.assignment import round_down

MAX_BLOCKS = 5000
LONGEST_PROOF = 20.0
"""Seconds for the bound without a time limit; the placement does not depend on them."""
_START_SHARE, _SEARCH_SHARE = 0.1, 0.25
"""Of the time, at most, for quick placers, and for both them and annealing; the rest is for the bound."""
_STARTS = 3
"""Annealing starts from the best few placements."""
_LONGEST_ROUND = 1.0
"""Rounds of annealing do not grow beyond this many seconds: the search reacts to Ctrl-C between two rounds."""
_HOT, _WARM, _COLD = 0.02, 0.004, 2e-5
"""Temperatures, as shares of the max-load: from a start, from the best, and at the end."""
_SURE_PACE = 50_000
"""Moves per second that any machine makes; the length of the first round follows from it."""


@dataclass(frozen=True, slots=True)
class CoverOptions:
    """`rounds` of annealing where the budget has no time limit, of `steps` moves per block; `bound`: prove one too."""

    rounds: int = 6
    steps: int = 1500
    bound: bool = True


@dataclass(slots=True)
class _CoverSearch:
    """One call: where annealing starts, the assignments that it found, the best value, and the bounds."""

    search: SearchContext
    options: CoverOptions
    starts: list[Ints] = field(default_factory=list)
    reason: Reason = Reason.FINISHED
    assignments: list[Ints] = field(default_factory=list)
    value: float | None = None
    floor: float = 0.0
    bound: Bound | None = None
    notes: list[str] = field(default_factory=list)
    _tries: int = 0

    @property
    def gap(self) -> float:
        """The relative gap below which the search stops."""
        return max(self.search.budget.gap, OPTIMAL_GAP / 2)

    def anneal(self, capacity: Floats) -> Ints | None:
        """The best placement [n_ops] within `capacity` [n_devices], or None; the first call may take longest."""
        problem = self.search.problem
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
            self.assignments.append(best)
        self._tries += 1
        placed: Ints = best[problem.block]
        return placed

    def _rounds(
        self, costs: _native.ThroughputCosts, joined: _native.Clusters, scale: float, starts: list[Ints]
    ) -> Iterator[Ints]:
        """Anneal pairs of walks: first hot from each start, then by turns hot from a start and warm from the best.

        Yields the best assignment [n_blocks] after each round.
        """
        watch = self.search.watch
        steps, until = min(self.options.steps * len(starts[0]), 1_000_000), watch.budget.seconds * _SEARCH_SHARE
        timed = np.isfinite(until)
        if timed:
            steps = min(steps, max(int(until * _SURE_PACE), 1000))
        best, number, seed = starts[0], 0, watch.budget.seed * 1000 + 97 * self._tries
        state = _native.PipelineState(costs, best)
        least = state.missing_bytes, state.max_load
        rounds = watch.budget.iterations or self.options.rounds
        annealer = Annealer(costs, joined, lambda: watch.elapsed, threads=watch.budget.most_threads)
        while not number or (not watch.stopped and (watch.elapsed < until if timed else number < rounds)):
            started = watch.elapsed
            warm = number > 1 and number % 2 == 1
            picked = [(best if warm else starts[(number + i) % len(starts)], None) for i in range(WALKS)]
            plan = AnnealingRound(_WARM if warm else _HOT, _COLD, steps)
            seeds = range(seed + WALKS * number, seed + WALKS * (number + 1))
            for walk in annealer.run(picked, plan, seeds, lambda _: None):
                if not self._tries:
                    self.assignments.append(walk.incumbent)
                if walk.quality < least:
                    least, best = walk.quality, walk.incumbent
            self.value = None if least[0] else least[1] / scale
            self.search.on_progress(Progress("cover", watch.elapsed, f"round {number}", self.value))
            yield best
            if self.value is not None and self.value * (1 - self.gap) <= self.floor:
                break
            number += 1
            if timed and number % 4 == 0 and watch.elapsed - started < _LONGEST_ROUND:
                steps *= 2
            if costs.n_devices < 2:
                break

    def prove(self) -> None:
        """Refute ever higher max-loads by set cover; `bound` is the highest so far at any time.

        Sets are on one device each: nothing is proved where several may share a stage.
        """
        problem, watch = self.search.problem, self.search.watch
        if problem.max_replicas > 1 or watch.out:
            return
        priced = price_stages(problem, problem.block, problem.n_blocks, problem.capacity)
        kind = {d: k for k, devices in enumerate(priced.devices) for d in devices}
        end = watch.elapsed + (watch.left if np.isfinite(watch.budget.seconds) else LONGEST_PROOF)
        sets = DeviceSets.of(priced.costs, watch.budget.stop, lambda: not watch.out)
        terms = problem.n_ops + problem.graph.n_tensors
        if sets is None:
            return
        values = []
        for assignment in self.assignments[-12:]:
            parts = [(kind[d], assignment == d) for d in np.unique(assignment).tolist() if d in kind]
            loads = [sets.load_of(k, part) for k, part in parts]
            feasible = [load for load in loads if load is not None]
            if len(feasible) == len(np.unique(assignment)):
                values.append(max(feasible))
                for (k, part), load in zip(parts, feasible, strict=True):
                    sets.add(k, part, load)
        if not values:
            return
        low = int(self.floor * priced.scale)

        def report(floor: int) -> None:
            self.bound = Bound(round_down((floor + 1) / priced.scale, terms), "set cover")
            self.search.on_progress(Progress("cover", watch.elapsed, "proving", self.value, self.bound.value))

        def seconds_left() -> float:
            return min(watch.left, end - watch.elapsed)

        if not raise_floor(sets, low, min(values), self.gap, seconds_left, report) and not watch.out:
            self.reason = Reason.TIME_LIMIT
            self.notes.append(f"the proof was given {LONGEST_PROOF:g} s: a longer time limit may raise the bound")


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
        if problem.n_blocks > MAX_BLOCKS:
            return (
                f"{problem.n_blocks:,} groups of ops on {problem.n_devices} devices are too many to anneal: "
                f"{MAX_BLOCKS:,} are the most that cover takes; use auto, dpl or etf"
            )
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement found, hints included, under the highest bound proved in time."""
        problem, watch = search.problem, search.watch
        run = _CoverSearch(search, self.options)
        placements: list[Ints] = []
        try:
            run.floor = search.bound.value
            starts = find_starting_placements(search, quick_share=_START_SHARE)
            if starts.infeasible:
                return Proposal(None, reason=Reason.PROVED, infeasible=starts.infeasible)
            placements += starts.devices
            firsts = block_firsts(problem)
            values = search.price(np.stack(placements)) if placements else np.zeros(0)
            run.starts = [placements[k][firsts] for k in np.argsort(values, kind="stable")[:_STARTS].tolist()]
            run.reason = Reason.INTERRUPTED if starts.interrupted else Reason.FINISHED
            device, _ = fit_memory(problem, run.anneal)
            placements += [] if device is None else [device]
            if self.options.bound and run.reason is Reason.FINISHED:
                run.prove()
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        if watch.out and run.reason is Reason.FINISHED:
            run.reason = Reason.TIME_LIMIT
        if not placements:
            run.notes.append("no placement was found that fits in memory")
            return Proposal(None, run.bound, run.reason, tuple(run.notes))
        latest_first = placements[::-1]
        values = search.price(np.stack(latest_first))
        best = latest_first[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
        return Proposal(Placement(relabel(problem, best)), run.bound, run.reason, tuple(run.notes))
