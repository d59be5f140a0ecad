"""Windows for latency: which groups of ops to free, and the model in which everything else stays as it is.

A window is a stretch of time, a connected region, or a part of two devices that exchange tensors. Freed groups may move
to any device that they or their neighbours are on, to the hosts, and to one more device; in `subgraph` execution to any
call of these devices, and to one new call on each. Other groups keep their device and call, and in `operator` execution
their order on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from placewise.model.columns import Bools, Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.large_neighbourhood.subproblem import neighbours_of
from placewise.placers.shared.schedule_models.assignment import OpGroups
from placewise.placers.shared.schedule_models.model_builder import TimeScale
from placewise.placers.shared.schedule_models.operator_model import OperatorModel
from placewise.placers.shared.schedule_models.subgraph_model import CallLayout, SubgraphModel
from placewise.simulate import judge_placement
from placewise.simulate.judge.subgraph import cut_calls

KINDS = ("time", "region", "pair")


@dataclass(frozen=True, slots=True, eq=False)
class WindowState:
    """A placement, its calls without gaps, and its timeline: columns [n_ops]; `assignment` [n_groups] has devices."""

    device: Ints
    call: Ints
    assignment: Ints
    start: Floats
    finish: Floats
    value: float


def window_state(problem: Problem, groups: OpGroups, placement: Placement) -> WindowState:
    """The state from which windows are cut."""
    judgement = judge_placement(problem, placement)
    timeline = judgement.timeline
    assert timeline is not None  # latency always has one where it can run
    call = cut_calls(problem, placement.device) if placement.call is None else placement.call
    dense = np.zeros(problem.n_ops, np.int32)
    for d in np.unique(placement.device).tolist():
        here = placement.device == d
        dense[here] = np.unique(call[here], return_inverse=True)[1]
    assignment = np.empty(groups.n, np.int32)
    assignment[groups.of] = placement.device
    return WindowState(placement.device, dense, assignment, timeline.start, timeline.finish, judgement.value)


class GroupNeighbours:
    """The groups that share a tensor with each group."""

    def __init__(self, problem: Problem, groups: OpGroups) -> None:
        self._offsets, self._rows = neighbours_of(problem, groups.of, groups.n)

    def of(self, group: int) -> list[int]:
        """The neighbours of one group, ascending."""
        row: list[int] = self._rows[self._offsets[group] : self._offsets[group + 1]].tolist()
        return row

    def around(self, chosen: Bools) -> Bools:
        """`chosen` [n_groups] and their neighbours."""
        wider = chosen.copy()
        for group in np.flatnonzero(chosen).tolist():
            wider[self.of(group)] = True
        return wider


def choose_groups(
    kind: str, now: WindowState, groups: OpGroups, neighbours: GroupNeighbours, size: int, rng: np.random.Generator
) -> Bools:
    """A mask [n_groups] of about `size` groups to free."""
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
        others = sorted({int(now.assignment[g]) for g in np.flatnonzero(now.assignment == now.assignment[seed]).tolist()
                         for g in neighbours.of(g)} - {int(now.assignment[seed])})  # fmt: skip
        pair = [int(now.assignment[seed]), *([int(rng.choice(others))] if others else [])]
        members = np.flatnonzero(np.isin(now.assignment, pair))
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


def narrow_domains(
    problem: Problem,
    groups: OpGroups,
    now: WindowState,
    free: Bools,
    neighbours: GroupNeighbours,
    rng: np.random.Generator,
) -> tuple[OpGroups, list[int]]:
    """The groups with the domains of a window, and the devices in these."""
    devices = set(now.assignment[neighbours.around(free)].tolist())
    devices |= set(np.flatnonzero(problem.cluster.is_host).tolist())
    idle = sorted(set(range(problem.n_devices)) - devices)
    devices |= {int(rng.choice(idle))} if idle else set()
    domains = tuple(
        tuple(d for d in domain if d in devices or d == device) if free[g] else (device,)
        for g, (domain, device) in enumerate(zip(groups.domains, now.assignment.tolist(), strict=True))
    )
    return OpGroups(groups.of, groups.n, domains, groups.graph), sorted(devices)


def subgraph_window(
    problem: Problem,
    window: OpGroups,
    devices: list[int],
    now: WindowState,
    free: Bools,
    scale: TimeScale,
    rng: np.random.Generator,
) -> SubgraphModel:
    """The model of a window in `subgraph` execution."""
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
    layout = CallLayout(tuple(call_device), tuple(ops))
    return SubgraphModel(problem, window, layout, scale, problem.capacity, int(now.value / scale.seconds))


def operator_window(
    problem: Problem, window: OpGroups, now: WindowState, free: Bools, scale: TimeScale
) -> OperatorModel:
    """The model of a window in `operator` execution."""
    model = OperatorModel(problem, window, scale, problem.capacity, int(now.value / scale.seconds))
    for d in np.unique(now.device).tolist():
        if problem.cluster.devices[d].streams > 1:
            continue
        stay = np.flatnonzero((now.device == d) & ~free[window.of])
        stay = stay[np.lexsort((stay, now.start[stay]))].tolist()
        for before, after in pairwise(stay):
            model.builder.model.add(model.start[after] >= model.end[before])
    model.start_from(now.assignment, now.start)
    return model


def count_in_steps(model: OperatorModel | SubgraphModel, share: float) -> None:
    """Let a model minimize whole steps, each of this share of its horizon."""
    step, builder = max(int(share * model.horizon), 1), model.builder
    steps = builder.number(0, -(-model.horizon // step))
    builder.model.add(step * steps >= model.makespan)
    builder.model.minimize(steps)
