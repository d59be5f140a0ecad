"""Wires that carry one item at a time, against a clock that looks at every moment."""

from __future__ import annotations

import numpy as np
import pytest

from placewise.simulate.step.orders import SCHEDULES, device_orders
from placewise.simulate.step.program import make_program, serve_wires

Rows = list[tuple[int, ...]]


def served_by_the_clock(
    duration: list[float], wire: list[int], before: Rows, rank: Rows
) -> tuple[list[float], list[float]]:
    """Starts and ends, moment by moment: what can start at once does, then each free wire takes one item."""
    n, now = len(duration), 0.0
    starts, ends, since = [-1.0] * n, [-1.0] * n, [-1.0] * n
    while min(starts, default=0.0) < 0:
        moved = True
        while moved:
            moved = False
            for item in range(n):
                ready = all(starts[other] >= 0 and ends[other] <= now for other in before[item])
                since[item] = now if ready and since[item] < 0 else since[item]
                if ready and wire[item] < 0 and starts[item] < 0:
                    starts[item], ends[item], moved = now, now + duration[item], True
        for own in sorted(set(wire) - {-1}):
            there = [item for item in range(n) if wire[item] == own]
            busy = any(starts[item] >= 0 and ends[item] > now for item in there)
            waiting = [item for item in there if since[item] >= 0 and starts[item] < 0]
            if waiting and not busy:
                item = min(waiting, key=lambda item: (since[item], rank[item], item))
                starts[item], ends[item] = now, now + duration[item]
                busy = True
        later = [ends[item] for item in range(n) if starts[item] >= 0 and ends[item] > now]
        now = min(later, default=now)
    return starts, ends


def test_wires_serve_what_is_ready_first() -> None:
    """Items on two wires and beside them, whole seconds and many ties, each after some of those before it."""
    waited = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 14))
        wire = rng.integers(-1, 2, n).tolist()
        # An item without a duration ends at its moment; on a wire it would let the next one pass in the same moment.
        duration = [float(rng.integers(0 if own < 0 else 1, 4)) for own in wire]
        before = [tuple(np.flatnonzero(rng.random(item) < 0.2).tolist()) for item in range(n)]
        rank = [tuple(rng.integers(0, 3, 2).tolist()) for _ in range(n)]
        starts, ends = serve_wires(duration, wire, before, rank)
        assert (starts.tolist(), ends.tolist()) == served_by_the_clock(duration, wire, before, rank), seed
        ready = [max((ends[other] for other in waits), default=0.0) for waits in before]
        waited += bool((starts > np.array(ready)).any())
    assert waited > 20
    assert [times.tolist() for times in serve_wires([], [], [], [])] == [[], []]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_orders_of_a_schedule_make_its_program(schedule: str) -> None:
    """Given as orders of their own, those of a schedule give the same tasks, places and waits."""
    orders = device_orders(schedule, 2, 4)
    plain, given = make_program(schedule, 2, 4, ()), make_program(schedule, 2, 4, (), orders)
    assert (given.type.tolist(), given.microbatch.tolist()) == (plain.type.tolist(), plain.microbatch.tolist())
    assert (given.resource, given.before, given.links) == (plain.resource, plain.before, plain.links)
