"""local: local search from what is known, at the speed of compiled code, for as long as there is time.

Throughput: blocks, or where stages form a chain the components, move between devices, with loads and memory kept up to
date (placers/search); annealing in rounds, on all cores. Probabilities among the hints are drawn from: placements to
start from, and some of the moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from placewise import _native
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Proposal, Reason
from placewise.placers.base import (
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
    run_placer,
)
from placewise.placers.local_search.stage_order import chain_order
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import interchangeable, relabel
from placewise.placers.shared.priors import draw_placements, match_labels, read_priors
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.stages.stage_costs import NEVER
from placewise.placers.shared.throughput_search.clusters import clusters
from placewise.placers.shared.throughput_search.pipeline_costs import Costs, costs_of, native_costs, whole_bytes
from placewise.placers.shared.throughput_search.rounds import WALKS, Field, Round, Stopped
from placewise.simulate.contiguity import Contraction, contract
from placewise.simulate.judge.memory import device_memory

QUICK = ("single", "balanced", "etf", "dpl")
LAST_RESORT = "pack"
START_SHARE = 0.25
"""The most of the time that goes into placements to start from."""
HOT, WARM, COLD = 0.02, 0.004, 2e-5
"""Temperatures, as shares of the max-load: from anywhere, from a good placement, and at the end."""
ROUND_SHARE = 0.4
"""Of the time that is left, for the next round."""
LEAST_ROUND = 0.02
PER_GROUP, MOST_STEPS, LEAST_PER_GROUP = 300, 300_000, 2
"""Without seconds: moves per round and group, at most so many, and at least so many per group."""
SWEPT, COOKED = 30, 300
"""With fewer moves per group a warm start would only spoil what there is; with fewer than the second, a hot one."""
CHAIN_SHARE, CHAIN_FROM, CHAIN_TO = 0.4, 5.0, 2000.0
"""Where time is for so many moves per block, any placements are looked for from the best chain: chains are fewer."""
POOL = 6
"""Placements kept to start from."""
DRAWN = 8
"""Placements drawn from probabilities to start from."""
PACE = 5e5
"""Moves per second and core that can be hoped for."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """`rounds`: how many rounds of annealing where the budget names no seconds."""

    rounds: int = 6

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise PlacerError(f"local cannot make {self.rounds} rounds", remedy="give one or more")


class LocalPlacer:
    """Anytime; it starts from the hints, else from quick placers, and never gives back anything worse than these."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="local",
        summary="local search: groups of ops move between devices, annealed",
        source="simulated annealing: Kirkpatrick, Gelatt and Vecchi, Science 220 (1983); the moves are ours",
        objectives=frozenset({"throughput"}),
    )
    Options: ClassVar[type[LocalOptions]] = LocalOptions

    def __init__(self, options: LocalOptions | None = None) -> None:
        self.options = options or LocalOptions()

    def supports(self, problem: Problem) -> str | None:
        return None if problem.objective.kind == "throughput" else "local searches for throughput; use temper"

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement found."""
        problem, watch, price = search.problem, search.watch, search.price
        floor = 0.0 if search.hints.bound is None else search.hints.bound.value
        run = _Pipelines(problem, self.options, watch, price, search.hints, search.on_progress, floor)
        try:
            run.start()
            run.search()
        except KeyboardInterrupt:
            run.reason = Reason.INTERRUPTED
        return run.answer()


@dataclass(slots=True)
class _Pipelines:
    """One search: the placements [n_ops] that keep the rules, the best value, and seconds that no value is below."""

    problem: Problem
    options: LocalOptions
    watch: Stopwatch
    price: Evaluate
    hints: Hints
    on_progress: OnProgress
    floor: float = 0.0
    value: float = np.inf
    reason: Reason = Reason.FINISHED
    known: list[Ints] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    check_seconds: float = 0.0

    def start(self) -> None:
        """Fill `known` from hints, else from quick placers, else from the last resort; and from probabilities.

        Where the hints say who made them, the other quick placers are asked as well.
        """
        for hint in self.hints.placements:
            self._consider(hint.device)
        if self.hints.by or not self.known:
            self._ask()
        likely = read_priors(self.problem, self.hints)
        self.known += draw_placements(self.problem, likely, DRAWN, self.watch.budget.seed, self.watch)

    def _ask(self) -> None:
        """Fill `known` from quick placers, else from the last resort."""
        share = START_SHARE * self.watch.left
        for name in (*QUICK, LAST_RESORT):
            if self.watch.out or (name == LAST_RESORT and self.known):
                break
            placer = create(name)
            if name not in self.hints.by and placer.supports(self.problem) is None:
                most = share if name == LAST_RESORT or np.isinf(share) else max(share - self.watch.elapsed, 0.0)
                budget = replace(self.watch.rest(), seconds=most, iterations=None, evaluations=None, gap=0.0)
                found = run_placer(placer, self.problem, budget, hints=self.hints)
                if found.placement is not None:
                    self._consider(found.placement.device)

    def _consider(self, device: Ints) -> None:
        begun = self.watch.elapsed
        if len(device) == self.problem.n_ops and not find_broken_rule(self.problem, device):
            self.known.append(device)
        self.check_seconds = max(self.check_seconds, self.watch.elapsed - begun)

    def search(self) -> None:
        """Rounds of annealing; what they find is in `known` if it keeps the rules."""
        problem = self.problem
        if problem.n_devices < 2:
            return
        if problem.constraints.shaped:
            self._search(contract(problem), self.watch.budget.seconds)
            return
        if self.known and CHAIN_FROM <= PACE * WALKS * self.watch.left / problem.n_blocks < CHAIN_TO:
            self._search(contract(problem), self.watch.elapsed + CHAIN_SHARE * self.watch.left)
        if self.reason is Reason.FINISHED:
            self._search(None, self.watch.budget.seconds)

    def _search(self, chain: Contraction | None, end: float) -> None:
        """Search until the clock says `end`: chains of components, or any placements of blocks."""
        problem, watch = self.problem, self.watch
        group, n = (problem.block, problem.n_blocks) if chain is None else (chain.component, chain.n)
        costs, scale = costs_of(problem, group, n, chain)
        rng = np.random.default_rng(watch.budget.seed)
        likely = read_priors(problem, self.hints, group, n)
        pool = self._pool(costs, group, likely)
        if not pool:
            return
        native = native_costs(costs)
        short, value = _quality(native, pool[0])
        self.value = value / scale if self.known and not short else np.inf
        threads = watch.budget.most_threads
        field_ = Field(native, clusters(costs), lambda: watch.elapsed, tradable(problem), likely, threads)
        room, round_ = problem.capacity, 0
        while (plan := self._plan(round_, n, field_.moves, end)) is not None:
            count = WALKS if plan.steps is not None else max(WALKS, threads)
            homes = [pool[0] if plan.hot < HOT else pool[(round_ + i) % len(pool)] for i in range(count)]
            starts = [(home, chain_order(costs, home, rng)) for home in homes]
            message = f"round {round_}"
            walks = self._round(field_, starts, plan, rng, lambda value: self._tell(message, value / scale))  # noqa: B023
            before = room
            for walk in walks:
                (short, value), home = walk.quality, walk.incumbent
                if not short:
                    room = self._measured(home[group], value / scale, room)
                pool.append(home)
            if room is not before:
                costs = costs._replace(capacity=whole_bytes(room))
                field_.costs = native_costs(costs)
            pool = sorted(pool, key=lambda home: _quality(field_.costs, home))[:POOL]
            if self.reason is Reason.INTERRUPTED:
                return
            round_ += 1
        if watch.left < self.check_seconds + LEAST_ROUND:
            self.reason = Reason.TIME_LIMIT

    def _tell(self, message: str, value: float) -> None:
        self.on_progress(Progress("local", self.watch.elapsed, message, value))

    def _round(
        self,
        field_: Field,
        starts: list[tuple[Ints, Ints | None]],
        plan: Round,
        rng: np.random.Generator,
        tell: Callable[[int], None],
    ) -> list[_native.ThroughputWalk]:
        seeds = rng.integers(0, 1 << 62, len(starts)).tolist()
        try:
            return field_.run(starts, plan, seeds, tell)
        except Stopped as stopped:
            self.reason = Reason.INTERRUPTED
            return stopped.walks

    def _pool(self, costs: Costs, group: Ints, likely: Floats) -> list[Ints]:
        """Homes of groups to start from, the best first; where nothing keeps the rules, each where it may run."""
        first = np.empty(len(costs.size), np.int64)
        first[group[::-1]] = np.arange(len(group))[::-1]
        homes = [device[first] for device in self.known]
        if homes and len(likely):
            homes = list(match_labels(self.problem, likely, np.stack(homes)))
        homes = [home for home in homes if chain_order(costs, home, np.random.default_rng(0)) is not None]
        if not homes and costs.shaped:
            able = (costs.seconds[:, costs.kind] < NEVER).all(axis=0)
            homes = [np.full(len(first), d, np.int32) for d in np.flatnonzero(able).tolist()]
        elif not homes:
            able = costs.seconds[:, costs.kind] < NEVER
            homes = [able.argmax(axis=1).astype(np.int32)] if able.any(axis=1).all() else []
        native = native_costs(costs)
        return sorted(homes, key=lambda home: _quality(native, home))[:POOL]

    def _measured(self, device: Ints, value: float, room: Floats) -> Floats:
        """Remember a placement [n_ops] if live activations fit as well, else leave more room for them."""
        problem = self.problem
        if problem.objective.memory == "live" and np.isfinite(problem.capacity).any():
            begun = self.watch.elapsed
            resident, peak = device_memory(problem, Placement(device))
            self.check_seconds = max(self.check_seconds, self.watch.elapsed - begun)
            if (peak > problem.capacity).any():
                kind, room = interchangeable(problem), room.copy()
                for d in np.flatnonzero(peak > problem.capacity).tolist():
                    same = kind == kind[d]
                    room[same] = np.maximum(np.minimum(room[same], problem.capacity[d] - (peak - resident)[d]), 0.0)
                return room
        self.known.append(device)
        self.value = min(self.value, value)
        return room

    def _plan(self, round_: int, n: int, moves: int, end: float) -> Round | None:
        """The next round, None if there is none: limited by work, or by what is left of the time."""
        budget = self.watch.budget
        if self.value * (1 - max(budget.gap, OPTIMAL_GAP)) <= self.floor:
            return None
        checks = WALKS * self.check_seconds if self.problem.objective.memory == "live" else 0.0
        end -= checks + self.check_seconds
        if budget.iterations is None and budget.evaluations is None and np.isfinite(end):
            left = end - self.watch.elapsed
            if left < LEAST_ROUND:
                return None
            length = left if left < 2 * LEAST_ROUND else max(ROUND_SHARE * left, LEAST_ROUND)
            return Round(self._heat(round_, PACE * length / n), COLD, until=self.watch.elapsed + length)
        most = np.inf if budget.evaluations is None else budget.evaluations - moves
        rounds = self.options.rounds if budget.iterations is None else budget.iterations
        steps = int(min(max(min(PER_GROUP * n, MOST_STEPS), LEAST_PER_GROUP * n), most / WALKS))
        if round_ >= rounds or steps < 1 or self.watch.elapsed >= end:
            return None
        return Round(self._heat(round_, steps / n), COLD, steps, end)

    @staticmethod
    def _heat(round_: int, per_group: float) -> float:
        if per_group < SWEPT:
            return 2 * COLD
        return WARM if round_ % 2 or per_group < COOKED else HOT

    def answer(self) -> Proposal:
        """The best of what keeps the rules, as the judge prices it."""
        if not self.known:
            notes = (*self.notes, "no placement was found that fits in memory")
            return Proposal(None, reason=self.reason, notes=notes)
        values = self.price(np.stack(self.known[::-1]))
        best = self.known[::-1][int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
        return Proposal(Placement(relabel(self.problem, best)), reason=self.reason, notes=tuple(self.notes))


def tradable(problem: Problem) -> Ints:
    """Pairs [k, 2] of devices that may change places, and are not alike: only then it makes a difference."""
    kind = np.zeros(problem.n_devices) if problem.constraints.ordered else interchangeable(problem)
    one, other = np.nonzero(np.triu(kind[:, None] != kind[None, :]))
    return frozen(np.stack((one, other), axis=1), np.int32)


def _quality(costs: _native.ThroughputCosts, home: Ints) -> tuple[int, int]:
    state = _native.PipelineState(costs, home)
    return state.missing_bytes, state.max_load
