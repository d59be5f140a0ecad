"""heft: ops by upward rank, each where it finishes first, in the first gap that is long enough.

Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing",
IEEE TPDS 13 (2002), section 4. Ranks are taken at mean costs; an op may go before others on its device where it fits
between them. What the paper does not know is kept besides: a device that has no room for an op's
colocation group is not looked at, the group follows its first op, and transfers share links (there, they share
nothing) and take the first gap on theirs. Devices of several streams have a row of gaps for each.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import (
    PlacerInfo,
    SearchContext,
    Stopwatch,
)
from placewise.placers.list_scheduling.insertion_schedule import inserted
from placewise.placers.list_scheduling.list_common import ListOptions, Schedule, schedule_within_memory
from placewise.simulate.judge.ranks import upward_ranks
from placewise.simulate.problem_arrays import arrays_of


class HeftPlacer:
    """Near-linear; it looks ahead along the longest path, where etf goes by the clock."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="heft",
        summary="list scheduling by upward rank with insertion, within memory",
        source="Topcuoglu et al., IEEE TPDS 2002 (HEFT); links as in Sinnen and Sousa, IEEE TPDS 2005",
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
    anywhere = np.full(problem.n_ops, -1, np.int32)
    return partial(inserted, problem, upward_ranks(problem, arrays_of(problem)), anywhere), ()
