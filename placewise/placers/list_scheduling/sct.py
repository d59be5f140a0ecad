"""sct: list scheduling in which devices wait for favourite children, within memory.

m-SCT of Jeon et al., "Baechi: fast device placement of machine learning graphs", SoCC 2020, section 3.3, after Hanen
and Munier, "An approximation algorithm for scheduling dependent tasks on m processors with small communication delays",
ETFA 1995. A linear program names at most one favourite child per op (`favourites`). Then ops are scheduled as by `etf`,
but a device is reserved for the favourite child of its last op as long as that may still come: other ops
count there from when they are urgent, that is, when they could start on any device. A child that does not fit any more,
or that its colocation group draws elsewhere, releases the device.

What differs: as in `etf`, the default is the pair that finishes first; devices of several streams are never reserved;
and where the program is too large for its time, favourites are matched greedily, which a note tells.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import (
    PlacerInfo,
    SearchContext,
    Stopwatch,
)
from placewise.placers.list_scheduling.favourite_child import favourite_children
from placewise.placers.list_scheduling.list_common import Schedule, schedule_within_memory
from placewise.placers.list_scheduling.ready_queue import PairOptions, first_pairs


class SctPlacer:
    """Near-linear but for the linear program, which is only for graphs of a few thousand ops."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="sct",
        summary="list scheduling with favourite children by linear programming, within memory",
        source="Jeon et al., Baechi, SoCC 2020 (m-SCT); Hanen and Munier, ETFA 1995",
    )
    Options: ClassVar[type[PairOptions]] = PairOptions

    def __init__(self, options: PairOptions | None = None) -> None:
        self.options = options or PairOptions()

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """One schedule's placement, or words that say what was tried."""
        return schedule_within_memory(search, self._prepare, self.options.devices)

    def _prepare(self, problem: Problem, watch: Stopwatch) -> tuple[Schedule, tuple[str, ...]]:
        child, note = favourite_children(problem, watch)
        return partial(first_pairs, problem, by=self.options.by, child=child), (note,) if note else ()
