"""The checker's memory: the bytes of each device, summed and swept independently of the judge.

One table has a row per tensor and device that needs it. It comes from sorting the uses of tensors by the places of
their ops in the list of all devices' ops, device after device, in running order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.quantized import held_bytes
from placewise.model.result import Timeline, Violation
from placewise.simulate.in_place import in_place_ops


def check_memory(
    problem: Problem, placement: Placement, piece: Ints | None, timeline: Timeline | None
) -> list[Violation]:
    """The devices that need more than they may use; each member of a replicated stage needs all its bytes."""
    if not problem.n_ops:
        return []
    line = _RunningOrder.of(problem, placement.device, piece, timeline)
    used = _resident(problem, line)
    scheduled = piece is not None or timeline is not None
    if problem.objective.memory == "live" and scheduled:
        used = used + _most_alive(problem, line)
    stage = np.arange(problem.n_devices) if placement.replicas is None else placement.replicas
    found = []
    for d, needed in enumerate(used[stage].tolist()):
        room = float(problem.capacity[d])
        short = needed - room
        if short > 0:
            name = problem.cluster.names[d]
            message = f"{name} needs {format_bytes(needed)} and may use {format_bytes(room)}: "
            message += f"{format_bytes(short)} ({short:.0f} bytes) short"
            found.append(Violation("memory", message, name, bytes_short=float(short)))
    return found


class _RunningOrder(NamedTuple):
    """The ops of device 0 in running order, then those of device 1, …: places 0, 1, …"""

    op: Longs  # [n_ops] by place
    device: Ints  # [n_ops] by place
    key: Ints | Floats  # [n_ops] by place: what the running order goes by
    place: Longs  # [n_ops] by op
    bounds: list[int]  # [n_devices + 1] the places of each device
    timeline: Timeline | None

    @classmethod
    def of(cls, problem: Problem, device: Ints, piece: Ints | None, timeline: Timeline | None) -> _RunningOrder:
        if timeline is not None:
            key: Ints | Floats = timeline.start
        else:
            key = np.zeros(len(device), np.int32) if piece is None else piece
        op = np.argsort(key, kind="stable")
        op = op[np.argsort(device[op], kind="stable")]
        place = np.empty(len(op), np.int64)
        place[op] = np.arange(len(op))
        bounds = np.searchsorted(device[op], np.arange(problem.n_devices + 1)).tolist()
        return cls(op, device[op], key[op], place, bounds, timeline)

    def sums(self, by_place: Floats) -> Floats:
        """The sum of a column over the places of each device."""
        return np.array([by_place[first:last].sum() for first, last in pairwise(self.bounds)])

    def piece_starts(self) -> Longs:
        """The first place of the piece that each place belongs to."""
        return np.maximum.accumulate(np.where(self._fresh()[:-1], np.arange(len(self.op)), 0))

    def piece_ends(self) -> Longs:
        """The last place of the piece that each place belongs to."""
        last = np.where(self._fresh()[1:], np.arange(len(self.op)), len(self.op))
        return np.minimum.accumulate(last[::-1])[::-1]

    def _fresh(self) -> Bools:
        """Where a piece begins [n_ops + 1]."""
        fresh = np.ones(len(self.op) + 1, np.bool_)
        fresh[1:-1] = (self.device[1:] != self.device[:-1]) | (self.key[1:] != self.key[:-1])
        return fresh

    def working_at(self, device: Ints, moment: Floats) -> Longs:
        """The place of the last op of each row's device to have started by the row's moment, or of its first."""
        found = np.zeros(len(device), np.int64)
        for d, (first, last) in enumerate(pairwise(self.bounds)):
            rows = np.flatnonzero(device == d)
            started = np.searchsorted(self.key[first:last], moment[rows], side="right")
            found[rows] = first + np.maximum(started - 1, 0)
        return found


def _resident(problem: Problem, line: _RunningOrder) -> Floats:
    """State, and every storage of weights once, on each device [n_devices]."""
    graph, weights = problem.graph, problem.graph.weights
    total = line.sums(graph.ops.state_bytes[line.op].astype(np.float64))
    largest = np.zeros(int(weights.storage.max(initial=-1)) + 1)
    np.maximum.at(largest, weights.storage.astype(np.intp), weights.bytes.astype(np.float64))
    width = max(len(largest), 1)
    user = line.device[line.place[graph.weight_edges.consumer]].astype(np.int64)
    storages = np.sort(user * width + weights.storage[graph.weight_edges.value])
    storages = storages[np.diff(storages, prepend=-1) > 0]
    cuts = np.searchsorted(storages, np.arange(problem.n_devices + 1) * width).tolist()
    for d, (first, last) in enumerate(pairwise(cuts)):
        total[d] += largest[storages[first:last] % width].sum()
    return total


class _TensorUses(NamedTuple):
    """A row per tensor and device with readers of it, sorted by tensor."""

    tensor: Longs
    device: Ints
    first: Longs  # the place of its first reader there
    last: Longs  # the place of its last reader there


def _uses(problem: Problem, line: _RunningOrder) -> _TensorUses:
    edges, count = problem.graph.edges, max(problem.n_ops, 1)
    uses = np.sort(edges.value.astype(np.int64) * count + line.place[edges.consumer])
    tensor = uses // count
    place = uses - tensor * count
    device = line.device[place]
    starts = np.ones(len(uses) + 1, np.bool_)
    starts[1:-1] = (tensor[1:] != tensor[:-1]) | (device[1:] != device[:-1])
    first, last = np.flatnonzero(starts[:-1]), np.flatnonzero(starts[1:])
    return _TensorUses(tensor[first], device[first], place[first], place[last])


def _most_alive(problem: Problem, line: _RunningOrder) -> Floats:
    """The most bytes of tensors that are alive at one place of each device [n_devices]."""
    objective, uses = problem.objective, _uses(problem, line)
    size = held_bytes(problem).astype(np.float64)
    copies = 2.0 if objective.kind == "throughput" and objective.communication != "blocking" else 1.0
    maker = problem.graph.tensors.producer
    maker_device = np.where(maker >= 0, line.device[line.place[maker]], -1)
    away = uses.device != maker_device[uses.tensor]
    here, gone = _TensorUses(*(column[~away] for column in uses)), _TensorUses(*(column[away] for column in uses))
    came = np.minimum(_arrivals(problem, line, gone), gone.last)
    produced, until, leaves = _kept(problem, line, maker_device, here, gone)
    until = until - _replaced(problem, line, produced, until, leaves)
    bytes_held = np.concatenate((size[gone.tensor] * copies, size[produced] * np.where(leaves, copies, 1.0)))
    born, dies = (
        np.bincount(np.concatenate(places), weights=bytes_held, minlength=problem.n_ops)
        for places in ((came, line.place[maker[produced]]), (gone.last, until))
    )
    most = np.zeros(problem.n_devices)
    for d, (first, last) in enumerate(pairwise(line.bounds)):
        before = np.concatenate(([0.0], np.cumsum(dies[first:last])))[:-1]
        most[d] = (np.cumsum(born[first:last]) - before).max(initial=0.0)
    return most


def _arrivals(problem: Problem, line: _RunningOrder, gone: _TensorUses) -> Longs:
    """The first place at which a device holds a tensor of another device."""
    if line.timeline is None:
        return line.piece_starts()[gone.first]
    maker = problem.graph.tensors.producer[gone.tensor]
    produced_at = np.where(maker >= 0, line.timeline.finish[maker], 0.0)
    return line.working_at(gone.device, produced_at)


def _kept(
    problem: Problem, line: _RunningOrder, maker_device: Ints, here: _TensorUses, gone: _TensorUses
) -> tuple[Longs, Longs, Bools]:
    """The tensors that ops make, the last place at which their makers hold them, and whether these send them away."""
    tensors, is_host = problem.graph.tensors, problem.cluster.is_host
    produced = np.flatnonzero(tensors.producer >= 0)
    own = line.place[tensors.producer]
    until = own.copy()
    until[here.tensor] = np.maximum(own[here.tensor], here.last)
    sent = np.zeros(len(tensors), np.bool_)
    sent[gone.tensor] = True
    to_host = tensors.output & ~is_host[maker_device]
    leaves = (sent | to_host)[produced]
    until = until[produced]
    if line.timeline is None:
        parted = line.piece_ends()[own[produced[leaves]]]
    else:
        last_send = np.full(len(tensors), -np.inf)
        starts = np.flatnonzero(np.diff(gone.tensor, prepend=-1))
        if len(starts):
            last_send[gone.tensor[starts]] = np.maximum.reduceat(line.key[gone.last], starts)
        last_send[to_host] = line.timeline.makespan
        sent_away = produced[leaves]
        parted = line.working_at(maker_device[sent_away], last_send[sent_away])
    until[leaves] = np.maximum(until[leaves], parted)
    stays = (tensors.output & is_host[maker_device])[produced]
    ends = np.array(line.bounds[1:])[maker_device[produced]] - 1
    return produced, np.where(stays, ends, until), leaves


def _replaced(problem: Problem, line: _RunningOrder, produced: Longs, until: Longs, leaves: Bools) -> Bools:
    """The tensors of `produced` that their last reader overwrites: it works in place, on one operand.

    Of several equal operands any one counts.
    """
    graph = problem.graph
    size, rows = held_bytes(problem), np.flatnonzero(in_place_ops(graph)[graph.edges.consumer])
    reader, value = graph.edges.consumer[rows], graph.edges.value[rows]
    ends, free = np.full(len(size), -1), np.zeros(len(size), np.bool_)
    ends[produced], free[produced] = until, ~leaves & ~graph.tensors.output[produced]
    result = np.full(graph.n_ops, -1)
    tensor = produced[::-1]
    result[graph.tensors.producer[tensor]] = tensor
    fits = (result[reader] >= 0) & (size[result[reader]] == size[value])
    uses = np.flatnonzero(fits & free[value] & (ends[value] == line.place[reader]))
    uses = uses[np.diff(reader[uses], prepend=-1) > 0]
    replaced = np.zeros(len(size), np.bool_)
    replaced[value[uses]] = True
    return replaced[produced]
