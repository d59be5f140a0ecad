"""Schedules made chains: list schedulers where stages must be contiguous or convex."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate, Stopwatch, run_placer
from placewise.placers.registry import create
from placewise.placers.shared.partitions.repair_and_select import Finish
from placewise.placers.shared.rules import broken

CHAINED = "the schedule was made a chain of stages"
FILLED = "no chain was found along the schedule, and memory was filled in topological order"


def chained(
    problem: Problem, schedule: Callable[[Floats, Ints | None], tuple[Ints, int]], price: Evaluate, watch: Stopwatch
) -> tuple[Ints | None, str]:
    """A placement [n_ops] that keeps the shape of stages, and what became of the schedule, in words.

    Ops are scheduled freely, without limits of memory if it runs out. What keeps the rules is taken as it is; besides,
    its devices are put in a row, and the line of ops that comes of it is split anew (`cuts.finish`). The best is the
    answer; where none of it keeps the rules, `topo`'s is.
    """
    device, placed = schedule(problem.capacity, None)
    if placed < problem.n_ops:
        device, _ = schedule(np.full(problem.n_devices, np.inf), None)
    finish = Finish(problem, price, watch)
    if not broken(problem, device):
        finish.hear(device, checked=True)
    home = np.empty(problem.n_blocks, np.int32)
    home[problem.block] = device
    finish.offer(home)
    if finish.best is not None:
        return finish.best, "" if np.array_equal(finish.best, device) else CHAINED
    filled = run_placer(create("topo"), problem, watch.rest())
    if filled.placement is not None:
        return filled.placement.device, FILLED
    return None, f"neither the schedule made a chain nor a fill in topological order will do: {finish.faults[0]}"
