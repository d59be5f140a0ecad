"""critical_path: the longest path on one device, everything else where it finishes first.

CPOP of Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
computing", IEEE TPDS 13 (2002), section 5. Of the ready ops the one on the longest path is next: upward rank plus
downward rank, at mean costs. The ops of the critical path go to the device that runs them all in the least time; one
that may not run some of them comes after all that may. What the paper does not know is kept besides: where
that device has no room for the group of an op of the path, or may not run it, the op goes where it finishes first;
room, groups and links are as in `heft`.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import NO_HINTS, Budget, Evaluate, Hints, OnProgress, PlacerInfo, Stopwatch, ignore
from placewise.placers.heuristic.insertion import inserted
from placewise.placers.heuristic.lists import ListOptions, Schedule, listed
from placewise.simulate.arrays import arrays_of
from placewise.simulate.kernels import kernel
from placewise.simulate.ranks import downward_ranks, mean_transfer_seconds, upward_ranks


class CriticalPathPlacer:
    """Near-linear; nothing of the longest path is ever sent."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="critical_path",
        summary="list scheduling, the critical path on one device, within memory",
        source="Topcuoglu et al., IEEE TPDS 2002 (CPOP); links as in Sinnen and Sousa, IEEE TPDS 2005",
    )
    Options: ClassVar[type[ListOptions]] = ListOptions

    def __init__(self, options: ListOptions | None = None) -> None:
        self.options = options or ListOptions()

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(
        self,
        problem: Problem,
        budget: Budget,
        *,
        hints: Hints = NO_HINTS,
        evaluate: Evaluate | None = None,
        on_progress: OnProgress = ignore,
    ) -> Proposal:
        """One schedule's placement, or words that say what was tried."""
        return listed(problem, _prepare, self.options.devices, budget, evaluate)


def _prepare(problem: Problem, watch: Stopwatch) -> tuple[Schedule, tuple[str, ...]]:
    a, hop = arrays_of(problem), mean_transfer_seconds(problem)
    up = upward_ranks(problem, a)
    wanted = np.full(problem.n_ops, -1, np.int32)
    path = _longest_path(a, hop, up)
    if len(path):
        able = problem.allowed[path]
        seconds = np.where(able, problem.costs.op_seconds[path], 0.0).sum(axis=0)
        wanted[path] = min(range(problem.n_devices), key=lambda d: (-able[:, d].sum(), seconds[d], d))
    return partial(inserted, problem, up + downward_ranks(problem, a), wanted), ()


@kernel
def _longest_path(a, hop, up):
    """The ops of the longest path by upward ranks [n_ops], first to last."""
    path = np.empty(len(up), np.int32)
    n, op = 0, (np.argmax(up) if len(up) else -1)
    while op >= 0:
        path[n] = op
        n += 1
        best, following = -1.0, -1
        for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
            for row in range(a.consumer_offsets[tensor], a.consumer_offsets[tensor + 1]):
                reader = a.consumers[row]
                if hop[tensor] + up[reader] > best:
                    best, following = hop[tensor] + up[reader], reader
        op = following
    return path[:n]
