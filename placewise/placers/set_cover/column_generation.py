"""Refuting max-loads by column generation over the sets of blocks that fit a device.

If max-load T can be reached, the blocks are partitioned into one set per device, each within T and the device's memory.
For any prices π of blocks, Σ π is then at most Σ_c k_c α_c, with k_c devices of class c and α_c the highest price of a
set that fits one. Prices with Σ π > Σ k_c α_c refute T. Prices and loads are whole numbers, loads rounded down: the
certificate is exact except for the pruning of labels, which keeps a margin. Classes of interchangeable devices avoid
symmetry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.placers.set_cover.decision_diagram import Diagram, SetSearch, diagram, order_blocks
from placewise.placers.set_cover.machine_costs import machines
from placewise.placers.set_cover.master_program import Box, CoverMaster
from placewise.placers.set_cover.repeated_parts import shifts
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts
from placewise.placers.shared.throughput_search.pipeline_costs import native_costs

_UNIT = 2.0**50
_ROUNDS = 2000
_SMOOTHING = 0.85
_LEVELS = ((128, True), (2048, True), (4096, False), (65536, False), (1 << 20, False))
"""Labels per node, and whether more are dropped (or merged): from quick sets to a proof."""
_KEPT = 30
"""Sets per block that one max-load passes on to the next."""
_REACH, _MIN_REACH = 0.6, 0.05
"""The most that prices differ from the box's centre, as shares of a block's work and of an average block's."""
_NEAR, _WIDENINGS = 0.03, 6
"""The box already moves where the program's value is this close to 1, this many times per max-load."""
_MOVED = 4
"""Sets of one search that are tried in every repetition of the graph's parts."""
_STEPS = (0.2, 0.1, 0.05, 0.025, 0.0125, 0.006, 0.003, 0.0015, 7e-4, 3e-4, 1e-4, 4e-7)
"""Gaps to try, one after the other, while all are refuted."""
_FINE = 1.25
_SLICE = 0.4
"""The share of the remaining seconds for one max-load, at most."""
_SHORT, _PATIENCE, _MORE = 0.02, 3.0, 1.5
"""A max-load gets `_PATIENCE` times the longest refutation so far, or this share of the remaining seconds; each open
one multiplies that by `_MORE`."""


class LoadStatus(Enum):
    """What is known of a max-load: no placement reaches it; mixtures of sets do; or neither is known."""

    REFUTED = "refuted"
    MIXABLE = "mixable"
    OPEN = "open"


@dataclass(slots=True)
class DeviceSets:
    """Sets that devices can hold, with their loads; their number grows from one max-load to the next.

    `tight`, per class: whether some set did not fit in memory, so that bytes count; `shifts` map blocks to those of
    repeated parts; `box` limits the prices of blocks [n]; `machines` are the costs of one device of each class beside
    the host; `prices` are the best so far, of blocks [n] and of one device of each class. Another thread may end a
    search by `stop`.
    """

    costs: ComponentCosts
    diagrams: tuple[Diagram, ...]
    shifts: tuple[Ints, ...]
    box: Box
    tight: list[bool]
    machines: tuple[_native.ThroughputCosts, ...]
    prices: Floats
    stop: _native.StopFlag | None = None
    kinds: list[int] = field(default_factory=list)
    blocks: list[Bools] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, costs: ComponentCosts, stop: _native.StopFlag | None = None, go_on: Callable[[], bool] = lambda: True
    ) -> DeviceSets | None:
        """No sets yet; None once `go_on` says no."""
        order, share = order_blocks(costs, go_on), _work_shares(costs)
        diagrams = list[Diagram]()
        for kind in range(len(costs.rate)):
            built = diagram(costs, kind, order, go_on=go_on)
            if built is None:
                return None
            diagrams.append(built)
        box = Box(share, _REACH * share + _MIN_REACH / max(len(share), 1))
        pairs = tuple(native_costs(machines(costs, [kind, -1])) for kind in range(len(costs.rate)))
        prices = np.concatenate((share, np.full(len(diagrams), 1 / costs.n_devices.sum())))
        return cls(costs, tuple(diagrams), shifts(costs, go_on), box, [False] * len(diagrams), pairs, prices, stop)

    def load_of(self, kind: int, blocks: Bools) -> int | None:
        """The load of a set on a device of class `kind`; None if it may not run or does not fit there."""
        if (self.costs.seconds[blocks, kind] >= NEVER).any():
            return None
        state = _native.PipelineState(self.machines[kind], np.where(blocks, 0, 1).astype(np.int32))
        return None if state.missing_bytes else int(state.loads()[0])

    def add(self, kind: int, blocks: Bools, load: int) -> None:
        self.kinds.append(kind)
        self.blocks.append(blocks)
        self.loads.append(load)

    def keep_latest(self, most: int) -> None:
        """Forget all but the `most` sets found last."""
        self.kinds, self.blocks, self.loads = self.kinds[-most:], self.blocks[-most:], self.loads[-most:]


