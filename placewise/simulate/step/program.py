"""What happens in a step, item by item, in an order in which each comes after those that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.simulate.step.orders import (
    Order,
    Task,
    count_stages,
    device_of_stage,
    global_order,
    join_orders,
    tasks_before,
)
from placewise.simulate.step.stage_costs import KINDS, NOWHERE, Hop


@dataclass(frozen=True, slots=True, eq=False)
class StepProgram:
    """Tasks and hops of all micro-batches in an order that can be run through once.

    `type` [n_items]: that of the task, or 3 * n_stages plus the hop; `microbatch` [n_items]; `resource` of each item:
    a device by its place along the pipeline, or a number for each link in `links`, from the number of devices on;
    `before` are the items that it waits for besides the last one of its resource.
    """

    type: Ints
    microbatch: Ints
    resource: list[int]
    before: list[tuple[int, ...]]
    links: tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def make_program(
    schedule: str, n_devices: int, microbatches: int, hops: tuple[Hop, ...], orders: tuple[Order, ...] = ()
) -> StepProgram:
    """The program of a schedule with these hops; `orders` are what the devices do, where not as the schedule has it."""
    count = max((task.stage + 1 for own in orders for task in own), default=count_stages(schedule, n_devices))
    order = join_orders(orders, count - 1) if orders else global_order(schedule, n_devices, microbatches)
    places = [device_of_stage(schedule, s, n_devices) for s in range(count)]
    links = tuple(dict.fromkeys(hop.link for hop in hops))
    number = {link: n_devices + k for k, link in enumerate(links)}
    needed = hops_by_reader(hops)
    sent: dict[int, list[int]] = {}
    for h, hop in enumerate(hops):
        if not hop.by_receiver:
            sent.setdefault(hop.source, []).append(h)
    types: list[int] = []
    microbatch: list[int] = []
    resource: list[int] = []
    before: list[tuple[int, ...]] = []
    at: dict[Task, int] = {}
    moved: dict[tuple[int, int], int] = {}

    def add(type_: int, i: int, runs_on: int, after: tuple[int, ...]) -> int:
        types.append(type_)
        microbatch.append(i)
        resource.append(runs_on)
        before.append(after)
        return len(types) - 1

    for task in order:
        own = task.kind * count + task.stage
        waits = [at[other] for other in tasks_before(task, count - 1) if places[task.stage] != places[other.stage]]
        for h in needed.get(own, ()):
            hop = hops[h]
            if hop.by_receiver:
                source = _source(hop, moved, at, task.microbatch, count)
                moved[h, task.microbatch] = add(KINDS * count + h, task.microbatch, number[hop.link], source)
            waits.append(moved[h, task.microbatch])
        at[task] = add(own, task.microbatch, places[task.stage], tuple(waits))
        for h in sent.get(own, ()):
            moved[h, task.microbatch] = add(KINDS * count + h, task.microbatch, number[hops[h].link], (at[task],))
    return StepProgram(frozen(types, np.int32), frozen(microbatch, np.int32), resource, before, links)


def hops_by_reader(hops: Sequence[Hop]) -> dict[int, list[int]]:
    """The numbers of the hops that each type of task waits for."""
    needed: dict[int, list[int]] = {}
    for h, hop in enumerate(hops):
        for reader in hop.readers:
            needed.setdefault(reader, []).append(h)
    return needed


def _source(
    hop: Hop, moved: dict[tuple[int, int], int], at: dict[Task, int], microbatch: int, count: int
) -> tuple[int, ...]:
    if hop.after != NOWHERE:
        return (moved[hop.after, microbatch],)
    if hop.source == NOWHERE:
        return ()
    return (at[Task(hop.source // count, hop.source % count, microbatch)],)


def run_through(duration: list[float], resource: list[int], before: list[tuple[int, ...]]) -> tuple[Floats, Floats]:
    """Starts and ends [n_items]: each item starts when its resource and all that it waits for are done."""
    free = [0.0] * (max(resource, default=-1) + 1)
    starts, ends = [0.0] * len(duration), [0.0] * len(duration)
    for item, seconds in enumerate(duration):
        own = resource[item]
        start = free[own]
        for other in before[item]:
            if ends[other] > start:
                start = ends[other]
        starts[item] = start
        ends[item] = free[own] = start + seconds
    return np.array(starts), np.array(ends)


def serve_wires(
    duration: list[float], wire: list[int], before: list[tuple[int, ...]], rank: list[tuple[int, ...]]
) -> tuple[Floats, Floats]:
    """Starts and ends [n_items] where each wire carries one item at a time, the one first that is ready first.

    `wire` [n_items] is −1 for an item that starts as soon as all items `before` it are done. Of those that are ready at
    the same moment, a wire takes the least `rank`, and it decides when everything else of that moment has ended.
    """
    followers: list[list[int]] = [[] for _ in duration]
    for item, waits in enumerate(before):
        for other in waits:
            followers[other].append(item)
    missing = [len(waits) for waits in before]
    starts, ends = [0.0] * len(duration), [0.0] * len(duration)
    lines: list[list[tuple[float, tuple[int, ...], int]]] = [[] for _ in range(max(wire, default=-1) + 1)]
    free = [True] * len(lines)
    events: list[tuple[float, int]] = []

    def start(item: int, now: float) -> None:
        starts[item], ends[item] = now, now + duration[item]
        heappush(events, (ends[item], item))

    now, left, ready = 0.0, len(duration), [item for item, count in enumerate(missing) if not count]
    while left:
        for item in ready:
            if wire[item] < 0:
                start(item, now)
            else:
                heappush(lines[wire[item]], (now, rank[item], item))
        ready = []
        if events and events[0][0] <= now:
            _, done = heappop(events)
            left -= 1
            if wire[done] >= 0:
                free[wire[done]] = True
            for item in followers[done]:
                missing[item] -= 1
                if not missing[item]:
                    ready.append(item)
            continue
        for own, line in enumerate(lines):
            if line and free[own]:
                free[own] = False
                start(heappop(line)[-1], now)
        now = events[0][0]
    return np.array(starts), np.array(ends)
