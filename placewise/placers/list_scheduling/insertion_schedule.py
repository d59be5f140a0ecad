"""What heft and critical_path share: ops by priority, each where it finishes first, in the first gap that fits."""

from __future__ import annotations

from placewise import _native
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.list_scheduling.list_common import list_arguments


def inserted(problem: Problem, priority: Floats, wanted: Ints, capacity: Floats, plan: Ints | None) -> tuple[Ints, int]:
    """One insertion schedule within `capacity` [n_devices]: the devices [n_ops] and how many ops have one.

    Of ready ops the one of the highest `priority` [n_ops] is next; it goes to the device `wanted` [n_ops] if
    its group may, else (−1, or no room) to where it finishes first. See `Schedule`.
    """
    return _native.schedule_by_insertion(*list_arguments(problem, priority, capacity, plan), wanted)
