"""What a placement decides besides devices: priorities in `operator`, calls in `subgraph`, replicas in throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, product

import numpy as np

from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Stopwatch
from placewise.simulate import judge_placement
from placewise.simulate.judge import schedule, subgraph
from placewise.simulate.replicas import equal_devices

MAX_OPS = 12
"""Of more ops, neither orders nor calls are listed."""
MAX_ORDERS = 1 << 14
MAX_SCHEDULES, MAX_CALLS, MAX_SHARED = 1 << 18, 1 << 14, 1 << 11
"""The most placements with orders, with calls, and with replicas: each a second or less."""
Decided = tuple[Sequence[Placement], Floats]
"""Placements and their values in seconds."""


def decide(problem: Problem, devices: Ints, watch: Stopwatch) -> Decided | None:
    """Every placement that has one of the rows `devices` [K, n_ops], priced; None if they are too many, or time is up.

    Orders that no schedule can tell apart, and calls that would wait for each other in a circle, are left out.
    """
    objective = problem.objective
    if objective.kind == "throughput":
        return _with_replicas(problem, devices, watch)
    if problem.n_ops > MAX_OPS:
        return None
    decide_more = _with_orders if objective.op_by_op else _with_calls
    return decide_more(problem, devices, watch)


def _with_orders(problem: Problem, devices: Ints, watch: Stopwatch) -> Decided | None:
    """By every order in which the ops may start: that of its starts is a priority that gives the same schedule."""
    most = min(MAX_ORDERS, MAX_SCHEDULES // len(devices))
    orders = list(islice(_list_orders(_reachable(problem)), most + 1))
    if len(orders) > most:
        return None
    values = np.empty((len(orders), len(devices)))
    for row, order in enumerate(orders):
        if watch.out:
            return None
        inputs = schedule.schedule_inputs(problem, order)
        schedule.makespans(inputs, devices, 0, len(devices), values[row])
    return _Ordered(devices, orders), values.ravel()


class _Ordered(Sequence[Placement]):
    """Every row of devices with every order, made when asked for."""

    def __init__(self, devices: Ints, orders: Sequence[Ints]) -> None:
        self._devices, self._orders = devices, orders

    def __len__(self) -> int:
        return len(self._devices) * len(self._orders)

    def __getitem__(self, index: int) -> Placement:  # type: ignore[override]
        order, row = divmod(index, len(self._devices))
        return Placement(self._devices[row], order=self._orders[order])


def _with_calls(problem: Problem, devices: Ints, watch: Stopwatch) -> Decided | None:
    reachable = _reachable(problem)

    @cache
    def calls_of(ops: tuple[int, ...]) -> list[tuple[int, ...]]:
        return list(islice(_list_calls(reachable[np.ix_(ops, ops)]), MAX_CALLS + 1))

    accelerators = np.flatnonzero(~problem.cluster.is_host).tolist()
    placements: list[Placement] = []
    values: list[float] = []
    for device in devices:
        parts = [tuple(np.flatnonzero(device == d).tolist()) for d in accelerators]
        for numbers in product(*(calls_of(ops) for ops in parts)):
            if len(placements) == MAX_CALLS or watch.out:
                return None
            call = np.zeros(len(device), np.int32)
            for ops, number in zip(parts, numbers, strict=True):
                call[list(ops)] = number
            placements.append(Placement(device, call=call))
            values.append(subgraph.timeline(problem, placements[-1].device, placements[-1].call)[0])
    return placements, np.array(values)


def _with_replicas(problem: Problem, devices: Ints, watch: Stopwatch) -> Decided | None:
    kind = equal_devices(problem).tolist()
    placements: list[Placement] = []
    values: list[float] = []
    for device in devices:
        for stage in _list_stages(kind, set(device.tolist()), problem.max_replicas):
            if len(placements) == MAX_SHARED or watch.out:
                return None
            shared = None if stage == list(range(len(kind))) else np.array(stage, np.int32)
            placements.append(Placement(device, replicas=shared))
            values.append(judge_placement(problem, placements[-1]).value)
    return placements, np.array(values)


def _list_stages(kind: Sequence[int], used: set[int], most: int) -> Iterator[list[int]]:
    """Every stage of each device: its own, or, where it runs no ops, also one of an equal device's."""
    choices = [
        [d] if d in used else [d, *(stage for stage in sorted(used) if kind[stage] == kind[d])]
        for d in range(len(kind))
    ]
    for stages in product(*choices):
        if all(stages.count(stage) <= most for stage in used):
            yield list(stages)


def _reachable(problem: Problem) -> Bools:
    """Whether a path leads from one op to another [n_ops, n_ops]."""
    graph = problem.graph
    reachable = np.zeros((graph.n_ops, graph.n_ops), np.bool_)
    for op in range(graph.n_ops):
        makers = graph.tensors.producer[graph.inputs_of(op)]
        for maker in makers[makers >= 0].tolist():
            reachable[:, op] |= reachable[:, maker]
            reachable[maker, op] = True
    return reachable


def _list_orders(reachable: Bools) -> Iterator[Ints]:
    """Every topological order, as the position of each op."""
    position = np.full(len(reachable), -1, np.int32)

    def place(at: int) -> Iterator[Ints]:
        if at == len(position):
            yield position.copy()
            return
        waiting = position < 0
        for op in np.flatnonzero(waiting & ~reachable[waiting].any(axis=0)).tolist():
            position[op] = at
            yield from place(at + 1)
            position[op] = -1

    return place(0)


def _list_calls(reachable: Bools) -> Iterator[tuple[int, ...]]:
    """Every way to number the calls of ops from 0 without gaps, none before a call that it needs."""
    count = len(reachable)
    number = [0] * count

    def choose(left: tuple[int, ...], call: int) -> Iterator[tuple[int, ...]]:
        if not left:
            yield tuple(number)
            return
        for members in range(1, 1 << len(left)):
            chosen = [op for at, op in enumerate(left) if members >> at & 1]
            others = tuple(op for at, op in enumerate(left) if not members >> at & 1)
            if not any(reachable[other, op] for other in others for op in chosen):
                for op in chosen:
                    number[op] = call
                yield from choose(others, call + 1)

    return choose(tuple(range(count)), 0)
