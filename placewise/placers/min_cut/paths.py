"""paths: the placement that a lower bound for latency has in mind.

The bound (`simulate.bounds.paths`) cuts a path through the model into calls. Each call becomes an accelerator, the
rest of the path goes to the host, and what is beside the path follows its neighbours. Where that
costs no more than the bound charged, the placement is optimal, and proved to be.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import (
    PlacerInfo,
    Progress,
    SearchContext,
)
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.rules import broken
from placewise.simulate.blocks import unshared_bytes
from placewise.simulate.bounds.paths import LONGEST, METHOD, WORK, Cutting, best_cutting

TELL_EVERY = 0.5
"""Seconds between two signs of life."""


class PathsPlacer:
    """Quick, with a proof of how good it is; best where one path dominates, as in a deep chain of layers."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="paths",
        summary="the longest path cut into calls by minimum cuts, with a lower bound",
        source="dynamic programming over minimum cuts along a path, for the latency of Tarnawski et al., NeurIPS 2020",
        exact=True,
        objectives=frozenset({"latency"}),
    )

    def supports(self, problem: Problem) -> str | None:
        if problem.objective.kind != "latency" or problem.objective.execution != "subgraph":
            return "paths cuts the model into calls, for latency in subgraph execution"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The placement of the best cutting and its bound; only the bound if the placement breaks a rule."""
        problem, watch = search.problem, search.watch
        work, told = np.inf if np.isfinite(search.budget.seconds) else WORK, [0.0]

        def go_on() -> bool:
            if watch.elapsed > told[0] + TELL_EVERY:
                told[0] = watch.elapsed
                search.on_progress(Progress("paths", watch.elapsed, "cutting a path into calls"))
            return not watch.out

        try:
            cutting = best_cutting(problem, work=work, go_on=go_on)
        except KeyboardInterrupt:
            return Proposal(None, reason=Reason.INTERRUPTED)
        if cutting is None:
            return Proposal(None, notes=(_too_much(problem, work),))
        bound, reason = Bound(cutting.value, METHOD), Reason.TIME_LIMIT if watch.out else Reason.FINISHED
        device = _placed(problem, cutting)
        why_not = "some group has no room left" if device is None else broken(problem, device)
        if device is None or why_not:
            return Proposal(None, bound, reason, (f"the placement behind the bound will not do: {why_not}",))
        return Proposal(Placement(relabel(problem, device)), bound, reason)


def _too_much(problem: Problem, work: float) -> str:
    """Why there is no cutting, and what to do instead."""
    size = problem.n_ops + len(problem.graph.consumers)
    if size > work:
        return f"{size:,} ops and uses of tensors are more than paths works through without a time limit: give one"
    return f"every long path has more than {LONGEST:,} ops, which are the most that paths cuts: use temper or auto"


class _Homes:
    """Blocks that have a device so far, and the bytes that are left."""

    def __init__(self, problem: Problem) -> None:
        self.home = np.full(problem.n_blocks, -1, np.int32)
        self._held = unshared_bytes(problem)
        self._left: Floats = problem.capacity.copy()
        self._allowed: Bools = may_run(problem, problem.block, problem.n_blocks)

    def room(self, blocks: Ints, device: int) -> bool:
        """Whether all of `blocks` may run on `device` and fit."""
        return bool(self._allowed[blocks, device].all() and self._held[blocks].sum() <= self._left[device])

    def put(self, blocks: Ints, devices: list[int]) -> bool:
        """Those of `blocks` without a home go to the first device that takes them all; False if none does."""
        new = blocks[self.home[blocks] < 0]
        for device in devices:
            if self.room(new, device):
                self.home[new] = device
                self._left[device] -= self._held[new].sum()
                return True
        return False


def _placed(problem: Problem, cutting: Cutting) -> Ints | None:
    """The devices [n_ops] of a cutting, or None if some block has no room left."""
    homes, block = _Homes(problem), problem.block
    host = np.flatnonzero(problem.cluster.is_host).tolist()
    free = np.flatnonzero(~problem.cluster.is_host).tolist()
    runs: dict[int, list[Ints]] = {}
    for (i, j), run in zip(cutting.segments, cutting.run, strict=True):
        runs.setdefault(run, []).append(cutting.path[i:j])
    device = dict.fromkeys(runs, -1)
    for run, ops in runs.items():
        blocks = np.unique(block[np.concatenate(ops)])
        blocks = blocks[homes.home[blocks] < 0]
        if len(blocks) and homes.put(blocks, [*free, *(d for d in device.values() if d >= 0)]):
            device[run] = int(homes.home[blocks[0]])
            free = [d for d in free if d != device[run]]
    for op in cutting.path.tolist():
        homes.put(block[op : op + 1], [*host, *free])
    for run, call in zip(cutting.run, cutting.calls, strict=True):
        for b in np.unique(block[call]).tolist():
            if device[run] >= 0:
                homes.put(np.array([b]), [device[run]])
    _follow(problem, homes)
    everywhere = [*host, *range(problem.n_devices)]
    if not all(homes.put(np.array([b]), everywhere) for b in np.flatnonzero(homes.home < 0).tolist()):
        return None
    return homes.home[block]


def _follow(problem: Problem, homes: _Homes) -> None:
    """Blocks without a home go where a neighbour is, as long as that helps any."""
    graph, block = problem.graph, problem.block
    maker = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    made = maker >= 0
    pairs = np.stack((block[maker[made]], block[graph.consumers[made]]), axis=1)
    for step in (-1, 1):
        for one, other in pairs[::step].tolist():
            for lost, found in ((one, other), (other, one)):
                if homes.home[lost] < 0 <= homes.home[found]:
                    homes.put(np.array([lost]), [int(homes.home[found])])
