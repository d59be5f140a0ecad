"""etf: list scheduling, earliest task first, within the memory of every device.

Hwang, Chow, Anger and Lee, "Scheduling precedence graphs in systems with interprocessor communication times",
SIAM J. Computing 18 (1989); with memory as m-ETF in Jeon et al., "Baechi: fast device placement of machine
learning graphs", SoCC 2020. Of all ready ops and devices the pair that starts first is taken, by upward rank
if several do; a colocation group follows its first op and takes its memory at once. Two things differ. The
default is the pair that *finishes* first: on unequal devices, earliest start sends work to whatever slow
device is idle. And transfers wait for each other on their link, as in the judge.
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
from placewise.placers.list_scheduling.list_common import Schedule, schedule_within_memory
from placewise.placers.list_scheduling.ready_queue import PairOptions, first_pairs


class EtfPlacer:
    """Near-linear, and often hard to beat for latency; made a chain where stages must be one."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="etf",
        summary="list scheduling, earliest task first, within memory",
        source="Jeon et al., Baechi, SoCC 2020 (m-ETF); Hwang et al., SIAM J. Computing 1989",
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
        return partial(first_pairs, problem, by=self.options.by), ()
