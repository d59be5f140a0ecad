"""What etf and sct share: always the ready op and device that come first, as time goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from placewise import _native
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.list_scheduling.fewer_devices import checked
from placewise.placers.list_scheduling.list_common import list_arguments
from placewise.simulate.judge.ranks import upward_ranks
from placewise.simulate.problem_arrays import arrays_of

By = Literal["finish", "start"]


@dataclass(frozen=True, slots=True)
class PairOptions:
    """`by`: take the pair that finishes first, or, as published, the one that starts first.

    `devices`: only the best so many, as far as ops and memory allow; 0: all. Raises PlacerError.
    """

    by: By = "finish"
    devices: int = 0

    def __post_init__(self) -> None:
        checked(self.devices)
        if self.by not in get_args(By):
            raise PlacerError(
                f"list scheduling cannot go by {self.by!r}", remedy=f"choose from {', '.join(get_args(By))}"
            )


def first_pairs(
    problem: Problem, capacity: Floats, plan: Ints | None, *, by: By, child: Ints | None = None
) -> tuple[Ints, int]:
    """One list schedule within `capacity` [n_devices]: the devices [n_ops] and how many ops have one.

    `child` [n_ops] is the favourite child of each op, −1 for none; without it no device is reserved. See `Schedule`.
    """
    priority, weight = upward_ranks(problem, arrays_of(problem)), 1.0 if by == "finish" else 0.0
    return _native.schedule_earliest(*list_arguments(problem, priority, capacity, plan), child, weight)
