"""etf: list scheduling, earliest task first, within the memory of every device.

Hwang, Chow, Anger and Lee, "Scheduling precedence graphs in systems with interprocessor communication times",
SIAM J. Computing 18 (1989); with memory as m-ETF in Jeon et al., "Baechi: fast device placement of machine
learning graphs", SoCC 2020. Of all ready ops and devices the pair that starts first is taken, ties by upward rank.
A colocation group follows its first op and takes its memory at once. Two things differ from the papers. The
default is the pair that *finishes* first: on unequal devices, earliest start sends work to whatever slow
device is idle. And transfers wait for each other on their link, as in the judge.

With `favourites` this is m-SCT of the same paper, section 3.3, after Hanen and Munier, "An approximation algorithm for
scheduling dependent tasks on m processors with small communication delays", ETFA 1995. A linear program names at most
one favourite child per op (`favourite_child`). A device is then reserved for the favourite child of its last op as long
as that child may still come; another op may start there only once it is urgent, that is, once it could start on any
device. A child that no longer fits, or that its colocation group draws elsewhere, releases the device. Devices with
several streams are never reserved. If the linear program is too large for its time, favourites are matched greedily,
and a note says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

from placewise import _native
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext, Stopwatch
from placewise.placers.list_scheduling.favourite_child import find_favourite_children
from placewise.placers.list_scheduling.list_common import (
    ListOptions,
    Schedule,
    build_list_arguments,
    schedule_within_memory,
)
from placewise.simulate.judge.ranks import upward_ranks

By = Literal["finish", "start"]

_ETF = PlacerInfo(
    name="etf",
    summary="list scheduling, earliest task first, within memory",
    source="Jeon et al., Baechi, SoCC 2020 (m-ETF); Hwang et al., SIAM J. Computing 1989",
)
_SCT = PlacerInfo(
    name="sct",
    summary="list scheduling with favourite children by linear programming, within memory",
    source="Jeon et al., Baechi, SoCC 2020 (m-SCT); Hanen and Munier, ETFA 1995",
)


@dataclass(frozen=True, slots=True)
class EtfOptions(ListOptions):
    """`by`: take the pair that finishes first or, as published, the one that starts first.

    `favourites`: reserve devices for favourite children, the placer `sct`. Raises PlacerError.
    """

    by: By = "finish"
    favourites: bool = False

    def __post_init__(self) -> None:
        ListOptions.__post_init__(self)
        if self.by not in get_args(By):
            choices = ", ".join(get_args(By))
            raise PlacerError(f"list scheduling cannot go by {self.by!r}", remedy=f"choose from {choices}")


class EtfPlacer:
    """Near-linear, and often hard to beat for latency. Only the program for favourites needs small graphs."""

    Options: ClassVar[type[EtfOptions]] = EtfOptions

    def __init__(self, options: EtfOptions | None = None) -> None:
        self.options = options or EtfOptions()
        self.info = _SCT if self.options.favourites else _ETF

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The placement of one schedule, or a note of what was tried."""
        return schedule_within_memory(search, self._prepare, self.options.devices)

    def _prepare(self, problem: Problem, watch: Stopwatch) -> tuple[Schedule, tuple[str, ...]]:
        child, note = find_favourite_children(problem, watch) if self.options.favourites else (None, "")
        schedule = partial(schedule_earliest, problem, watch=watch, by=self.options.by, child=child)
        return schedule, (note,) if note else ()


def schedule_earliest(
    problem: Problem, capacity: Floats, plan: Ints | None, *, watch: Stopwatch, by: By, child: Ints | None = None
) -> tuple[Ints, int]:
    """One list schedule within `capacity` [n_devices]: the devices [n_ops] and how many ops have one. See `Schedule`.

    `child` [n_ops] is the favourite child of each op, −1 for none. Without it no device is reserved.
    """
    priority, weight = upward_ranks(problem), 1.0 if by == "finish" else 0.0
    arguments = build_list_arguments(problem, priority, capacity, plan)
    return _native.schedule_earliest(*arguments, child, weight, watch.last, watch.budget.stop)
