"""Memory per device: resident bytes, and the peak of live activations under the schedule.

Resident: the state of the ops, and each weight storage once per device. Live: a tensor occupies its device from its
producer to its last reader there, in the order in which the device runs its ops. Where a tensor crosses devices,

- with pieces (throughput: one per device; subgraph: calls; sequential: pieces), it arrives when the piece of its first
  reader begins, and its producer holds it until the producer's piece ends. When transfers overlap compute (overlap,
  duplex), both sides hold it twice, for this sample and the next;
- in `operator` execution, it may arrive as soon as its producer finishes, and its producer holds it until its last
  reader elsewhere starts.

Model inputs arrive like any tensor, also on host devices; host devices hold model outputs to the end. For a training
graph one sample is in flight. A result takes the memory of an operand of its size that is made on the same device, sent
nowhere, and read for the last time by an op that works in place (`in_place.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.quantized import held_bytes
from placewise.model.result import Timeline
from placewise.simulate.blocks import held_storages, storage_bytes
from placewise.simulate.in_place import in_place_ops
from placewise.simulate.judge.schedule import timeline as operator_timeline
from placewise.simulate.judge.sequential import cut_pieces
from placewise.simulate.judge.subgraph import cut_calls
from placewise.simulate.latest import Latest


def resident_bytes(problem: Problem, device: Ints) -> Floats:
    """State and weights of each device [n_devices]; tied weights count once per device."""
    state = np.bincount(device, weights=problem.graph.ops.state_bytes, minlength=problem.n_devices)
    return state.astype(np.float64) + weight_bytes(problem, device)


def weight_bytes(problem: Problem, device: Ints) -> Floats:
    """Bytes of the weights that the ops of each device use [n_devices]; tied weights count once per device."""
    owner, held = held_storages(problem.graph, device)
    size = storage_bytes(problem.graph)[held]
    return np.bincount(owner, weights=size, minlength=problem.n_devices).astype(np.float64)


def piece_numbers(problem: Problem, placement: Placement) -> Ints | None:
    """The piece of each op [n_ops] on its device; None for `operator` execution, which has none."""
    objective = problem.objective
    if objective.kind == "throughput":
        return np.zeros(len(placement), np.int32)
    if objective.op_by_op:
        return None
    if objective.execution == "sequential":
        return cut_pieces(problem, placement.device)
    if placement.call is None:
        return cut_calls(problem, placement.device)
    return np.where(problem.cluster.is_host[placement.device], np.int32(-1), placement.call)


_LATEST = Latest[tuple[Floats, Floats]]()


def device_memory(problem: Problem, placement: Placement, timeline: Timeline | None = None) -> tuple[Floats, Floats]:
    """Resident bytes and peak bytes (resident included) of each device [n_devices], by the memory model.

    `timeline` avoids simulating `operator` execution again. For a placement that cannot run, peaks are resident bytes.
    Each member of a replicated stage holds all of it.
    """
    if placement.replicas is not None:
        resident, peak = device_memory(problem, replace(placement, replicas=None), timeline)
        return resident[placement.replicas], peak[placement.replicas]
    known = _LATEST.find(problem, placement)
    if known is not None:
        return known[0].copy(), known[1].copy()
    resident = resident_bytes(problem, placement.device)
    peak = resident.copy()
    np.maximum.at(peak, placement.device, _held_while(problem, placement, timeline, resident))
    _LATEST.keep(problem, placement, (resident.copy(), peak.copy()))
    return resident, peak


def memory_while(problem: Problem, placement: Placement, timeline: Timeline | None = None) -> Floats:
    """Bytes that the device of each op holds while the op runs [n_ops], by the memory model.

    `timeline` as in `device_memory`. For a placement that cannot run, resident bytes.
    """
    return _held_while(problem, placement, timeline, resident_bytes(problem, placement.device))


def _held_while(problem: Problem, placement: Placement, timeline: Timeline | None, resident: Floats) -> Floats:
    """As `memory_while`, from the resident bytes [n_devices]."""
    resident, spans = resident[placement.device], spans_of(problem, placement, timeline)
    if spans is None:
        return resident
    born, gone = (
        np.bincount(at, weights=spans.bytes, minlength=problem.n_ops + 1) for at in (spans.first, spans.last + 1)
    )
    return resident + np.cumsum(born - gone)[:-1][spans.position]


class Spans(NamedTuple):
    """The first and last position, inclusive, at which a device holds a tensor: a row per tensor and device.

    `position` [n_ops] numbers the ops, device by device, in running order.
    """

    position: Longs
    tensor: Longs
    first: Longs
    last: Longs
    bytes: Floats


def spans_of(problem: Problem, placement: Placement, timeline: Timeline | None = None) -> Spans | None:
    """Where live tensors are held; None where the memory model ignores them, or the placement cannot run."""
    if problem.objective.memory != "live" or not problem.graph.n_tensors:
        return None
    piece = piece_numbers(problem, placement)
    if piece is None and timeline is None:
        timeline = operator_timeline(problem, placement)[1]
    if piece is None and timeline is not None and not np.isfinite(timeline.makespan):
        return None
    return _spans(problem, _running_order(problem, placement.device, piece, timeline))


class _RunningLine(NamedTuple):
    """The ops, device after device, in running order; positions are numbered across all devices."""

    device: Ints  # [n_ops]
    position: Longs  # [n_ops]
    base: Longs  # [n_devices + 1] the first position of each device
    opening: Longs  # [n_ops] by position: the first position of its piece; without a timeline
    closing: Longs  # [n_ops] by position: the last position of its piece; without a timeline
    timeline: Timeline | None  # in `operator` execution, which has no pieces
    starts: Floats  # [n_ops] by position; with a timeline


def _running_order(problem: Problem, device: Ints, piece: Ints | None, timeline: Timeline | None) -> _RunningLine:
    timeline = timeline if piece is None else None
    key: Floats | Ints = timeline.start if timeline is not None else np.asarray(piece)
    order = np.lexsort((key, device))
    base = np.concatenate(([0], np.cumsum(np.bincount(device, minlength=problem.n_devices)))).astype(np.int64)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    if timeline is not None:
        none = np.zeros(0, np.int64)
        return _RunningLine(device, position, base, none, none, timeline, timeline.start[order])
    first = np.ones(len(order) + 1, np.bool_)
    first[1:-1] = (np.diff(device[order]) != 0) | (np.diff(key[order]) != 0)
    edges = np.flatnonzero(first)
    which = np.cumsum(first[:-1]) - 1
    return _RunningLine(device, position, base, edges[which], edges[which + 1] - 1, None, np.zeros(0))


def _spans(problem: Problem, line: _RunningLine) -> Spans:
    graph, objective = problem.graph, problem.objective
    copies = 2 if objective.kind == "throughput" and objective.communication != "blocking" else 1
    size = held_bytes(problem).astype(np.float64)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    maker = graph.tensors.producer[tensor]
    here = (maker >= 0) & (line.device[maker] == line.device[graph.consumers])
    produced, begin, end, leaves = _held_by_makers(problem, line, tensor, here)
    end[_overwritten(problem, line, produced, begin, end, leaves)] -= 1
    received, arrive, depart = _held_by_readers(problem, line, tensor[~here], graph.consumers[~here])
    held = np.concatenate((size[produced] * np.where(leaves, copies, 1), size[received] * copies))
    tensors, first, last = (np.concatenate(pair) for pair in ((produced, received), (begin, arrive), (end, depart)))
    return Spans(line.position, tensors, first, last, held)


def _overwritten(
    problem: Problem, line: _RunningLine, produced: Longs, begin: Longs, end: Longs, leaves: Bools
) -> Longs:
    """The rows of `produced` that their last reader overwrites with its first result, one per reader."""
    graph, size = problem.graph, held_bytes(problem)
    op_at = np.empty(len(line.position), np.int64)
    op_at[line.position] = np.arange(len(line.position))
    last = op_at[end]
    makes = graph.out_offsets[last] < graph.out_offsets[last + 1]
    rows = np.flatnonzero(in_place_ops(graph)[last] & makes & (end > begin) & ~leaves & ~graph.tensors.output[produced])
    rows = rows[size[produced[rows]] == size[graph.out_offsets[last[rows]]]]
    overwritten: Longs = rows[np.unique(last[rows], return_index=True)[1]]
    return overwritten


def _held_by_makers(
    problem: Problem, line: _RunningLine, tensor: Longs, here: Bools
) -> tuple[Longs, Longs, Longs, Bools]:
    """The tensors that ops make, the first and last position at which their makers hold them, and which of them leave.

    `tensor` is the tensor of each use, and `here` whether the use is where the tensor is made.
    """
    graph, reader, is_host = problem.graph, problem.graph.consumers, problem.cluster.is_host
    produced = np.flatnonzero(graph.tensors.producer >= 0)
    begin = line.position[graph.tensors.producer[produced]]
    maker_device = line.device[graph.tensors.producer[produced]]
    last = np.full(graph.n_tensors, -1, np.int64)
    np.maximum.at(last, tensor[here], line.position[reader[here]])
    to_host, on_host = (
        graph.tensors.output[produced] & ~is_host[maker_device],
        graph.tensors.output[produced] & is_host[maker_device],
    )
    end = np.where(on_host, line.base[maker_device + 1] - 1, np.maximum(last[produced], begin))
    crosses = np.zeros(graph.n_tensors, np.bool_)
    crosses[tensor[~here]] = True
    leaves = crosses[produced] | to_host
    if line.timeline is None:
        until = line.closing[begin[leaves]]
    else:
        last_send = np.full(graph.n_tensors, -np.inf)
        np.maximum.at(last_send, tensor[~here], line.timeline.start[reader[~here]])
        sent = np.where(to_host, line.timeline.makespan, last_send[produced])
        until = _running_at(line, maker_device[leaves], sent[leaves])
    end[leaves] = np.maximum(end[leaves], until)
    return produced, begin, end, leaves


def _held_by_readers(problem: Problem, line: _RunningLine, tensor: Longs, reader: Ints) -> tuple[Longs, Longs, Longs]:
    """Tensor, first and last position, per tensor and device that has it from elsewhere.

    `tensor` and `reader` are the uses away from where tensors are made.
    """
    count = problem.n_devices
    pairs, group = np.unique(tensor * count + line.device[reader], return_inverse=True)
    at = line.position[reader]
    arrive, depart = np.full(len(pairs), len(line.device)), np.full(len(pairs), -1)
    np.maximum.at(depart, group, at)
    if line.timeline is None:
        np.minimum.at(arrive, group, line.opening[at])
    else:
        maker = problem.graph.tensors.producer[pairs // count]
        ready = np.where(maker >= 0, line.timeline.finish[maker], 0.0)
        arrive = np.minimum(_running_at(line, pairs % count, ready), depart)
    return pairs // count, arrive, depart


def _running_at(line: _RunningLine, device: Ints | Longs, moment: Floats) -> Longs:
    """The position at which each device is at a moment: its last op to have started, or its first."""
    result = np.empty(len(device), np.int64)
    for d in np.unique(device).tolist():
        rows, base = device == d, line.base[d]
        running = np.searchsorted(line.starts[base : line.base[d + 1]], moment[rows], side="right") - 1
        result[rows] = base + np.maximum(running, 0)
    return result
