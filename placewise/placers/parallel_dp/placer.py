"""parallel_dp: the fastest pipeline of stages that are split, repeated and recomputed, with a proof.

Stages are differences of ideals of the units. For one limit on the seconds of a stage, a dynamic program decides
whether any pipeline keeps it, over all degrees, replicas and classes of devices; which units recompute is decided
exactly (native/parallel_dp). The least limit is found by bisection, and proved by a last search just below it.
For latency one search finds the least sum. Devices of a class that differ in links, memory or rules are taken at their
best in proofs; what is found is priced by the judge on the devices that it gets, and searched for with devices at their
worst and one by one as well.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Improvement, Proposal, Reason
from placewise.model.ways import Ways, list_replicas
from placewise.placers.base import MAX_COUNT, PlacerInfo, Progress, SearchContext
from placewise.placers.parallel_dp.merge_leaves import MergedWays, merge_leaves
from placewise.placers.parallel_dp.node_cases import split_by_node
from placewise.placers.shared.device_classes import DeviceClass, assign_devices, classify, device_prices, list_able
from placewise.simulate.check.stages import check_stages
from placewise.simulate.judge.stages import stages_value

MAX_CLASSES = 6
"""Classes of devices that the kernel tells apart."""
MAX_UNITS = 20_000
"""Ideals hold a bit per unit."""
FOUND, NONE = 0, 1
START = "start"
"""Who found what the search began with."""
_IN_FLIGHT = {"one": 0, "1f1b": 1, "gpipe": 2}
QUICK_IDEALS = 1_000
"""With more ideals, one order of the units is split first, quickly, so that a search that is cut off is no worse."""
LINE_SECONDS = 0.5
"""Seconds that one order of the units may take to be read, however short the time is."""
_MOST = sys.float_info.max
_UNLIMITED = 1e8
"""Micro-batches where no step limits the replicas."""
CLOSE, JUST_BELOW = 2e-3, 1 - 1e-9
"""Where bisection ends, relatively, and by how much the last search must beat the value."""
LEFT_OUT = 1 - 1e-12
"""Covers the rounding of sums in proofs."""
_NEGLIGIBLE = 1e-280
"""Seconds below which nothing is proved: for the kernel, bytes over an infinite bandwidth take some 1e-308."""


@dataclass(frozen=True, slots=True)
class ParallelDpOptions:
    """`max_ideals`: where units have more, one order of the units is split in place of all."""

    max_ideals: int = 200_000


@dataclass(slots=True)
class _Run:
    """The units that are placed, the best placement so far, what is proved, and how the run ended."""

    search: SearchContext
    merged: MergedWays
    placement: Placement | None = None
    value: float = math.inf
    bound: float = 0.0
    method: str = "work over devices"
    reason: Reason = Reason.FINISHED
    notes: list[str] = field(default_factory=list)
    history: list[Improvement] = field(default_factory=list)

    def offer(self, placement: Placement | None, name: str) -> None:
        """Keep a placement that keeps the rules and is better than the best so far."""
        if placement is None or check_stages(self.search.problem, placement):
            return
        value = stages_value(self.search.problem, placement)
        fewer = self.placement is not None and count_devices(placement) < count_devices(self.placement)
        if value < self.value or (value == self.value and fewer):
            self.placement, self.value = placement, value
            self.history.append(Improvement(self.search.watch.elapsed, value, name))
            self.search.on_progress(Progress(name, self.search.watch.elapsed, "improved", value, self.bound))


def count_devices(placement: Placement) -> int:
    """How many devices the stages of a placement take."""
    return sum(len(group.devices) for group in placement.stages)


class ParallelDpPlacer:
    """Exact over ideals: which stage runs where, over how many devices, how often, and what recomputes."""

    Options = ParallelDpOptions
    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="parallel_dp",
        summary="pipelines of stages that are split, repeated and recomputed, proved optimal over ideals",
        source="Tarnawski, Narayanan and Phanishayee, Piper, NeurIPS 2021; exact inner choice and unequal devices ours",
        exact=True,
        replicates=True,
        splits=True,
    )

    def __init__(self, options: ParallelDpOptions = ParallelDpOptions()) -> None:
        self.options = options

    def supports(self, problem: Problem) -> str | None:
        if problem.ways is None:
            return "its ops may not be split: allow it with --tensor-parallel"
        if problem.ways.n_units > MAX_UNITS:
            return f"there are {problem.ways.n_units:,} units, and it takes {MAX_UNITS:,}"
        if problem.constraints.ordered:
            return "it does not search for stages in the order of the devices"
        if _joins_units(problem, problem.ways):
            return "it does not search for units that share a stage"
        count = len(classify(problem))
        if count > MAX_CLASSES:
            return f"the devices are of {count} kinds, and it tells {MAX_CLASSES} apart"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best pipeline found, with a bound; or the proof that none fits."""
        run = _Run(search, merge_leaves(search.problem.require_ways(), list_able(search.problem)))
        for placement in search.hints.placements:
            if placement.stages:
                run.offer(placement, START)
        try:
            infeasible = self._search(run)
        except KeyboardInterrupt:
            infeasible, run.reason = "", Reason.INTERRUPTED
        if infeasible:
            return Proposal(None, reason=Reason.PROVED, infeasible=infeasible)
        bound = Bound(run.bound, run.method)
        return Proposal(run.placement, bound, run.reason, tuple(run.notes), history=tuple(run.history))

    def _search(self, run: _Run) -> str:
        problem = run.search.problem
        classes = classify(problem)
        refusal = _refuse_units(problem, classes)
        if refusal:
            return refusal
        kernel = _create_kernel(run, classes, self.options.max_ideals)
        exact = kernel.complete
        if not exact:
            cause = f"the units have more than {self.options.max_ideals:,} ideals"
            cause = "the time was too short to list all ideals of the units" if run.search.watch.out else cause
            kernel = _create_kernel(run, classes, self.options.max_ideals, in_line=True)
            if not kernel.complete:
                run.reason = Reason.TIME_LIMIT
                run.notes.append("the time was too short for a search")
                return ""
            run.notes.append(f"{cause}: one order of them is split, under a bound from work over devices")
        if problem.objective.kind == "throughput":
            run.bound = _round_down(kernel.least_load)
            if exact and kernel.n_ideals > QUICK_IDEALS:
                line = _create_kernel(run, classes, self.options.max_ideals, in_line=True)
                if line.complete:
                    _minimize_slowest(run, line, classes, exact=False)
            infeasible = _minimize_slowest(run, kernel, classes, exact)
        else:
            infeasible = _minimize_sum(run, kernel, classes, exact)
        for view in ("worst", "apart"):
            seen = classify(problem, view)
            if len(seen) <= MAX_CLASSES and not _are_alike(seen, classes):
                _search_view(run, seen, self.options.max_ideals, in_line=not exact)
        if exact and problem.objective.kind == "throughput":
            _refute_by_node(run, classes, self.options.max_ideals, kernel.n_ideals)
        if kernel.relaxed:
            run.notes.append("the ways of some stages were relaxed for the bound, since there are very many of them")
        return infeasible if exact and run.placement is None else ""


