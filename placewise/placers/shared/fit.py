"""Fitting placements whose memory is only known afterwards: propose, measure, reduce the capacity, propose again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.repair import repair
from placewise.simulate.judge.memory import device_memory

ROUNDS = 10


def shrink_capacity(problem: Problem, capacity: Floats, resident: Floats, peak: Floats) -> Floats:
    """The capacity [n_devices] less the bytes by which peaks exceed memory; the same on interchangeable devices."""
    kind, smaller = interchangeable(problem), capacity.copy()
    for d in np.flatnonzero(peak > problem.capacity).tolist():
        same, room = kind == kind[d], resident[d] - (peak[d] - problem.capacity[d])
        smaller[same] = np.maximum(np.minimum(smaller[same], room), 0.0)
    return smaller


def fit_memory(problem: Problem, propose: Callable[[Floats], Ints | None]) -> tuple[Ints | None, bool]:
    """A placement [n_ops] whose memory peaks fit, and whether capacities had to shrink for it.

    `propose(capacity)` returns a placement whose resident bytes stay within `capacity` [n_devices], or None. If live
    activations then exceed a device's memory, the capacity of all interchangeable devices shrinks by the excess. After
    `ROUNDS` tries, or once nothing is proposed any more, the blocks of the last placement are moved one by one
    (`repair`), unless stages have a shape to keep.
    """
    if not problem.n_ops:
        return np.zeros(0, np.int32), False
    capacity = problem.capacity
    last: Ints | None = None
    for round_ in range(ROUNDS):
        device = propose(capacity)
        if device is None:
            break
        last = device
        resident, peak = device_memory(problem, Placement(device))
        if (peak <= problem.capacity).all():
            return device, round_ > 0
        capacity = shrink_capacity(problem, capacity, resident, peak)
    if last is None:
        return None, False
    return None if problem.constraints.shaped else repair(problem, last, measured=False), True
