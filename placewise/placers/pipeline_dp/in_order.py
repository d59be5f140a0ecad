"""in_order: one stage per device, in the order of the devices, along several topological orders of the ops.

Chains on chains (Pinar and Aykanat, J. Parallel Distrib. Comput. 64, 2004; for unequal devices Pinar, Tabak and
Aykanat, 2008): each device in turn takes as much of an order as its memory and a limit of seconds allow. Bisection
finds the least limit that uses up the order. This counts no transfers. A local search then moves the ends of stages
along the order under the judge's values.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Evaluate, PlacerInfo, Progress, SearchContext, Stopwatch
from placewise.placers.pipeline_dp.topological_orders import sort_last_ready_first
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.memory_footprint import count_first_uses, may_run
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.contiguity import contract, depth_first

HALVINGS = 40
MAX_CELLS = 10_000_000
"""Ops times placements that are priced at once."""


class ComponentOrder(NamedTuple):
    """n components in an order: the position of each op's component, and what the first k components need."""

    position: Ints  # [n_ops]
    seconds: Floats  # [n_devices, n + 1]
    size: Floats  # [n + 1], bytes; a weight counts where it is first used
    end: Ints  # [n_devices, n + 1], the position up to which a device may run everything from k on


class InOrderPlacer:
    """Stages in the order of the cluster's devices; a device may have none."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="in_order",
        summary="one stage per device, in the order of the devices, along several orders of the ops",
        source="Pinar and Aykanat, J. Parallel Distrib. Comput. 2004 (chains on chains)",
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best of the splits, or a note that none fits."""
        problem, watch, price = search.problem, search.watch, search.price
        best, value, reason = None, np.inf, Reason.FINISHED
        try:
            for order in list_orders(problem):
                for cuts in _list_starts(problem, order):
                    cuts, seconds = _move_ends(problem, order, cuts, price, watch)
                    if seconds < value:
                        best, value = assign_devices(order, cuts), seconds
                        search.on_progress(Progress(self.info.name, watch.elapsed, "better", value))
                    if watch.out:
                        reason = Reason.TIME_LIMIT
                        break
        except KeyboardInterrupt:
            reason = Reason.INTERRUPTED
        if best is None:
            return Proposal(
                None, reason=reason, notes=("no split in the order of the devices that was tried fits in memory",)
            )
        return Proposal(Placement(best), reason=reason)


def list_orders(problem: Problem) -> Iterator[ComponentOrder]:
    """The orders of the components that are split: the order of the ops, depth first, and last ready first."""
    graph = contract(problem)
    able, amount = may_run(problem, graph.component, graph.n), count_first_uses(problem.graph)
    seconds = np.zeros((graph.n, problem.n_devices))
    np.add.at(seconds, graph.component, np.where(problem.allowed, problem.costs.op_seconds, 0.0))
    size = np.bincount(graph.component, weights=amount, minlength=graph.n)
    orders = (np.arange(graph.n, dtype=np.int32), depth_first(graph), sort_last_ready_first(problem, graph))
    for position in {order.tobytes(): order for order in orders}.values():
        along = np.argsort(position)
        closed = np.where(able[along].T, graph.n, np.arange(graph.n))
        end = np.full((problem.n_devices, graph.n + 1), graph.n, np.int32)
        end[:, :-1] = np.minimum.accumulate(closed[:, ::-1], axis=1)[:, ::-1]
        sums = np.zeros((problem.n_devices, graph.n + 1))
        np.cumsum(seconds[along].T, axis=1, out=sums[:, 1:])
        yield ComponentOrder(position[graph.component], sums, np.concatenate(([0.0], np.cumsum(size[along]))), end)


def assign_devices(order: ComponentOrder, cuts: Longs) -> Ints:
    """The device of each op [n_ops]: device d has the positions from cuts[d − 1] to before cuts[d]."""
    return np.searchsorted(cuts, order.position, side="right").astype(np.int32)


def _list_starts(problem: Problem, order: ComponentOrder) -> Iterator[Longs]:
    """The splits to start from: even in seconds, and with memory filled up, from each device on."""
    for first in range(problem.n_devices):
        for propose in (_balance_stages, _fill_stages):
            device, _ = fit_memory(problem, partial(propose, order, first))
            if device is not None:
                at = np.zeros(problem.n_devices, np.int64)
                np.maximum.at(at, device, order.position.astype(np.int64) + 1)
                yield np.maximum.accumulate(at)


