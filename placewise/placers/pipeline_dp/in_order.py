"""in_order: a stage per device, in the order of the devices, along several topological orders of the ops.

Chains on chains: where a device takes as much of a line as a limit of seconds and its memory allow, the first device
first, the least limit under which the line is used up is found by bisection (Pinar and Aykanat, J. Parallel Distrib.
Comput. 64, 2004; for unequal devices Pinar, Tabak and Aykanat, 2008). That counts no transfers; the judge does, while
the ends of stages move along the line.
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
from placewise.placers.base import (
    Evaluate,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
)
from placewise.placers.pipeline_dp.topological_orders import sort_last_ready_first
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.blocks import storage_bytes
from placewise.simulate.contiguity import contract, depth_first

HALVINGS = 40
MOST_CELLS = 10_000_000
"""Ops, times placements that are priced at once."""


class ComponentOrder(NamedTuple):
    """Components in a row, n of them: which one an op is in, and what the first k of them need."""

    position: Ints  # [n_ops]
    seconds: Floats  # [n_devices, n + 1]
    size: Floats  # [n + 1], bytes; a weight counts where it is first used
    end: Ints  # [n_devices, n + 1], from k on a device may run everything up to there


class InOrderPlacer:
    """Stages in the order of the cluster's devices, of which some may have none."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="in_order",
        summary="one stage per device, in the order of the devices, along several orders of the ops",
        source="Pinar and Aykanat, J. Parallel Distrib. Comput. 2004 (chains on chains)",
    )

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best of the splits, or words that say that none fits."""
        problem, watch, price = search.problem, search.watch, search.price
        best, value, reason = None, np.inf, Reason.FINISHED
        try:
            for line in list_orders(problem):
                for cuts in _list_starts(problem, line):
                    cuts, seconds = _move_ends(problem, line, cuts, price, watch)
                    if seconds < value:
                        best, value = assign_devices(line, cuts), seconds
                        search.on_progress(Progress(self.info.name, watch.elapsed, "better", value))
                    if watch.out:
                        reason = Reason.TIME_LIMIT
                        break
        except KeyboardInterrupt:
            reason = Reason.INTERRUPTED
        if best is None:
            return Proposal(
                None, reason=reason, notes=("no split that was tried, device after device, fits in memory",)
            )
        return Proposal(Placement(best), reason=reason)


def list_orders(problem: Problem) -> Iterator[ComponentOrder]:
    """The orders of the components that are split: as the ops stand, depth first, what became ready last first."""
    graph = contract(problem)
    able, amount = may_run(problem, graph.component, graph.n), _first_needed(problem)
    seconds = np.zeros((graph.n, problem.n_devices))
    np.add.at(seconds, graph.component, np.where(problem.allowed, problem.costs.op_seconds, 0.0))
    size = np.bincount(graph.component, weights=amount, minlength=graph.n)
    orders = (np.arange(graph.n, dtype=np.int32), depth_first(graph), sort_last_ready_first(problem, graph))
    for order in {order.tobytes(): order for order in orders}.values():
        along = np.argsort(order)
        closed = np.where(able[along].T, graph.n, np.arange(graph.n))
        end = np.full((problem.n_devices, graph.n + 1), graph.n, np.int32)
        end[:, :-1] = np.minimum.accumulate(closed[:, ::-1], axis=1)[:, ::-1]
        sums = np.zeros((problem.n_devices, graph.n + 1))
        np.cumsum(seconds[along].T, axis=1, out=sums[:, 1:])
        yield ComponentOrder(order[graph.component], sums, np.concatenate(([0.0], np.cumsum(size[along]))), end)


def assign_devices(line: ComponentOrder, cuts: Longs) -> Ints:
    """The device of each op [n_ops]: device d has what stands from the end of the one before up to cuts[d]."""
    found: Ints = np.searchsorted(cuts, line.position, side="right").astype(np.int32)
    return found


def _first_needed(problem: Problem) -> Floats:
    """Bytes [n_ops] of state, and of the weights that each op is the first to use."""
    graph = problem.graph
    amount = graph.ops.state_bytes.astype(np.float64)
    storage, first = np.unique(graph.weights.storage[graph.weight_edges.value], return_index=True)
    np.add.at(amount, graph.weight_edges.consumer[first], storage_bytes(graph)[storage])
    return amount


def _list_starts(problem: Problem, line: ComponentOrder) -> Iterator[Longs]:
    """Splits to begin with: even in seconds, and memory filled up, the first devices left out or not."""
    for first in range(problem.n_devices):
        for propose in (_balance_stages, _fill_stages):
            device, _ = fit_memory(problem, partial(propose, line, first))
            if device is not None:
                at = np.zeros(problem.n_devices, np.int64)
                np.maximum.at(at, device, line.position.astype(np.int64) + 1)
                yield np.maximum.accumulate(at)


def _fill_stages(line: ComponentOrder, first: int, capacity: Floats) -> Ints | None:
    """Each device from `first` on takes all that it may."""
    cuts = _take_up_to(line, first, capacity, np.inf)
    return None if cuts is None else assign_devices(line, cuts)


def _balance_stages(line: ComponentOrder, first: int, capacity: Floats) -> Ints | None:
    """The split of the least seconds on any device from `first` on."""
    best = _take_up_to(line, first, capacity, np.inf)
    if best is None:
        return None
    low, high = 0.0, float(line.seconds[:, -1].max())
    for _ in range(HALVINGS):
        limit = (low + high) / 2
        cuts = _take_up_to(line, first, capacity, limit)
        low, high, best = (limit, high, best) if cuts is None else (low, limit, cuts)
    return assign_devices(line, best)


def _take_up_to(line: ComponentOrder, first: int, capacity: Floats, limit: float) -> Longs | None:
    """Where stages end [n_devices] if each takes what `limit` seconds and its memory allow; None: not all is taken."""
    cuts, at = np.zeros(len(capacity), np.int64), 0
    for device in range(first, len(capacity)):
        seconds = np.searchsorted(line.seconds[device], line.seconds[device, at] + limit, side="right") - 1
        bytes_ = np.searchsorted(line.size, line.size[at] + capacity[device], side="right") - 1
        at = max(at, min(int(seconds), int(bytes_), int(line.end[device, at])))
        cuts[device] = at
    return cuts if at == len(line.size) - 1 else None


def _move_ends(
    problem: Problem, line: ComponentOrder, cuts: Longs, price: Evaluate, watch: Stopwatch
) -> tuple[Longs, float]:
    """The split with its ends moved, one or two at once, as long as that is better; and its seconds."""
    n = len(line.size) - 1
    value = float(price(assign_devices(line, cuts)[None])[0])
    if find_broken_rule(problem, assign_devices(line, cuts)):
        value = np.inf
    steps = [sign * (1 << k) for k in range(max(n, 1).bit_length()) for sign in (1, -1)]
    while not watch.out:
        moved = {tuple(_shift_ends(cuts, *ends, step, n)) for step in steps for ends in _list_ends(len(cuts))}
        tried = np.array(sorted(moved - {tuple(cuts.tolist())}), np.int64).reshape(-1, len(cuts))
        values = _price_splits(line, tried, price, watch)
        for k in np.argsort(values, kind="stable").tolist():
            if values[k] >= value * (1 - 1e-9) or not find_broken_rule(problem, assign_devices(line, tried[k])):
                break
        else:
            return cuts, value
        if values[k] >= value * (1 - 1e-9):
            return cuts, value
        cuts, value = tried[k], float(values[k])
    return cuts, value


def _price_splits(line: ComponentOrder, tried: Longs, price: Evaluate, watch: Stopwatch) -> Floats:
    """Seconds of many splits [K], some at once; inf for those that there was no time for."""
    values, batch = np.full(len(tried), np.inf), max(MOST_CELLS // max(len(line.position), 1), 1)
    for first in range(0, len(tried), batch):
        if first and watch.out:
            break
        rows = np.stack([assign_devices(line, cuts) for cuts in tried[first : first + batch]])
        values[first : first + batch] = price(rows)
    return values


def _list_ends(count: int) -> Iterator[tuple[int, int]]:
    """The ends of stages that move together: one, or two neighbours."""
    for device in range(count - 1):
        yield device, device + 1
        if device + 2 < count:
            yield device, device + 2


def _shift_ends(cuts: Longs, first: int, last: int, step: int, n: int) -> list[int]:
    """The ends with those from `first` to before `last` moved, and others pushed along where they are in the way."""
    row = cuts.copy()
    row[first:last] = np.clip(row[first:last] + step, 0, n)
    row[:first] = np.minimum(row[:first], row[first])
    row[first:] = np.maximum.accumulate(row[first:])
    moved: list[int] = row.tolist()
    return moved
