"""Windows of a placement: which groups of ops to free, and the program in which everything else stays as it is.

A window is a stretch of time, a connected region, or what two devices that meet have. Freed groups may go to any
device that they or their neighbours are on, to the hosts, and to one more; in `subgraph` execution to any of these
devices' calls, and to a call more at one place of each. Other groups keep device and call, and in `operator`
execution the order on their device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.schedule_models.assignment import Groups
from placewise.placers.shared.schedule_models.operator_model import QueueProgram
from placewise.placers.shared.schedule_models.subgraph_model import CallProgram, Layout
from placewise.placers.shared.schedule_models.time_units import Units
from placewise.simulate import judge_placement
from placewise.simulate.judge.subgraph import cut_calls
from placewise.simulate.problem_arrays import arrays_of

KINDS = ("time", "region", "pair")


@dataclass(frozen=True, slots=True, eq=False)
class Incumbent:
    """A placement, its calls without gaps, and its timeline: columns [n_ops]; `home` [n_groups]."""

    device: Ints
    call: Ints
    home: Ints
    start: Floats
    finish: Floats
    value: float


def incumbent_of(problem: Problem, groups: Groups, placement: Placement) -> Incumbent:
    """What windows are cut from."""
    judgement = judge_placement(problem, placement)
    timeline = judgement.timeline
    assert timeline is not None  # latency always has one where it can run
    call = cut_calls(arrays_of(problem), placement.device) if placement.call is None else placement.call
    dense = np.zeros(problem.n_ops, np.int32)
    for d in np.unique(placement.device).tolist():
        here = placement.device == d
        dense[here] = np.unique(call[here], return_inverse=True)[1]
    home = np.empty(groups.n, np.int32)
    home[groups.of] = placement.device
    return Incumbent(placement.device, dense, home, timeline.start, timeline.finish, judgement.value)


class Neighbours:
    """The groups that share a tensor, as rows."""

    def __init__(self, problem: Problem, groups: Groups) -> None:
        graph = problem.graph
        maker = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
        made = maker >= 0
        self._rows: list[set[int]] = [set() for _ in range(groups.n)]
        for one, other in zip(groups.of[maker[made]].tolist(), groups.of[graph.consumers[made]].tolist(), strict=True):
            if one != other:
                self._rows[one].add(other)
                self._rows[other].add(one)

    def of(self, group: int) -> list[int]:
        return sorted(self._rows[group])

    def around(self, chosen: Bools) -> Bools:
        """`chosen` [n_groups] and the groups next to it."""
        wider = chosen.copy()
        for group in np.flatnonzero(chosen).tolist():
            wider[self.of(group)] = True
        return wider


def choose(
    kind: str, now: Incumbent, groups: Groups, neighbours: Neighbours, size: int, rng: np.random.Generator
) -> Bools:
    """The groups [n_groups] to free, `size` of them or about so many."""
    first, last = np.full(groups.n, np.inf), np.zeros(groups.n)
    np.minimum.at(first, groups.of, now.start)
    np.maximum.at(last, groups.of, now.finish)
    chosen = np.zeros(groups.n, np.bool_)
    if kind == "time":
        moment = rng.uniform(0, now.value)
        away = np.maximum(np.maximum(first - moment, moment - last), 0.0) + rng.uniform(0, 1e-3 * now.value, groups.n)
        chosen[np.argsort(away, kind="stable")[:size]] = True
        return chosen
    seed = int(rng.integers(groups.n))
    if kind == "pair":
        others = sorted({int(now.home[g]) for g in np.flatnonzero(now.home == now.home[seed]).tolist()
                         for g in neighbours.of(g)} - {int(now.home[seed])})  # fmt: skip
        pair = [int(now.home[seed]), *([int(rng.choice(others))] if others else [])]
        members = np.flatnonzero(np.isin(now.home, pair))
        middle = first[seed]
        chosen[members[np.argsort(np.abs(first[members] - middle), kind="stable")[:size]]] = True
        return chosen
    queue = [seed]
    chosen[seed] = True
    while queue and chosen.sum() < size:
        group = queue.pop(int(rng.integers(len(queue))))
        for other in neighbours.of(group):
            if not chosen[other] and chosen.sum() < size:
                chosen[other] = True
                queue.append(other)
    return chosen


def narrowed(
    problem: Problem, groups: Groups, now: Incumbent, free: Bools, neighbours: Neighbours, rng: np.random.Generator
) -> tuple[Groups, list[int]]:
    """The groups with the domains of a window, and the devices that take part."""
    devices = set(now.home[neighbours.around(free)].tolist())
    devices |= set(np.flatnonzero(problem.cluster.is_host).tolist())
    idle = sorted(set(range(problem.n_devices)) - devices)
    devices |= {int(rng.choice(idle))} if idle else set()
    domains = tuple(
        tuple(d for d in domain if d in devices or d == home) if free[g] else (home,)
        for g, (domain, home) in enumerate(zip(groups.domains, now.home.tolist(), strict=True))
    )
    return Groups(groups.of, groups.n, domains, groups.graph), sorted(devices)


def call_window(
    problem: Problem,
    window: Groups,
    devices: list[int],
    now: Incumbent,
    free: Bools,
    units: Units,
    rng: np.random.Generator,
) -> CallProgram:
    """The program of a window in `subgraph` execution."""
    call_device: list[int] = []
    rename: dict[tuple[int, int], int] = {}
    open_calls: dict[int, list[int]] = {}
    for d in range(problem.n_devices):
        if problem.cluster.is_host[d]:
            continue
        here = now.device == d
        count = int(now.call[here].max()) + 1 if here.any() else 0
        spare = int(rng.integers(count + 1)) if d in devices else -1
        for k in range(count + 1):
            if k == spare:
                open_calls.setdefault(d, []).append(len(call_device))
                call_device.append(d)
            if k < count:
                open_calls.setdefault(d, []).append(len(call_device))
                rename[d, k] = len(call_device)
                call_device.append(d)
    ops = []
    for op, group in enumerate(window.of.tolist()):
        d = int(now.device[op])
        if free[group]:
            ops.append(tuple(j for target in window.domains[group] for j in open_calls.get(target, ())))
        else:
            ops.append((rename[d, int(now.call[op])],) if (d, int(now.call[op])) in rename else ())
    layout = Layout(tuple(call_device), tuple(ops))
    return CallProgram(problem, window, layout, units, problem.capacity, int(now.value / units.seconds))


def queue_window(problem: Problem, window: Groups, now: Incumbent, free: Bools, units: Units) -> QueueProgram:
    """The program of a window in `operator` execution."""
    program = QueueProgram(problem, window, units, problem.capacity, int(now.value / units.seconds))
    for d in np.unique(now.device).tolist():
        if problem.cluster.devices[d].streams > 1:
            continue
        stay = np.flatnonzero((now.device == d) & ~free[window.of])
        stay = stay[np.lexsort((stay, now.start[stay]))].tolist()
        for before, after in pairwise(stay):
            program.program.model.add(program.start[after] >= program.end[before])
    program.start_from(now.home, now.start)
    return program
