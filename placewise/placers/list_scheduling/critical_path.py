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

from placewise.model.columns import Floats
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import (
    PlacerInfo,
    SearchContext,
    Stopwatch,
)
from placewise.placers.list_scheduling.insertion_schedule import inserted
from placewise.placers.list_scheduling.list_common import ListOptions, Schedule, schedule_within_memory
from placewise.simulate.judge.ranks import downward_ranks, mean_transfer_seconds, upward_ranks
from placewise.simulate.problem_arrays import ProblemArrays, arrays_of


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

    def propose(self, search: SearchContext) -> Proposal:
        """One schedule's placement, or words that say what was tried."""
        return schedule_within_memory(search, _prepare, self.options.devices)


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


def _longest_path(a: ProblemArrays, hop: Floats, up: Floats) -> list[int]:
    """The ops of the longest path by upward ranks [n_ops], first to last."""
    if not len(up):
        return []
    rows = a.consumer_offsets[a.out_offsets]
    first, lengths = rows[:-1], np.diff(rows)
    length = hop[a.consumed] + up[a.consumers]
    longest = np.repeat(np.maximum.reduceat(length, first[lengths > 0]), lengths[lengths > 0])
    best = rows[0] + np.flatnonzero(length[rows[0] :] == longest)
    following = np.full(len(up), -1, np.int32)
    # Of several readers the first is kept: it is written last.
    following[a.producer[a.consumed[best]][::-1]] = a.consumers[best][::-1]
    path, readers, op = list[int](), following.tolist(), int(np.argmax(up))
    while op >= 0:
        path.append(op)
        op = readers[op]
    return path