def refute(sets: DeviceSets, most: int, seconds_left: Callable[[], float]) -> LoadStatus:
    """Whether no placement has max-load ≤ `most` (in units of the costs), as far as the remaining seconds allow.

    The prices of the program oscillate. Sets are therefore priced between its own prices and the best so far (Wentges
    1997), first at the best of the max-loads before, and at its own where that finds nothing new. Prices stay within a
    box around the work of each block, which moves where the program presses against it (du Merle, Villeneuve,
    Desrosiers and Hansen 1999).
    """
    costs, count = sets.costs, sets.costs.n_devices.astype(np.int64)
    n = len(costs.size)
    sets.keep_latest(_KEPT * n)
    master, widenings = CoverMaster(sets.box, count), 0
    for kind, blocks, load in zip(sets.kinds, sets.blocks, sets.loads, strict=True):
        if load <= most:
            master.add(kind, blocks)
    best_ratio, weight = 0.0, 1.0
    for _ in range(_ROUNDS):
        if seconds_left() <= 0:
            return LoadStatus.OPEN
        solved = master.solve(seconds_left())
        if solved is None:
            return LoadStatus.OPEN
        often, *duals = solved
        if often <= 1 + (_NEAR if widenings < _WIDENINGS else 1e-9):
            widenings += 1
            if master.widen():
                sets.box = master.box
                continue
            if often <= 1 + 1e-9:
                return LoadStatus.MIXABLE
            widenings = _WIDENINGS
        tried = weight * sets.prices + (1 - weight) * np.concatenate(duals)
        price = np.round(tried[:n] * (_UNIT / max(float(np.abs(tried[:n]).sum()), 1.0))).astype(np.int64)
        whole, devices = int(price.sum()), tried[n:]
        if devices @ count < 1e-9:
            devices = np.full(len(count), 1 / count.sum())
        target = devices * (whole / float(devices @ count)) * (1 - 1e-9)
        fresh, ratio, searches = 0, 1.0, [_search(sets, kind, most, price) for kind in range(len(count))]
        for width, beam in _LEVELS:
            ceilings, fresh = _price_sets(sets, most, searches, target, width, beam, master, seconds_left)
            paid = sum(int(k) * c for k, c in zip(count, ceilings, strict=True))
            ratio = whole / max(paid, 1)
            if whole > paid and not beam:
                sets.prices = tried
                return LoadStatus.REFUTED
            if fresh or seconds_left() <= 0:
                break
        if ratio > best_ratio:
            sets.prices, best_ratio = tried, ratio
        if not fresh and not weight:
            return LoadStatus.OPEN
        weight = _SMOOTHING if fresh else 0.0
    return LoadStatus.OPEN


def _work_shares(costs: ComponentCosts) -> Floats:
    """The share [n] of each block in the work, at its quickest: the first prices."""
    work = np.where(costs.seconds < NEVER, costs.seconds, np.iinfo(np.int64).max).min(axis=1).astype(np.float64)
    shares: Floats = work / max(float(work.sum()), 1.0)
    return shares


def _search(sets: DeviceSets, kind: int, most: int, price: Longs) -> SetSearch:
    """A search for sets of high price that a device of class `kind` can hold, of load ≤ `most`."""
    d = sets.diagrams[kind]
    limits = np.full(d.cost.shape[2] - (not sets.tight[kind]), most)
    limits[d.cost.shape[2] - 1 :] = sets.costs.capacity[kind]
    return SetSearch(d, price, limits, sets.stop)


def _price_sets(
    sets: DeviceSets,
    most: int,
    searches: list[SetSearch],
    targets: Floats,
    width: int,
    beam: bool,
    master: CoverMaster,
    seconds_left: Callable[[], float],
) -> tuple[list[int], int]:
    """The ceiling of the price of a set per class, and the number of new sets."""
    ceilings, fresh = [], 0
    for kind, search in enumerate(searches):
        priced = search.find(max(int(targets[kind]), 0), width=width, beam=beam, seconds=seconds_left())
        ceilings.append(priced.ceiling)
        fresh += _add_sets(sets, most, kind, priced.sets, master)
    return ceilings, fresh


def _add_sets(sets: DeviceSets, most: int, kind: int, rows: Bools, master: CoverMaster) -> int:
    """Add sets [k, n] to the program, the first ones also where the graph repeats; how many are new."""
    moved = []
    for blocks in rows[:_MOVED]:
        for images in sets.shifts:
            there = images[blocks]
            moved.append(np.zeros_like(blocks))
            moved[-1][there[there >= 0]] = True
    fresh = 0
    for blocks in [*rows, *moved]:
        load = sets.load_of(kind, blocks)
        if load is None:
            sets.tight[kind] = True
        elif load <= most and master.add(kind, blocks):
            sets.add(kind, blocks, load)
            fresh += 1
    return fresh


def raise_floor(
    sets: DeviceSets, low: int, value: int, gap: float, seconds_left: Callable[[], float], report: Callable[[int], None]
) -> bool:
    """Refute ever greater max-loads below `value`, in units of the costs, and `report` each; `low` is refuted already.

    Max-loads go upwards in ever smaller steps, because the sets and the box of one serve the next; after the first that
    is not refuted they lie between it and the last that is. One that mixtures of sets reach is never tried again; an
    open one is, once the floor is near. Returns False if time ended the search, not a relative `gap`.
    """
    closed = max(1 - low / max(value, 1), 0.0)
    wall, mixable, longest, patience = -1.0, -1.0, 0.0, _PATIENCE
    while seconds_left() > 0 and closed > gap:
        if wall >= 0 and closed <= max(wall, 1e-6) * _FINE:
            if mixable >= wall:
                return True
            wall = mixable
        step = (max(wall, 1e-7) * closed) ** 0.5 if wall >= 0 else max((s for s in _STEPS if s < closed), default=-1)
        if step < 0:
            return True
        most, left = min(int(value * (1 - step)), value - 1), seconds_left()
        until = left - min(left * _SLICE, max(longest, left * _SHORT) * patience)
        status = refute(sets, most, lambda until=until: seconds_left() - until)  # type: ignore[misc]
        if status is LoadStatus.REFUTED:
            closed, longest = step, max(longest, left - seconds_left())
            report(most)
        else:
            wall, patience = step, patience * _MORE
            mixable = step if status is LoadStatus.MIXABLE else mixable
    return closed <= gap
