"""heft: ops by priority, each where it finishes first, in the first gap that is long enough.

HEFT and CPOP of Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
computing", IEEE TPDS 13 (2002), sections 4 and 5. HEFT takes the ready op with the highest upward rank. CPOP takes the
one with the highest upward plus downward rank, and sends the ops of the critical path to the device that runs them all
in the least time; a device that may not run some of them comes after all that may. Ranks are taken at mean costs.

The following is added to the paper. A device without room for an op's colocation group is skipped, and the group
follows its first op. An op of the critical path that its device cannot take goes where it finishes first. Transfers
share links, and take the first gap on theirs. Devices with several streams have a row of gaps for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext, Stopwatch
from placewise.placers.list_scheduling.list_common import (
    ListOptions,
    Schedule,
    build_list_arguments,
    schedule_within_memory,
)
from placewise.simulate.judge.ranks import downward_ranks, mean_transfer_seconds, upward_ranks
from placewise.simulate.problem_arrays import ProblemArrays, arrays_of

Priority = Literal["upward_rank", "critical_path"]

_INFO = {
    "upward_rank": PlacerInfo(
        name="heft",
        summary="list scheduling by upward rank with insertion, within memory",
        source="Topcuoglu et al., IEEE TPDS 2002 (HEFT); links as in Sinnen and Sousa, IEEE TPDS 2005",
    ),
    "critical_path": PlacerInfo(
        name="critical_path",
        summary="list scheduling, the critical path on one device, within memory",
        source="Topcuoglu et al., IEEE TPDS 2002 (CPOP); links as in Sinnen and Sousa, IEEE TPDS 2005",
    ),
}


@dataclass(frozen=True, slots=True)
class HeftOptions(ListOptions):
    """`priority`: "upward_rank" is HEFT; "critical_path" is CPOP, the placer `critical_path`."""

    priority: Priority = "upward_rank"


class HeftPlacer:
    """Near-linear. Looks ahead along the longest path, where `etf` follows the clock."""

    Options: ClassVar[type[HeftOptions]] = HeftOptions

    def __init__(self, options: HeftOptions | None = None) -> None:
        self.options = options or HeftOptions()
        self.info = _INFO[self.options.priority]

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The placement of one schedule, or a note of what was tried."""
        prepare = _prepare_heft if self.options.priority == "upward_rank" else _prepare_critical_path
        return schedule_within_memory(search, prepare, self.options.devices)


def _prepare_heft(problem: Problem, watch: Stopwatch) -> tuple[Schedule, tuple[str, ...]]:
    anywhere = np.full(problem.n_ops, -1, np.int32)
    return _schedule_by_insertion(problem, upward_ranks(problem), anywhere, watch), ()


def _prepare_critical_path(problem: Problem, watch: Stopwatch) -> tuple[Schedule, tuple[str, ...]]:
    a, hop = arrays_of(problem), mean_transfer_seconds(problem)
    up = upward_ranks(problem)
    preferred = np.full(problem.n_ops, -1, np.int32)
    path = _find_longest_path(a, hop, up)
    if len(path):
        able = problem.allowed[path]
        seconds = np.where(able, problem.costs.op_seconds[path], 0.0).sum(axis=0)
        preferred[path] = min(range(problem.n_devices), key=lambda d: (-able[:, d].sum(), seconds[d], d))
    return _schedule_by_insertion(problem, up + downward_ranks(problem), preferred, watch), ()


def _schedule_by_insertion(problem: Problem, priority: Floats, preferred: Ints, watch: Stopwatch) -> Schedule:
    """The insertion schedule: of the ready ops the one with the highest `priority` [n_ops] is next.

    It goes to its `preferred` device [n_ops] if its group fits there, else (−1, or no room) to where it finishes first.
    """

    def schedule(capacity: Floats, plan: Ints | None) -> tuple[Ints, int]:
        arguments = build_list_arguments(problem, priority, capacity, plan)
        return _native.schedule_by_insertion(*arguments, preferred, watch.last, watch.budget.stop)

    return schedule


def _find_longest_path(a: ProblemArrays, hop: Floats, up: Floats) -> list[int]:
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
