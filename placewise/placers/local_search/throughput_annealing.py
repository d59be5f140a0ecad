"""Simulated annealing of max-load: groups of ops move between devices, in rounds, on all cores.

Groups are blocks, or components where stages form a chain. Loads and memory are kept up to date in compiled code
(`shared/throughput_search`). Live activations are only known afterwards: where they do not fit, the capacity that the
search may use shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Proposal, Reason
from placewise.placers.base import Progress, SearchContext
from placewise.placers.shared.fit import shrink_capacity
from placewise.placers.shared.interchangeable import interchangeable, relabel
from placewise.placers.shared.stages.stage_costs import NEVER
from placewise.placers.shared.starting_placements import find_starting_placements
from placewise.placers.shared.throughput_search.annealing import WALKS, Annealer, AnnealingRound, WalksStopped, clusters
from placewise.placers.shared.throughput_search.pipeline_costs import PipelineCosts, costs_of, native_costs, whole_bytes
from placewise.simulate.contiguity import Contraction, contract
from placewise.simulate.judge.memory import device_memory

HOT, WARM, COLD = 0.02, 0.004, 2e-5
"""Temperatures, as shares of the max-load: from anywhere, from a good placement, and at the end."""
ROUND_SHARE, MIN_ROUND = 0.4, 0.02
"""The share of the remaining time for the next round, and the fewest seconds of one."""
PER_GROUP, MAX_STEPS, MIN_PER_GROUP = 300, 300_000, 2
"""Without a time limit: moves per round and group, the most moves of a round, and the fewest per group."""
MIN_WARM_MOVES, MIN_HOT_MOVES = 30, 300
"""Moves per group: with fewer a warm start, or a hot one, would only do harm."""
CHAIN_SHARE, CHAIN_FROM, CHAIN_TO = 0.4, 5.0, 2000.0
"""Where the time allows between `CHAIN_FROM` and `CHAIN_TO` moves per block, a share of it goes into chains of stages
first: there are fewer of them, and the best one is a good start for free placements."""
POOL = 6
"""Placements kept to start from."""
PACE = 5e5
"""Expected moves per second and core."""


def search_throughput(search: SearchContext, rounds: int, name: str) -> Proposal:
    """The best placement found from the starting placements; `rounds` of annealing where there is no time limit.

    `name` stands in progress reports.
    """
    annealing = _Annealing(search, rounds, name)
    starts = find_starting_placements(search)
    annealing.valid, annealing.check_seconds = starts.devices, starts.check_seconds
    if starts.infeasible:
        return Proposal(None, reason=Reason.PROVED, infeasible=starts.infeasible)
    annealing.reason = Reason.INTERRUPTED if starts.interrupted else Reason.FINISHED
    try:
        if not starts.interrupted:
            annealing.run()
    except KeyboardInterrupt:
        annealing.reason = Reason.INTERRUPTED
    return annealing.answer()


@dataclass(slots=True)
class _Annealing:
    """One search: the valid placements [n_ops] met, the best value, and how long a check of live memory takes."""

    search: SearchContext
    rounds: int
    name: str
    value: float = np.inf
    reason: Reason = Reason.FINISHED
    valid: list[Ints] = field(default_factory=list)
    check_seconds: float = 0.0

    def run(self) -> None:
        """Anneal chains of stages where the problem asks for them or the time suggests it, then free placements."""
        problem, watch = self.search.problem, self.search.watch
        if problem.n_devices < 2:
            return
        if problem.constraints.shaped:
            self._anneal(contract(problem), watch.budget.seconds)
            return
        if self.valid and CHAIN_FROM <= PACE * WALKS * watch.left / problem.n_blocks < CHAIN_TO:
            self._anneal(contract(problem), watch.elapsed + CHAIN_SHARE * watch.left)
        if self.reason is Reason.FINISHED:
            self._anneal(None, watch.budget.seconds)

    def _anneal(self, chain: Contraction | None, end: float) -> None:
        """Anneal until `end` on the watch: chains of components, or free placements of blocks."""
        problem, watch = self.search.problem, self.search.watch
        group, n = (problem.block, problem.n_blocks) if chain is None else (chain.component, chain.n)
        costs, scale = costs_of(problem, group, n, chain)
        rng = np.random.default_rng(watch.budget.seed)
        pool = self._pool(costs, group)
        if not pool:
            return
        native = native_costs(costs)
        missing, value = _quality(native, pool[0])
        self.value = value / scale if self.valid and not missing else np.inf
        threads = watch.budget.most_threads
        annealer = Annealer(native, clusters(costs), lambda: watch.elapsed, tradable(problem), threads)
        capacity, number = problem.capacity, 0
        while (plan := self._plan(number, n, annealer.moves, end)) is not None:
            count = WALKS if plan.steps is not None else max(WALKS, threads)
            picked = [pool[0] if plan.hot < HOT else pool[(number + i) % len(pool)] for i in range(count)]
            starts = [(assignment, chain_order(costs, assignment, rng)) for assignment in picked]
            seeds, message, before = rng.integers(0, 1 << 62, count).tolist(), f"round {number}", capacity

            def report(value: int, message: str = message) -> None:
                self.search.on_progress(Progress(self.name, watch.elapsed, message, value / scale))

            try:
                walks = annealer.run(starts, plan, seeds, report)
            except WalksStopped as stopped:
                self.reason = Reason.INTERRUPTED
                walks = stopped.walks
            for walk in walks:
                (missing, value), assignment = walk.quality, walk.incumbent
                if not missing:
                    capacity = self._check_memory(assignment[group], value / scale, capacity)
                pool.append(assignment)
            if capacity is not before:
                costs = costs._replace(capacity=whole_bytes(capacity))
                annealer.costs = native_costs(costs)
            pool = sorted(pool, key=lambda assignment: _quality(annealer.costs, assignment))[:POOL]
            if self.reason is Reason.INTERRUPTED:
                return
            number += 1
        if watch.left < self.check_seconds + MIN_ROUND:
            self.reason = Reason.TIME_LIMIT

    def _pool(self, costs: PipelineCosts, group: Ints) -> list[Ints]:
        """Assignments of groups to start from, the best first; without a valid placement, any that the ops allow."""
        first = np.empty(len(costs.size), np.int64)
        first[group[::-1]] = np.arange(len(group))[::-1]
        assignments = [device[first] for device in self.valid]
        rng = np.random.default_rng(0)
        assignments = [row for row in assignments if chain_order(costs, row, rng) is not None]
        if not assignments:
            able = costs.seconds[:, costs.kind] < NEVER
            if costs.shaped:
                assignments = [np.full(len(first), d, np.int32) for d in np.flatnonzero(able.all(axis=0)).tolist()]
            elif able.any(axis=1).all():
                assignments = [able.argmax(axis=1).astype(np.int32)]
        native = native_costs(costs)
        return sorted(assignments, key=lambda assignment: _quality(native, assignment))[:POOL]

    def _check_memory(self, device: Ints, value: float, capacity: Floats) -> Floats:
        """Keep a placement [n_ops] if its live activations fit; the capacity [n_devices] that leaves room for them."""
        problem, watch = self.search.problem, self.search.watch
        if problem.objective.memory == "live" and np.isfinite(problem.capacity).any():
            started = watch.elapsed
            resident, peak = device_memory(problem, Placement(device))
            self.check_seconds = max(self.check_seconds, watch.elapsed - started)
            if (peak > problem.capacity).any():
                return shrink_capacity(problem, capacity, resident, peak)
        self.valid.append(device)
        self.value = min(self.value, value)
        return capacity

    def _plan(self, number: int, n: int, moves: int, end: float) -> AnnealingRound | None:
        """The next round, or None: limited by work, or by the remaining time."""
        budget, elapsed, bound = self.search.budget, self.search.watch.elapsed, self.search.hints.bound
        if self.value * (1 - max(budget.gap, OPTIMAL_GAP)) <= (0.0 if bound is None else bound.value):
            return None
        checks = WALKS if self.search.problem.objective.memory == "live" else 0
        end -= (checks + 1) * self.check_seconds
        if budget.iterations is None and budget.evaluations is None and np.isfinite(end):
            left = end - elapsed
            if left < MIN_ROUND:
                return None
            length = left if left < 2 * MIN_ROUND else max(ROUND_SHARE * left, MIN_ROUND)
            return AnnealingRound(_temperature(number, PACE * length / n), COLD, until=elapsed + length)
        most = np.inf if budget.evaluations is None else budget.evaluations - moves
        rounds = self.rounds if budget.iterations is None else budget.iterations
        steps = int(min(max(min(PER_GROUP * n, MAX_STEPS), MIN_PER_GROUP * n), most / WALKS))
        if number >= rounds or steps < 1 or elapsed >= end:
            return None
        return AnnealingRound(_temperature(number, steps / n), COLD, steps, end)

    def answer(self) -> Proposal:
        """The best valid placement, as the evaluator prices them."""
        if not self.valid:
            return Proposal(None, reason=self.reason, notes=("no placement was found that fits in memory",))
        latest_first = self.valid[::-1]
        values = self.search.price(np.stack(latest_first))
        best = latest_first[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]
        return Proposal(Placement(relabel(self.search.problem, best)), reason=self.reason)


def _temperature(number: int, moves_per_group: float) -> float:
    """The first temperature of a round: hot and warm by turns, where the moves are enough to cool down again."""
    if moves_per_group < MIN_WARM_MOVES:
        return 2 * COLD
    return WARM if number % 2 or moves_per_group < MIN_HOT_MOVES else HOT


def tradable(problem: Problem) -> Ints:
    """Pairs [k, 2] of devices whose exchange changes the value: those that are not interchangeable."""
    kind = np.zeros(problem.n_devices) if problem.constraints.ordered else interchangeable(problem)
    one, other = np.nonzero(np.triu(kind[:, None] != kind[None, :]))
    return frozen(np.stack((one, other), axis=1), np.int32)


def chain_order(costs: PipelineCosts, assignment: Ints, rng: np.random.Generator) -> Ints | None:
    """A position [n_devices] for each device such that no group needs a later one; None where they form no chain.

    Devices without groups, and those whose order is free, get random positions.
    """
    count = len(costs.capacity)
    if not costs.shaped:
        return np.arange(count, dtype=np.int32)
    tail = np.repeat(assignment, np.diff(costs.after_offsets))
    head = assignment[costs.after]
    if costs.ordered:
        return None if (tail > head).any() else np.arange(count, dtype=np.int32)
    needs = np.zeros((count, count), np.bool_)
    needs[head, tail] = True
    np.fill_diagonal(needs, False)
    order, left = np.full(count, -1, np.int32), list(range(count))
    for position in range(count):
        free = [d for d in left if not needs[d, left].any()]
        if not free:
            return None
        chosen = free[int(rng.integers(len(free)))]
        order[chosen] = position
        left.remove(chosen)
    return order


def _quality(costs: _native.ThroughputCosts, assignment: Ints) -> tuple[int, int]:
    state = _native.PipelineState(costs, assignment)
    return state.missing_bytes, state.max_load