def _minimize_slowest(run: _Run, kernel: _native.StageSearch, classes: list[DeviceClass], exact: bool) -> str:
    """Bisect on the seconds of the slowest stage; the words of a proof that nothing fits, or ""."""
    name, gap = ParallelDpPlacer.info.name, run.search.budget.gap
    most = run.value
    if run.placement is None:
        outcome = _attempt(run, kernel, math.inf)
        if outcome == NONE and exact:
            return "no pipeline of split, repeated and recomputed stages fits the memory of the devices"
        if outcome != FOUND:
            return ""
        most = _offer_found(run, kernel, classes, name)
    low, step = kernel.least_load, 0.02
    while most > low * (1 + max(CLOSE, gap)) and step < 1e9:  # from below: most limits in vain are quick to refute
        limit = min(low * (1 + step), (low + most) / 2) if step < 1 else (low + most) / 2
        step *= 2
        outcome = _attempt(run, kernel, limit)
        if outcome == FOUND:
            most = min(most, _offer_found(run, kernel, classes, name), limit)
        elif outcome == NONE:
            low = limit
            _prove(run, low, exact)
        else:
            return ""
    while run.value > run.bound * (1 + max(gap, 1e-9)) and most * JUST_BELOW < most:
        outcome = _attempt(run, kernel, most * JUST_BELOW)
        if outcome == FOUND:
            most = min(_offer_found(run, kernel, classes, name), most * JUST_BELOW)
            continue
        if outcome == NONE:
            _prove(run, most * JUST_BELOW, exact)
        break
    from_start = bool(run.history) and run.history[-1].placer == START
    if from_start and _attempt(run, kernel, run.value) == FOUND:  # the fewest devices that are as fast
        _offer_found(run, kernel, classes, name)
    return ""


def _minimize_sum(run: _Run, kernel: _native.StageSearch, classes: list[DeviceClass], exact: bool) -> str:
    """The least sum of seconds over stages; the words of a proof that nothing fits, or ""."""
    outcome = _attempt(run, kernel, math.inf, sums=True)
    if outcome == NONE:
        return "no pipeline of split stages fits the memory of the devices" if exact else ""
    if outcome == FOUND:
        least = kernel.found_value
        _offer_found(run, kernel, classes, ParallelDpPlacer.info.name)
        if exact:
            run.bound, run.method = _round_down(least), "dynamic program over ideals"
    return ""


