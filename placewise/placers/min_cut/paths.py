"""The placements behind two lower bounds for latency along a path through the model: the method `paths` of `min_cut`.

One bound cuts the path into calls by minimum cuts (`simulate.bounds.paths`), the other one also the chains beside it
(`simulate.bounds.parallel_chains`). Each call becomes an accelerator, the rest goes to the host, and other ops follow
their neighbours. If a placement costs no more than a bound charged, it is optimal, and proved to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Proposal, Reason, gap_of
from placewise.placers.base import Progress, SearchContext
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import judge_placement
from placewise.simulate.blocks import unshared_bytes
from placewise.simulate.bounds.parallel_chains import METHOD as CHAINS
from placewise.simulate.bounds.parallel_chains import Split, best_split
from placewise.simulate.bounds.paths import LONGEST, METHOD, WORK, Cutting, best_cutting

REPORT_EVERY = 0.5
"""Seconds between two progress reports."""


def explain_path_refusal(problem: Problem) -> str | None:
    """None, or why a path of the model cannot be cut into calls."""
    if problem.objective.kind != "latency" or problem.objective.execution != "subgraph":
        return "paths cuts the model into calls, for latency in subgraph execution"
    return None


def propose_path_cut(search: SearchContext, name: str) -> Proposal:
    """The better of two placements along a path, and the higher bound; only the bound if neither keeps the rules.

    Minimum cuts, which take longer, are left out if the first placement is proved to be optimal.
    Progress is reported under `name`.
    """
    problem, watch = search.problem, search.watch
    work, reported = np.inf if np.isfinite(search.budget.seconds) else WORK, 0.0

    def go_on() -> bool:
        nonlocal reported
        if watch.elapsed > reported + REPORT_EVERY:
            reported = watch.elapsed
            search.on_progress(Progress(name, watch.elapsed, "cutting a path into calls"))
        return not watch.out

    def split() -> tuple[float, list[Placement]] | None:
        best = best_split(problem, work=work, go_on=go_on)
        return None if best is None else (best.value, _place_split(problem, best))

    def cut() -> tuple[float, list[Placement]] | None:
        best = best_cutting(problem, work=work, go_on=go_on)
        return None if best is None else (best.value, _place_cutting(problem, best))

    found, bounds, reason = list[Placement](), list[Bound](), Reason.FINISHED
    try:
        for method, propose in ((CHAINS, split), (METHOD, cut)):
            proposed = propose()
            if proposed is not None:
                bounds.append(Bound(proposed[0], method))
                found += proposed[1]
                if gap_of(_find_best(problem, found)[0], proposed[0]) <= OPTIMAL_GAP:
                    break
        reason = Reason.TIME_LIMIT if watch.out else Reason.FINISHED
    except KeyboardInterrupt:
        reason = Reason.INTERRUPTED
    if not bounds:
        notes = () if reason is Reason.INTERRUPTED else (_explain_no_cutting(problem, work),)
        return Proposal(None, reason=reason, notes=notes)
    bound = max(bounds, key=lambda bound: bound.value)
    best = _find_best(problem, found)[1]
    if best is None:
        fault = find_broken_rule(problem, found[0].device) if found else "some group has no room left"
        return Proposal(None, bound, reason, (f"the placement behind the bound is not valid: {fault}",))
    return Proposal(replace(best, device=relabel(problem, best.device)), bound, reason)


def _find_best(problem: Problem, placements: Sequence[Placement]) -> tuple[float, Placement | None]:
    """The least value in seconds of placements that keep the rules, and its placement."""
    valid = [placement for placement in placements if not find_broken_rule(problem, placement.device)]
    values = [judge_placement(problem, placement).value for placement in valid]
    return min(zip(values, valid, strict=True), key=lambda judged: judged[0], default=(np.inf, None))


def _explain_no_cutting(problem: Problem, work: float) -> str:
    """Why there is no cutting, and what to do about it."""
    size = problem.n_ops + len(problem.graph.consumers)
    if size > work:
        return f"{size:,} ops and uses of tensors are more than paths handles without a time limit: set one"
    return f"every long path has more than {LONGEST:,} ops, the most that paths cuts: use temper or auto"


class _BlockAssignment:
    """The blocks placed so far, and the bytes left on each device."""

    def __init__(self, problem: Problem) -> None:
        self.device = np.full(problem.n_blocks, -1, np.int32)
        self._bytes = unshared_bytes(problem)
        self._left: Floats = problem.capacity.copy()
        self._allowed: Bools = may_run(problem, problem.block, problem.n_blocks)

    def room(self, blocks: Ints, device: int) -> bool:
        """Whether all of `blocks` may run on `device` and fit."""
        return bool(self._allowed[blocks, device].all() and self._bytes[blocks].sum() <= self._left[device])

    def put(self, blocks: Ints, devices: list[int]) -> bool:
        """Place those of `blocks` without a device on the first device that takes them all; False if none does."""
        new = blocks[self.device[blocks] < 0]
        for device in devices:
            if self.room(new, device):
                self.device[new] = device
                self._left[device] -= self._bytes[new].sum()
                return True
        return False


def _place_cutting(problem: Problem, cutting: Cutting) -> list[Placement]:
    """The placement of a cutting; none if some block fits nowhere."""
    runs: dict[int, list[Ints]] = {}
    for (i, j), run in zip(cutting.segments, cutting.run, strict=True):
        runs.setdefault(run, []).append(cutting.path[i:j])
    beside = [(run, np.flatnonzero(call)) for run, call in zip(cutting.run, cutting.calls, strict=True)]
    device = _assign_runs(problem, runs, cutting.path, beside)
    return [] if device is None else [Placement(device)]


def _assign_runs(
    problem: Problem, runs: dict[int, list[Ints]], path: Ints, beside: Sequence[tuple[int, Ints | Longs]] = ()
) -> Ints | None:
    """The devices [n_ops] of ops by the number of their accelerator, or None if some block fits nowhere.

    Other ops of `path` go to the host, those `beside` to an accelerator if they fit, and the rest to their neighbours.
    """
    placed, block = _BlockAssignment(problem), problem.block
    host = np.flatnonzero(problem.cluster.is_host).tolist()
    free = np.flatnonzero(~problem.cluster.is_host).tolist()
    device = dict.fromkeys(runs, -1)
    for run, ops in runs.items():
        blocks = np.unique(block[np.concatenate(ops)])
        blocks = blocks[placed.device[blocks] < 0]
        if len(blocks) and placed.put(blocks, [*free, *(d for d in device.values() if d >= 0)]):
            device[run] = int(placed.device[blocks[0]])
            free = [d for d in free if d != device[run]]
    for op in path.tolist():
        placed.put(block[op : op + 1], [*host, *free])
    for run, ops_beside in beside:
        for b in np.unique(block[ops_beside]).tolist():
            if device[run] >= 0:
                placed.put(np.array([b]), [device[run]])
    _follow_neighbours(problem, placed)
    everywhere = [*host, *range(problem.n_devices)]
    if not all(placed.put(np.array([b]), everywhere) for b in np.flatnonzero(placed.device < 0).tolist()):
        return None
    return placed.device[block]


def _place_split(problem: Problem, split: Split) -> list[Placement]:
    """The placement of a split with its calls, and with those that the judge cuts; none if some block fits nowhere."""
    runs: dict[int, list[Ints]] = {}
    number = np.full(problem.n_ops, -1, np.int32)
    for k, (ops, run) in enumerate(zip(split.calls, split.run, strict=True)):
        runs.setdefault(run, []).append(np.array(ops, np.int32))
        number[list(ops)] = k
    device = _assign_runs(problem, runs, split.kept)
    if device is None:
        return []
    return [Placement(device), Placement(device, _number_others(problem, device, number))]


def _number_others(problem: Problem, device: Ints, number: Ints) -> Ints:
    """The calls [n_ops], for ops without one (−1) the last one of what they read, else one that reads them."""
    graph, number = problem.graph, number.copy()
    producer = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    used = (producer >= 0) & (device[producer] == device[graph.consumers])
    pairs, open_ = np.stack((producer[used], graph.consumers[used]), axis=1).tolist(), number < 0
    for maker, reader in sorted(pairs, key=lambda pair: pair[1]):
        if open_[reader]:
            number[reader] = max(number[reader], number[maker])
    for maker, reader in sorted(pairs, reverse=True):
        if open_[maker] and number[reader] >= 0:
            number[maker] = number[reader] if number[maker] < 0 else number[maker]
    return np.maximum(number, 0)


def _follow_neighbours(problem: Problem, placed: _BlockAssignment) -> None:
    """Place blocks without a device on the device of a neighbour, along the edges backward, then forward."""
    graph, block = problem.graph, problem.block
    producer = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    produced = producer >= 0
    pairs = np.stack((block[producer[produced]], block[graph.consumers[produced]]), axis=1)
    for step in (-1, 1):
        for one, other in pairs[::step].tolist():
            for unplaced, neighbour in ((one, other), (other, one)):
                if placed.device[unplaced] < 0 <= placed.device[neighbour]:
                    placed.put(np.array([unplaced]), [int(placed.device[neighbour])])
