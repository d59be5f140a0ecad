"""A training step by events: a plain simulator of tasks, links and wires with a clock, without a fixed program."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

Task = tuple[int, int, int]
"""Kind (0 forward, 1 backward, 2 gradients of weights), stage, micro-batch."""


def makespan(
    orders: Sequence[Sequence[Task]],
    seconds: Mapping[tuple[int, int], float],
    links: Mapping[tuple[tuple[int, int], tuple[int, int]], tuple[object, float]],
    n_stages: int,
) -> float:
    """When the last task ends, if every device works through its order as soon as it can.

    `seconds` by kind and stage. `links` by the kinds and stages at both ends: the name of the link and the seconds of
    one transfer; a link serves those first that ask first.
    """
    at, busy, now = [0] * len(orders), [False] * len(orders), 0.0
    done: set[Task] = set()
    arrived: set[tuple[tuple[int, int], Task]] = set()
    queues: dict[object, list[tuple[tuple[int, int], Task, float]]] = {}
    sending: set[object] = set()
    events: list[tuple[float, int, str, object]] = []
    number = 0

    def push(time: float, what: str, payload: object) -> None:
        nonlocal number
        heapq.heappush(events, (time, number, what, payload))
        number += 1

    def ready(task: Task) -> bool:
        kind, stage, i = task
        needs = {0: [(0, stage - 1, i)] if stage else [], 2: [(1, stage, i)]}.get(
            kind, [(0, stage, i), *([(1, stage + 1, i)] if stage < n_stages - 1 else [])]
        )
        sources = [source for source, target in links if target == (kind, stage)]
        return all(need in done for need in needs) and all((source, task) in arrived for source in sources)

    def start_what_can() -> None:
        for device, order in enumerate(orders):
            if not busy[device] and at[device] < len(order) and ready(order[at[device]]):
                task = order[at[device]]
                busy[device] = True
                push(now + seconds[task[:2]], "task", (device, task))
        for name, waiting in queues.items():
            if waiting and name not in sending:
                source, target, length = waiting.pop(0)
                sending.add(name)
                push(now + length, "hop", (name, source, target))

    start_what_can()
    while events:
        now, _, what, payload = heapq.heappop(events)
        if what == "task":
            device, task = payload  # type: ignore[misc]
            busy[device] = False
            at[device] += 1
            done.add(task)
            for (source, target), (name, length) in links.items():
                if source == task[:2]:
                    queues.setdefault(name, []).append((source, (*target, task[2]), length))
        else:
            name, source, target = payload  # type: ignore[misc]
            sending.discard(name)
            arrived.add((source, target))
        start_what_can()
    assert all(place == len(order) for place, order in zip(at, orders, strict=True)), "the orders wait for each other"
    return now