def _are_alike(some: list[DeviceClass], others: list[DeviceClass]) -> bool:
    return len(some) == len(others) and all(a.is_like(b) for a, b in zip(some, others, strict=True))


def _search_view(run: _Run, classes: list[DeviceClass], most: int, *, in_line: bool) -> None:
    """Search once more with devices of a class seen in another way: the judge says what that is worth."""
    kernel = _create_kernel(run, classes, most, in_line=in_line)
    name, sums = ParallelDpPlacer.info.name, run.search.problem.objective.kind == "latency"
    low, high = run.bound, run.value * JUST_BELOW
    if not kernel.complete or low >= high or _attempt(run, kernel, high, sums=sums) != FOUND:
        return
    high = min(_offer_found(run, kernel, classes, name), high)
    while not sums and high > low * (1 + CLOSE):
        limit = (low + high) / 2
        outcome = _attempt(run, kernel, limit)
        if outcome == FOUND:
            high = min(_offer_found(run, kernel, classes, name), limit)
        elif outcome == NONE:
            low = limit
        else:
            return


def _refute_by_node(run: _Run, classes: list[DeviceClass], most: int, n_ideals: int) -> None:
    """Raise the bound by cases of how many devices are in stages that fill a node (`node_cases.py`).

    All cases together may have as many ideals as one search.
    """
    close, problem = 1 + max(CLOSE, run.search.budget.gap), run.search.problem
    if run.placement is None or run.value <= run.bound * close:
        return
    replicas = _replica_counts(problem, problem.require_ways())
    cases = split_by_node(problem, classes, replicas, MAX_CLASSES)
    if len(cases) * n_ideals > most:
        return
    kernels = [_create_kernel(run, parts, most) for parts, _ in cases]
    if not all(kernel.complete for kernel in kernels):
        return
    low, limit = run.bound, run.value * JUST_BELOW
    high = math.inf
    while cases and high > low * close:
        outcome = NONE
        for number, (_, origin) in enumerate(cases):
            outcome = _attempt(run, kernels[number], limit)
            if outcome == FOUND:
                _offer_found(run, kernels[number], classes, ParallelDpPlacer.info.name, origin)
                cases.insert(0, cases.pop(number))  # where one limit is kept, another may be, too
                kernels.insert(0, kernels.pop(number))
            if outcome != NONE:
                break
        if outcome == NONE:
            low = limit
            _prove(run, low, exact=True)
            high = min(high, run.value)
        elif outcome == FOUND:
            high = limit
        else:
            return
        limit = (low + min(high, run.value * JUST_BELOW)) / 2


def _refuse_units(problem: Problem, classes: list[DeviceClass]) -> str:
    """Why some unit runs nowhere, whatever the others do; "" if every unit runs on some devices."""
    ways = problem.require_ways()
    if not classes:
        return "no device may hold a stage"
    seconds = _seconds_by_class(ways, classes, [one.able for one in classes])
    runs, fits = np.zeros(ways.n_units, np.bool_), np.zeros(ways.n_units, np.bool_)
    room = np.array([one.node_size for one in classes])
    can = np.isfinite(seconds)
    np.logical_or.at(runs, ways.way_unit, can.any(axis=1))
    np.logical_or.at(fits, ways.way_unit, (can & (ways.degree[:, None] <= room)).any(axis=1))
    unit = int(np.argmin(fits))
    if fits[unit]:
        return ""
    name = problem.graph.ops.name[int(np.argmax(ways.unit == unit))]
    if not runs[unit]:
        return f"no device may run op {name!r}"
    least = int(ways.degree[ways.ways_of(unit)].min())
    return f"op {name!r} runs on {least} devices of a node at least, and no node has as many"


def _joins_units(problem: Problem, ways: Ways) -> bool:
    """Whether ops of several units form a colocation group."""
    grouped = problem.group >= 0
    pairs = np.unique(np.stack((problem.group[grouped], ways.unit[grouped])), axis=1)
    return len(np.unique(pairs[0])) < len(pairs[0])


def _prove(run: _Run, limit: float, exact: bool) -> None:
    if exact and _round_down(limit) > run.bound:
        run.bound, run.method = _round_down(limit), "dynamic program over ideals"


def _round_down(seconds: float) -> float:
    """A lower bound of what the kernel prices so."""
    return seconds * LEFT_OUT if seconds > _NEGLIGIBLE else 0.0


