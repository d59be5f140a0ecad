"""The best chain of a training pipeline that flushes: its value is the largest forward plus the largest backward load.

For a limit F on forward loads, B(F) is the least largest backward load of a chain, found by the dynamic program over
ideals of `dp_driver`. B falls as F grows, so that no chain with a forward load in [a, b] has a value below a + B(b).
Branch and bound over intervals of F starts from there and from the best value of `1f1b`, a lower bound for every chain.
A run at F also returns the greater limit up to which nothing changes, so that whole intervals are settled at once. The
proof is exact, in whole units.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs, frozen
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.shared.stages import dp_driver, stage_costs
from placewise.placers.shared.stages.dp_driver import (
    ChainSearchResult,
    GoOn,
    StageChain,
    bound_load,
    build_expansion,
    compute_remaining_capacity,
    compute_remaining_work,
    list_targets,
    run_expansion,
)
from placewise.placers.shared.stages.ideals import Ideals
from placewise.placers.shared.stages.replicated_stages import compute_member_load, count_usable
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts, PricedStages
from placewise.simulate.phases import two_phases


def price_phases(problem: Problem, component: Ints, n: int, capacity: Floats) -> PricedStages:
    """Stage costs as by `price_stages`; if the two phases add up, with the costs of each phase side by side.

    Then `seconds` and `rate` hold the backward phase of every class followed by the forward phase, and there are twice
    as many rates, each of which prices the tensors of its phase only.
    """
    whole = stage_costs.price_stages(problem, component, n, capacity)
    if not two_phases(problem):
        return whole
    late = problem.graph.ops.backward
    parts = stage_costs.price_stages(problem, component + np.int32(n) * late.astype(np.int32), 2 * n, capacity)
    forward, backward = parts.costs.seconds[:n], parts.costs.seconds[n:]
    never = (forward >= NEVER) | (backward >= NEVER)
    producer = problem.graph.tensors.producer[whole.tensors]
    made_late = ((producer >= 0) & late[producer])[:, None]
    rate, n_rates = parts.costs.rate, whole.costs.enter.shape[1]
    costs = whole.costs._replace(
        seconds=frozen(np.where(np.tile(never, 2), NEVER, np.hstack((backward, forward))), np.int64),
        enter=_split_by_phase(whole.costs.enter, made_late),
        leave=_split_by_phase(whole.costs.leave, made_late),
        rate=frozen(np.concatenate((rate, np.where(rate >= 0, rate + n_rates, -1))), np.int32),
        capacity=parts.costs.capacity,
        n_devices=count_usable(parts.devices, parts.costs.most, n),
        most=parts.costs.most,
        pace=parts.costs.pace,
    )
    return PricedStages(costs, whole.scale, parts.devices, whole.tensors)


def _split_by_phase(price: Longs, late: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Longs:
    """A price per tensor and rate [n_tensors, n_rates], with backward and forward tensors side by side."""
    return frozen(np.hstack((np.where(late, price, 0), np.where(late, 0, price))), np.int64)


def search_phases(
    priced: PricedStages, ideals: Ideals, go_on: GoOn, beat: int = NEVER, gap: float = 0.0
) -> ChainSearchResult:
    """The best chain with a value below `beat`, as by `search_chains`, whether or not phases add up."""
    if len(priced.costs.rate) == len(priced.costs.n_devices):
        return dp_driver.search_chains(priced, ideals, go_on, beat, gap)
    return _PhaseSearch(priced, ideals, go_on, beat, gap).run()


@dataclass(slots=True)
class _PhaseSearch:
    """The state of one search: the open intervals of F, as a heap of (bound, from, to, bound of B at the end).

    `known` is a lower bound on all chains, from the sum of the loads of both phases.
    """

    priced: PricedStages
    ideals: Ideals
    go_on: GoOn
    beat: int
    gap: float
    known: int = 0
    best: StageChain | None = None
    open: list[tuple[int, int, int, int]] = field(default_factory=list)

    def run(self) -> ChainSearchResult:
        phases = tuple(_select_phase(self.priced.costs, part) for part in (_BACKWARD, _FORWARD, _BOTH))
        summed = dp_driver.search_chains(
            self.priced._replace(costs=phases[2]), self.ideals, self.go_on, self.beat, self.gap
        )
        if summed.chain is not None:
            self._keep_best(summed.chain)
        self.known = summed.floor
        if summed.reason is not Reason.FINISHED or self.beat == NEVER:
            return ChainSearchResult(self.best, summed.reason, self.known)
        slow, least = (int(bound_load(phase) * (1 - 1e-12)) for phase in phases[:2])
        lefts, rooms = (
            [compute_remaining_work(phase, self.ideals) for phase in phases],
            [compute_remaining_capacity(phase) for phase in phases],
        )
        expansion = build_expansion(self.priced.costs, self.ideals, lefts[0], rooms[0])
        expansion.bound_phases(lefts[1], rooms[1], lefts[2], rooms[2])
        self._push(least, self.beat, slow)
        while self.open and not self._near_enough():
            _, low, high, slow = heapq.heappop(self.open)
            high = min(high, self.beat - slow - 1)
            middle = (low + high) // 2
            result, ahead = self._least_backward(expansion, list_targets(phases[0], self.beat - low), middle)
            forward, backward = self._keep_best(result.chain) if result.chain is not None else (0, 0)
            if result.reason is not Reason.FINISHED:
                self._push(low, high, slow)
                return ChainSearchResult(self.best, result.reason, self._floor())
            if result.chain is not None:
                self._push(low, forward - 1, backward)
            self._push(max(ahead, middle + 1), high, slow)
        return ChainSearchResult(self.best, Reason.FINISHED, self._floor())

    def _keep_best(self, chain: StageChain) -> tuple[int, int]:
        """Keep a chain if it is the best. Returns its largest forward and backward loads."""
        forward, backward = (_compute_load(self.priced, chain, part) for part in (_FORWARD, _BACKWARD))
        if forward + backward < self.beat:
            self.beat = forward + backward
            self.best = replace(chain, value=self.beat)
        return forward, backward

    def _push(self, low: int, high: int, backward: int) -> None:
        if low <= high and low + backward < self.beat:
            heapq.heappush(self.open, (low + backward, low, high, backward))

    def _floor(self) -> int:
        return max(self.known, min([self.beat, *(bound for bound, *_ in self.open)]))

    def _near_enough(self) -> bool:
        return self.beat - self._floor() <= self.gap * self.beat

    def _least_backward(
        self, expansion: _native.StageExpansion, goals: list[int], limit: int
    ) -> tuple[ChainSearchResult, int]:
        """The chain of least backward load within a forward limit, and the next limit with another result.

        The backward loads in `goals` are tried in turn until a chain is below one.
        """
        result, ahead = ChainSearchResult(None, Reason.FINISHED), NEVER
        for target in goals:
            expansion.start(target, limit, self.beat)
            result = run_expansion(self.priced, self.ideals, expansion, self.go_on)
            ahead = expansion.next_forward_limit
            if result.chain is not None or result.reason is not Reason.FINISHED:
                break
        return result, ahead


_BACKWARD, _FORWARD, _BOTH = range(3)


def _select_phase(costs: ComponentCosts, part: int) -> ComponentCosts:
    """The costs of one phase alone, or of both phases together."""
    n_classes, n_rates = len(costs.n_devices), costs.enter.shape[1] // 2
    columns = ((costs.seconds, n_classes), (costs.enter, n_rates), (costs.leave, n_rates))
    if part == _BOTH:
        tables = [np.minimum(table[:, :count] + table[:, count:], NEVER) for table, count in columns]
    else:
        tables = [table[:, part * count : (part + 1) * count] for table, count in columns]
    seconds, enter, leave = (frozen(table, np.int64) for table in tables)
    return costs._replace(seconds=seconds, enter=enter, leave=leave, rate=costs.rate[:n_classes])


def _compute_load(priced: PricedStages, chain: StageChain, part: int) -> int:
    """The largest load of a chain in one phase; replicas synchronize in the backward phase."""
    costs, worst = _select_phase(priced.costs, part), 0
    sharers = {group[0]: len(group) for group in chain.groups}
    for k, devices in enumerate(priced.devices):
        for d in devices:
            inside, members = chain.device == d, sharers.get(d, 1)
            sync = int(_sum_weights(costs, inside) * costs.pace[k, members]) if part != _FORWARD else 0
            load, r = int(costs.seconds[inside, k].sum()), int(costs.rate[k])
            sums = np.concatenate(([0], np.cumsum(inside[costs.consumers])))
            read = sums[costs.consumer_offsets[1:]] - sums[costs.consumer_offsets[:-1]]
            produced = (costs.producer >= 0) & inside[costs.producer]
            enter = int(costs.enter[~produced & (read > 0), r].sum()) if r >= 0 else 0
            leave = int(costs.leave[produced & (read < costs.readers), r].sum()) if r >= 0 else 0
            worst = max(worst, compute_member_load(load, enter, leave, sync, members, costs.mode))
    return worst


def _sum_weights(costs: ComponentCosts, inside: Bools) -> int:
    """Bytes of the weights of a stage, a mask [n] of its components."""
    holder = np.repeat(np.arange(len(inside)), np.diff(costs.storage_offsets))
    shared = np.unique(costs.storages[inside[holder]])
    return int(costs.weight[inside].sum() + costs.storage_bytes[shared].sum())
