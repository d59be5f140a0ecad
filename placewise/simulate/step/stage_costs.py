"""The stages of a training pipeline in figures: seconds per task, transfers per micro-batch, and bytes.

Tasks have a *type*, ``kind * n_stages + stage``. Where the schedule does not split the backward pass, gradients of
weights belong to the backward task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Bytes8, Floats, Ints, Longs, distinct
from placewise.model.problem import Problem
from placewise.simulate.judge.memory import resident_bytes
from placewise.simulate.problem_arrays import ProblemArrays, arrays_of
from placewise.simulate.step.orders import BACKWARD, FORWARD, SPLITS_BACKWARD, WEIGHT, Order, device_of_stage
from placewise.simulate.step.roles import UPDATE, op_roles

KINDS = 3
NOWHERE = -1
"""Of a hop: no task makes the tensor (a model input), no task reads it (an output), or no hop comes before."""


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A training pipeline: its schedule, its devices and the stage [n_ops] of each op.

    `replicas` are its copies; each names the devices along the pipeline, as many as every other. `orders` are what the
    devices do, where that is not what the schedule says, as with other numbers of stages per device.
    """

    schedule: str
    replicas: tuple[tuple[int, ...], ...]
    stage: Ints
    n_stages: int
    orders: tuple[Order, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices of the first copy, along the pipeline."""
        return self.replicas[0]

    def stage_places(self) -> list[int]:
        """The place along the pipeline [n_stages] of the device that runs each stage."""
        return [device_of_stage(self.schedule, s, len(self.devices)) for s in range(self.n_stages)]

    def stage_devices(self, copy: int = 0) -> Ints:
        """The device [n_stages] of each stage of a copy."""
        return np.array([self.replicas[copy][place] for place in self.stage_places()], np.int32)


class Hop(NamedTuple):
    """Tensors that pass over a link: the types of the tasks before and after, and the link as a pair of locations.

    `after` is the hop before it, where tensors go through host memory; `homes` are the tasks of CPUs that read there
    what goes on to anywhere. What leaves host memory goes in the order in which its receiver needs it, everything else
    in the order in which its sender makes it.
    """

    source: int
    after: int
    target: int
    link: tuple[int, int]
    by_receiver: bool
    homes: tuple[int, ...] = ()

    @property
    def readers(self) -> tuple[int, ...]:
        """The tasks that wait for it."""
        return self.homes if self.target == NOWHERE else (self.target, *self.homes)

    @property
    def end(self) -> int:
        """The task that decides when its turn on the link comes: that which needs it, or that which makes it."""
        return self.target if self.by_receiver else self.source


class Hops(NamedTuple):
    """Hops, and seconds and bytes [n_hops] of each."""

    hops: tuple[Hop, ...]
    seconds: Floats
    bytes: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """A pipeline in figures.

    `seconds` [3 * n_stages] of each type of task, `update` [n_stages] of the optimizer; `passed` are the hops of every
    micro-batch; `gradients` and `renewals` those of tied weights, once per step, whose types are stages. `resident`
    [n_devices] bytes are held throughout, `gradient_bytes` [n_stages] for the gradients of weights; `carried`
    [3 * n_stages] bytes of a micro-batch stay after a task of each type, which needs `alive` [3 * n_stages] at its
    peak. `runs`: every tensor goes to a task that comes later.
    """

    seconds: Floats
    update: Floats
    passed: Hops
    gradients: Hops
    renewals: Hops
    resident: Floats
    gradient_bytes: Floats
    carried: Floats
    alive: Floats
    runs: bool

    @property
    def n_stages(self) -> int:
        return len(self.update)


def cost_stages(problem: Problem, pipeline: Pipeline, copy: int = 0) -> StageCosts:
    """The figures of a pipeline on the devices of one of its copies."""
    a, graph, count, stage = arrays_of(problem), problem.graph, pipeline.n_stages, pipeline.stage
    roles, device = op_roles(problem), pipeline.stage_devices(copy)
    kind = roles if pipeline.schedule in SPLITS_BACKWARD else np.where(roles == WEIGHT, np.int8(BACKWARD), roles)
    seconds = a.op_seconds[np.arange(problem.n_ops), device[stage]]
    works = kind != UPDATE
    task = kind.astype(np.int64) * count + stage
    uses = _list_uses(a, roles, kind, stage)
    size = np.maximum(graph.tensors.bytes, 0).astype(np.float64)
    location = a.location[device]
    made = distinct(uses.tensor[uses.once & (uses.producer_kind != UPDATE)])
    held = sum_by(stage[a.producer[made]], size[made], count)
    carried = alive = np.zeros(KINDS * count)
    if problem.objective.memory == "live":
        carried, alive = _live_bytes(a, uses, kind, stage, task, count, size)
    else:
        held = np.zeros(count)
    updates = uses.producer_kind == UPDATE
    return StageCosts(
        sum_by(task[works], seconds[works], KINDS * count),
        sum_by(stage[~works], seconds[~works], count),
        _pass_hops(a, uses, works, task, location, size),
        _exchange_hops(a, uses, ~updates, location, size),
        _exchange_hops(a, uses, updates, location, size),
        resident_bytes(problem, device[stage]),
        held,
        carried,
        alive,
        _can_run(uses, count),
    )


def block_transfers(costs: StageCosts) -> StageCosts:
    """The figures where both devices of a transfer work for all of it, as where processors copy messages themselves."""
    seconds, hops = costs.seconds.copy(), costs.passed
    for hop, own in zip(hops.hops, hops.seconds.tolist(), strict=True):
        for task in (hop.source, hop.target):
            if task != NOWHERE:
                seconds[task] += own
    return replace(costs, seconds=seconds, passed=hops._replace(seconds=np.zeros(len(hops.hops))))


def sum_by(index: Ints | Longs | list[int], weights: Floats, count: int) -> Floats:
    """The sums [count] of the weights with each index."""
    return np.bincount(index, weights=weights, minlength=count).astype(np.float64)


class _Uses(NamedTuple):
    """Tensors and their readers, a row per pair; kind and stage of the producer are −1 for model inputs.

    `once` is what passes once per step: what the optimizer reads, and parts of the gradients of tied weights.
    """

    tensor: Ints
    producer: Ints
    reader: Ints
    producer_kind: Bytes8
    reader_kind: Bytes8
    producer_stage: Ints
    reader_stage: Ints
    once: Bools


def _list_uses(a: ProblemArrays, roles: Bytes8, kind: Bytes8, stage: Ints) -> _Uses:
    producer, reader = a.producer[a.consumed], a.consumers
    made = producer >= 0
    tied = (roles[producer] == WEIGHT) & (roles[reader] == WEIGHT) & (stage[producer] != stage[reader])
    return _Uses(
        a.consumed, producer, reader,
        np.where(made, kind[producer], np.int8(-1)), kind[reader],
        np.where(made, stage[producer], np.int32(-1)), stage[reader],
        made & ((kind[reader] == UPDATE) | tied),
    )  # fmt: skip


def _ranks(kind: Bytes8, stage: Ints, count: int) -> Longs:
    """A number for each task of a micro-batch that grows along the pipeline, there and back."""
    along = np.where(kind == FORWARD, stage, count - 1 - stage)
    return kind.astype(np.int64) * count + along


def _can_run(uses: _Uses, count: int) -> bool:
    """Whether every tensor of a micro-batch goes to a task that a pipeline can run later."""
    rows = ~uses.once & (uses.producer_kind >= 0) & (uses.producer_kind != UPDATE) & (uses.reader_kind != UPDATE)
    rows &= uses.producer_stage != uses.reader_stage
    before = _ranks(uses.producer_kind[rows], uses.producer_stage[rows], count)
    after = _ranks(uses.reader_kind[rows], uses.reader_stage[rows], count)
    ahead = (uses.producer_kind[rows] == BACKWARD) & (uses.reader_stage[rows] > uses.producer_stage[rows])
    return bool((before < after).all() and not ahead.any())


def _pass_hops(a: ProblemArrays, uses: _Uses, works: Bools, task: Longs, location: Ints, size: Floats) -> Hops:
    """What passes between stages for each micro-batch, model inputs and outputs included.

    A tensor crosses to a location at most once, for the first task there that reads it.
    """
    count, host = len(location), len(a.location)
    source = np.where(uses.producer >= 0, task[uses.producer], NOWHERE)
    start = np.where(uses.producer >= 0, location[uses.producer_stage], host)
    end = location[uses.reader_stage]
    rows = np.flatnonzero(~uses.once & (uses.reader_kind != UPDATE) & (uses.producer_kind != UPDATE) & (start != end))
    key = uses.tensor[rows].astype(np.int64) * (host + 1) + end[rows]
    order = np.lexsort((_ranks(uses.reader_kind[rows], uses.reader_stage[rows], count), key))
    keep = np.ones(len(order), np.bool_)
    keep[1:] = key[order][1:] != key[order][:-1]
    rows = rows[order[keep]]
    tensor, source, target = uses.tensor[rows], source[rows], task[uses.reader[rows]]
    start, end = start[rows], end[rows]
    out = np.flatnonzero(a.output & (a.producer >= 0))
    maker = a.producer[out]
    out, maker = out[works[maker]], maker[works[maker]]
    home = location[task[maker] % count]
    out, maker, home = out[home != host], maker[home != host], home[home != host]
    return _make_hops(
        a, np.concatenate((tensor, out)), np.concatenate((source, task[maker])),
        np.concatenate((target, np.full(len(out), NOWHERE))), np.concatenate((start, home)),
        np.concatenate((end, np.full(len(out), host))), size,
    )  # fmt: skip


def _exchange_hops(a: ProblemArrays, uses: _Uses, chosen: Bools, location: Ints, size: Floats) -> Hops:
    """What passes between stages once per step, among the chosen uses; types are stages."""
    host = len(a.location)
    rows = np.flatnonzero(uses.once & chosen)
    start, end = location[uses.producer_stage[rows]], location[uses.reader_stage[rows]]
    rows, start, end = rows[start != end], start[start != end], end[start != end]
    key = uses.tensor[rows].astype(np.int64) * (host + 1) + end
    first = np.unique(key, return_index=True)[1]
    rows, start, end = rows[first], start[first], end[first]
    tensor, source, target = uses.tensor[rows], uses.producer_stage[rows], uses.reader_stage[rows]
    return _make_hops(a, tensor, source, target, start, end, size)


def _make_hops(
    a: ProblemArrays, tensor: Ints, source: Longs | Ints, target: Longs | Ints, start: Ints, end: Ints, size: Floats
) -> Hops:
    """Hops for tensors that pass from tasks to tasks, whose locations start and end differ."""
    host = len(a.location)
    sums: dict[tuple[int, int, int, int], list[float]] = {}
    ups: dict[int, int] = {}
    homes: dict[int, set[int]] = {}
    seconds = a.transfer
    if a.staged:
        leaves = start != host
        first = np.unique(tensor[leaves], return_index=True)[1]
        columns = (tensor[leaves][first], source[leaves][first], start[leaves][first])
        for one, of, at in zip(*(column.tolist() for column in columns), strict=True):
            _add(sums, (of, NOWHERE, at, host), seconds[one, a.link_class[at, host]], size[one])
        ups = {key[0]: number for number, key in enumerate(sums)}
        at_home = leaves & (end == host) & (target != NOWHERE)
        for of, to in zip(source[at_home].tolist(), target[at_home].tolist(), strict=True):
            homes.setdefault(of, set()).add(to)
        comes = end != host
        rows = (tensor[comes], source[comes], target[comes], end[comes])
        for one, of, to, at in zip(*(column.tolist() for column in rows), strict=True):
            _add(sums, (of, to, host, at), seconds[one, a.link_class[host, at]], size[one])
    else:
        for one, of, to, at, there in zip(*(c.tolist() for c in (tensor, source, target, start, end)), strict=True):
            _add(sums, (of, to, at, there), seconds[one, a.link_class[at, there]], size[one])
    keys = [*list(sums)[: len(ups)], *sorted(list(sums)[len(ups) :])]
    hops = tuple(
        Hop(
            of, ups.get(of, NOWHERE) if at == host else NOWHERE, to, (at, there), at == host,
            tuple(sorted(homes.get(of, ()))) if there == host else (),
        )
        for of, to, at, there in keys
    )  # fmt: skip
    figures = np.array([sums[key] for key in keys], np.float64).reshape(-1, 2)
    return Hops(hops, figures[:, 0], figures[:, 1])


def _add(
    sums: dict[tuple[int, int, int, int], list[float]], key: tuple[int, int, int, int], s: float, b: float
) -> None:
    entry = sums.setdefault(key, [0.0, 0.0])
    entry[0] += float(s)
    entry[1] += float(b)


def _live_bytes(
    a: ProblemArrays, uses: _Uses, kind: Bytes8, stage: Ints, task: Longs, count: int, size: Floats
) -> tuple[Floats, Floats]:
    """Bytes [3 * n_stages] of one micro-batch that stay after each type of task, and the most that it holds meanwhile.

    A tensor is on a stage from the op that makes it, or from the beginning of the first task that reads it, to its last
    reader there. What leaves the stage is held to the end of its task.
    """
    n_ops, types = len(kind), KINDS * count
    order = np.lexsort((np.arange(n_ops), task))
    place = np.empty(n_ops, np.int64)
    place[order] = np.arange(n_ops)
    begin_of = np.searchsorted(task[order], np.arange(types + 1))
    rows = ~uses.once & (uses.reader_kind != UPDATE) & (uses.producer_kind != UPDATE)
    made = np.flatnonzero((a.producer >= 0) & (kind[a.producer] != UPDATE))
    tensor = np.concatenate((made, uses.tensor[rows]))
    home = np.concatenate((stage[a.producer[made]], uses.reader_stage[rows]))
    keys, instance = np.unique(tensor.astype(np.int64) * count + home, return_inverse=True)
    number, at = keys // count, keys % count
    maker = a.producer[number]
    own = (maker >= 0) & (stage[maker] == at)
    read_by, read_kind, read_at = instance[len(made) :], uses.reader_kind[rows], place[uses.reader[rows]]
    first, last = np.full(len(keys), KINDS), np.full(len(keys), -1)
    np.minimum.at(first, read_by, read_kind)
    np.maximum.at(last, read_by, read_kind)
    first = np.where(own, kind[maker], first)
    last = np.maximum(last, first)
    left = np.zeros(len(number), np.bool_)
    away = rows & (uses.producer_stage != uses.reader_stage) & (uses.producer >= 0)
    left[np.isin(number, uses.tensor[away])] = True
    left |= a.output[number]
    left &= own
    nbytes = size[number]
    carried, alive = np.zeros(types), np.zeros(types)
    change = np.zeros(n_ops + 1)
    for p in range(KINDS):
        stays = (first <= p) & (last > p)
        carried[p * count : (p + 1) * count] = np.bincount(at[stays], weights=nbytes[stays], minlength=count)
        here = (first <= p) & (last >= p) & (begin_of[p * count + at] < begin_of[p * count + at + 1])
        begin = np.where(own & (first == p), place[maker], begin_of[p * count + at])
        reader_place = np.full(len(keys), -1)
        now = read_kind == p
        np.maximum.at(reader_place, read_by[now], read_at[now])
        end = np.where((last > p) | (left & (first == p)), begin_of[p * count + at + 1] - 1, reader_place)
        end = np.maximum(end, begin)
        np.add.at(change, begin[here], nbytes[here])
        np.add.at(change, end[here] + 1, -nbytes[here])
    held = np.cumsum(change)[:n_ops]
    filled = np.flatnonzero(begin_of[:-1] < begin_of[1:])
    if len(filled):
        ends = np.append(begin_of[filled], begin_of[types])
        used = held[: ends[-1]]
        alive[filled] = np.maximum.reduceat(used, ends[:-1]) if len(used) else 0.0
    for p in range(KINDS):
        span = slice(p * count, (p + 1) * count)
        before = carried[(p - 1) * count : p * count] if p else 0.0
        alive[span] = np.maximum(alive[span], np.maximum(carried[span], before))
    return carried, alive