def _attempt(run: _Run, kernel: _native.StageSearch, limit: float, *, sums: bool = False) -> int:
    watch = run.search.watch
    if watch.out:
        run.reason = Reason.TIME_LIMIT
        return 2
    outcome = kernel.search(min(limit, _MOST), sums, watch.left, watch.budget.stop)
    if outcome not in (FOUND, NONE):
        run.reason = Reason.TIME_LIMIT
    return outcome


def _offer_found(
    run: _Run, kernel: _native.StageSearch, classes: list[DeviceClass], name: str, origin: Sequence[int] | None = None
) -> float:
    """Offer what the kernel found; its slowest stage as the kernel prices it, inf where ways were relaxed in vain.

    `origin` says of which of the `classes` those of the kernel are parts.
    """
    rows, unit_stage, way = kernel.stages()
    if not len(way):
        return math.inf
    own = [(int(c) if origin is None else origin[c], int(t), int(d)) for c, t, d, _ in rows]
    if any(sum(t * d for c, t, d in own if c == k) > len(one.members) for k, one in enumerate(classes)):
        return math.inf  # parts of classes hold more devices together than there are
    stages = assign_devices(run.search.problem, classes, own)
    if stages is not None:
        ways = run.merged.whole
        run.offer(Placement.of_stages(ways, stages, *run.merged.restore(unit_stage, way)), name)
    return kernel.found_value


def _create_kernel(run: _Run, classes: list[DeviceClass], most: int, *, in_line: bool = False) -> _native.StageSearch:
    problem, watch = run.search.problem, run.search.watch
    ways = run.merged.ways
    able = [run.merged.merge_able(one.able) for one in classes]
    seconds = _seconds_by_class(ways, classes, able)
    least = _least_work(ways, seconds)
    prices = device_prices(classes, least)
    counts = np.array([[len(one.members), one.node_size] for one in classes], np.int32)
    figures = np.array(
        [[_finite(one.capacity), price, *map(_finite, (*one.boundary, *one.inside, *one.across))]
         for one, price in zip(classes, prices.tolist(), strict=True)]
    )  # fmt: skip
    staged = problem.cluster.transfers == "staged"
    offsets, successors = _successors(ways, in_line)
    most = max(most, ways.n_units + 1) if in_line else min(max(most, 1), MAX_COUNT - 1)
    seconds_limit = max(watch.left, LINE_SECONDS) if in_line else watch.left
    return _native.StageSearch(
        ways.way_offsets, ways.degree, seconds, ways.gradient_bytes, ways.bytes_in_flight, ways.bytes_fixed,
        ways.tensor_unit, ways.tensor_bytes, ways.reader_offsets, ways.reader, ways.sync_bytes, ways.workspace,
        counts, figures,
        _replica_counts(problem, ways), float(ways.microbatches if ways.trains else _UNLIMITED), float(ways.passes),
        ways.gradient_factor, _IN_FLIGHT[ways.in_flight], staged or problem.objective.kind == "throughput",
        offsets, successors, most, seconds_limit, watch.budget.stop,
    )  # fmt: skip


def _seconds_by_class(ways: Ways, classes: list[DeviceClass], able: list[Bools]) -> Floats:
    """Seconds [n_ways, n_classes], inf where the class is not `able` [n_units] to run the unit."""
    columns = [
        np.where(can[ways.way_unit], ways.seconds[:, one.cost_class], np.inf)
        for one, can in zip(classes, able, strict=True)
    ]
    return np.ascontiguousarray(np.stack(columns, axis=1))


def _least_work(ways: Ways, seconds: Floats) -> Floats:
    """The least device-seconds [n_units, n_classes] of every unit on each class."""
    work = np.full((ways.n_units, seconds.shape[1]), np.inf)
    np.minimum.at(work, ways.way_unit, seconds * ways.degree[:, None])
    return work


def _replica_counts(problem: Problem, ways: Ways) -> Ints:
    """How many replicas a stage may have, ascending."""
    return np.array(
        list_replicas(ways, min(problem.constraints.replicas or problem.n_devices, problem.n_devices)), np.int32
    )


def _successors(ways: Ways, in_line: bool) -> tuple[np.ndarray, Ints]:
    """The units that read from each, as rows; with `in_line` the next unit alone."""
    if in_line:
        n = ways.n_units
        return np.minimum(np.arange(n + 1), n - 1).astype(np.int64), np.arange(1, n, dtype=np.int32)
    makers = np.repeat(ways.tensor_unit, np.diff(ways.reader_offsets))
    pairs = np.unique(np.stack((makers, ways.reader), axis=1), axis=0)
    offsets = np.searchsorted(pairs[:, 0], np.arange(ways.n_units + 1)).astype(np.int64)
    return offsets, np.ascontiguousarray(pairs[:, 1], np.int32)


def _finite(amount: float) -> float:
    return min(amount, _MOST)