def _fill_stages(order: ComponentOrder, first: int, capacity: Floats) -> Ints | None:
    """Each device from `first` on takes as much as it may."""
    cuts = _take_up_to(order, first, capacity, np.inf)
    return None if cuts is None else assign_devices(order, cuts)


def _balance_stages(order: ComponentOrder, first: int, capacity: Floats) -> Ints | None:
    """The split over the devices from `first` on with the least seconds on any device."""
    best = _take_up_to(order, first, capacity, np.inf)
    if best is None:
        return None
    low, high = 0.0, float(order.seconds[:, -1].max())
    for _ in range(HALVINGS):
        limit = (low + high) / 2
        cuts = _take_up_to(order, first, capacity, limit)
        low, high, best = (limit, high, best) if cuts is None else (low, limit, cuts)
    return assign_devices(order, best)


def _take_up_to(order: ComponentOrder, first: int, capacity: Floats, limit: float) -> Longs | None:
    """The ends of stages [n_devices] if each takes what `limit` seconds and its memory allow; None if ops remain."""
    cuts, at = np.zeros(len(capacity), np.int64), 0
    for device in range(first, len(capacity)):
        seconds = np.searchsorted(order.seconds[device], order.seconds[device, at] + limit, side="right") - 1
        bytes_ = np.searchsorted(order.size, order.size[at] + capacity[device], side="right") - 1
        at = max(at, min(int(seconds), int(bytes_), int(order.end[device, at])))
        cuts[device] = at
    return cuts if at == len(order.size) - 1 else None


def _move_ends(
    problem: Problem, order: ComponentOrder, cuts: Longs, price: Evaluate, watch: Stopwatch
) -> tuple[Longs, float]:
    """The split after moving its ends, one or two at a time, as long as that improves it; and its seconds."""
    n = len(order.size) - 1
    value = float(price(assign_devices(order, cuts)[None])[0])
    if find_broken_rule(problem, assign_devices(order, cuts)):
        value = np.inf
    steps = [sign * (1 << k) for k in range(max(n, 1).bit_length()) for sign in (1, -1)]
    while not watch.out:
        moved = {tuple(_shift_ends(cuts, *ends, step, n)) for step in steps for ends in _list_ends(len(cuts))}
        tried = np.array(sorted(moved - {tuple(cuts.tolist())}), np.int64).reshape(-1, len(cuts))
        values = _price_splits(order, tried, price, watch)
        for k in np.argsort(values, kind="stable").tolist():
            if values[k] >= value * (1 - 1e-9) or not find_broken_rule(problem, assign_devices(order, tried[k])):
                break
        else:
            return cuts, value
        if values[k] >= value * (1 - 1e-9):
            return cuts, value
        cuts, value = tried[k], float(values[k])
    return cuts, value


def _price_splits(order: ComponentOrder, tried: Longs, price: Evaluate, watch: Stopwatch) -> Floats:
    """Seconds of many splits [K], priced in batches; inf for those without time left."""
    values, batch = np.full(len(tried), np.inf), max(MAX_CELLS // max(len(order.position), 1), 1)
    for first in range(0, len(tried), batch):
        if first and watch.out:
            break
        rows = np.stack([assign_devices(order, cuts) for cuts in tried[first : first + batch]])
        values[first : first + batch] = price(rows)
    return values


def _list_ends(count: int) -> Iterator[tuple[int, int]]:
    """The ends of stages that move together: one, or two neighbours."""
    for device in range(count - 1):
        yield device, device + 1
        if device + 2 < count:
            yield device, device + 2


def _shift_ends(cuts: Longs, first: int, last: int, step: int, n: int) -> list[int]:
    """The ends after those from `first` to before `last` moved by `step`; ends in the way are pushed along."""
    row = cuts.copy()
    row[first:last] = np.clip(row[first:last] + step, 0, n)
    row[:first] = np.minimum(row[:first], row[first])
    row[first:] = np.maximum.accumulate(row[first:])
    moved: list[int] = row.tolist()
    return moved
