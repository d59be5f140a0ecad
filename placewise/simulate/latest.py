"""What was worked out last for a problem: a placer that fits memory is judged with the same devices."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

T = TypeVar("T")


class Latest(Generic[T]):
    """The last value for each problem, found again for a placement of the same devices.

    Placements with calls, an order or replicas of their own are not kept. Nobody may write to a value.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Problem, tuple[Ints, T]] = WeakKeyDictionary()

    def find(self, problem: Problem, placement: Placement) -> T | None:
        """The value kept for these devices, if any."""
        if not _is_plain(placement):
            return None
        device, value = self._kept.get(problem, (None, None))
        return value if device is not None and np.array_equal(device, placement.device) else None

    def keep(self, problem: Problem, placement: Placement, value: T) -> None:
        """Keep a value in place of the one before."""
        if _is_plain(placement):
            self._kept[problem] = placement.device.copy(), value


def _is_plain(placement: Placement) -> bool:
    return placement.call is None and placement.order is None and placement.replicas is None
