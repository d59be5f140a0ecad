"""Memory per device: resident bytes, and the peak of live activations under the schedule.

Resident: state of the ops, and every weight storage once per device. Live: a tensor occupies its device from
its producer to its last reader there, in the order in which the device runs its ops. Where a tensor crosses,

- pieces (throughput: one per device; subgraph: calls; sequential: pieces): it is received when the piece
  of its first reader begins and held by its maker until the maker's piece ends. When transfers overlap
  compute (overlap, duplex), both sides hold it twice, for this sample and the next;
- `operator`: it may arrive as soon as its producer finishes, and its maker holds it until its last reader
  elsewhere starts.

Model inputs are received like any tensor, also by host devices; model outputs are held to the end on a host.
For a training graph one sample is in flight.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.simulate.arrays import arrays_of
from placewise.simulate.blocks import storage_bytes
from placewise.simulate.schedule import prepare
from placewise.simulate.schedule import timeline as operator_timeline
from placewise.simulate.sequential import cut_pieces
from placewise.simulate.subgraph import cut_calls


def resident_bytes(problem: Problem, device: Ints) -> Floats:
    """State and weights of each device [n_devices]; tied weights count once per device."""
    graph, count = problem.graph, problem.n_devices
    resident = np.bincount(device, weights=graph.ops.state_bytes, minlength=count).astype(np.float64)
    if len(graph.weight_edges):
        size = storage_bytes(graph)
        storage = graph.weights.storage[graph.weight_edges.value].astype(np.int64)
        held = np.unique(device[graph.weight_edges.consumer].astype(np.int64) * len(size) + storage)
        resident += np.bincount(held // len(size), weights=size[held % len(size)], minlength=count)
    return resident


def piece_numbers(problem: Problem, placement: Placement) -> Ints | None:
    """The piece of each op [n_ops] on its device; None for `operator` execution, which has none."""
    objective = problem.objective
    if objective.kind == "throughput":
        return np.zeros(len(placement), np.int32)
    if objective.execution == "operator":
        return None
    if objective.execution == "sequential":
        return cut_pieces(arrays_of(problem), placement.device)
    return placement.call if placement.call is not None else cut_calls(arrays_of(problem), placement.device)


def device_memory(problem: Problem, placement: Placement, timeline: Timeline | None = None) -> tuple[Floats, Floats]:
    """Resident bytes and peak bytes (resident included) of each device [n_devices], as the memory model counts.

    `timeline` saves simulating `operator` execution again. A placement that cannot run has no peak of its own.
    """
    resident = resident_bytes(problem, placement.device)
    if problem.objective.memory == "sum" or not problem.graph.n_tensors:
        return resident, resident.copy()
    piece = piece_numbers(problem, placement)
    if piece is None and timeline is None:
        prepared = prepare(problem, arrays_of(problem), placement.order)
        timeline = operator_timeline(prepared, placement.device)[1]
    if piece is None and timeline is not None and not np.isfinite(timeline.makespan):
        return resident, resident.copy()
    key: Floats | Ints = timeline.start if piece is None and timeline is not None else np.asarray(piece)
    order = np.lexsort((key, placement.device))
    sizes = np.bincount(placement.device, minlength=problem.n_devices)
    base = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return resident, resident + _peaks(problem, placement.device, piece, timeline, order, base, position)


def _peaks(
    problem: Problem,
    device: Ints,
    piece: Ints | None,
    timeline: Timeline | None,
    order: Longs,
    base: Longs,
    position: Longs,
) -> Floats:
    """Peak of live activations [n_devices]; positions count ops device by device, in running order."""
    graph, count = problem.graph, problem.n_devices
    size = np.maximum(graph.tensors.bytes, 0)
    maker = graph.tensors.producer
    maker_device = np.where(maker >= 0, device[maker], -1)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    reader, at = graph.consumers, position[graph.consumers]
    reader_device = device[reader]
    here = reader_device == maker_device[tensor]

    made = np.flatnonzero(maker >= 0)
    begin = position[maker[made]]
    end = _latest(graph.n_tensors, tensor[here], at[here], made, begin)
    crossing = np.zeros(graph.n_tensors, np.bool_)
    crossing[tensor[~here]] = True
    on_host = problem.cluster.is_host[maker_device[made]]
    leaves = crossing[made] | (graph.tensors.output[made] & ~on_host)
    stays = graph.tensors.output[made] & on_host
    end = np.where(stays, base[maker_device[made] + 1] - 1, end)
    away_tensor, away_at, away_reader = tensor[~here], at[~here], reader[~here]
    pair = away_tensor.astype(np.int64) * count + reader_device[~here]
    pairs, group = np.unique(pair, return_inverse=True)
    arrive = np.full(len(pairs), np.iinfo(np.int64).max)
    depart = np.full(len(pairs), -1)
    np.maximum.at(depart, group, away_at)
    if piece is not None:
        opening, closing = _piece_edges(device, piece, order)
        np.minimum.at(arrive, group, opening[away_at])
        end = np.where(leaves, np.maximum(end, closing[begin]), end)
    elif timeline is not None:
        ready = np.where(maker >= 0, timeline.finish[maker], 0.0)[pairs // count]
        arrive = _running_at(timeline.start[order], base, pairs % count, ready)
        arrive = np.minimum(arrive, depart)
        wanted = np.full(graph.n_tensors, -np.inf)
        np.maximum.at(wanted, away_tensor, timeline.start[away_reader])
        finished = timeline.makespan
        wanted[graph.tensors.output & ~problem.cluster.is_host[maker_device]] = finished
        held = _running_at(timeline.start[order], base, maker_device[made], wanted[made])
        end = np.where(leaves, np.maximum(end, held), end)
    twice = 2 if problem.objective.kind == "throughput" and problem.objective.communication != "blocking" else 1
    change = np.zeros(len(device) + 1)
    np.add.at(change, begin, size[made] * np.where(leaves, twice, 1))
    np.subtract.at(change, end + 1, size[made] * np.where(leaves, twice, 1))
    np.add.at(change, arrive, size[pairs // count] * twice)
    np.subtract.at(change, depart + 1, size[pairs // count] * twice)
    live = np.cumsum(change)
    return np.array([live[base[d] : base[d + 1]].max(initial=0.0) for d in range(count)])


def _latest(n_tensors: int, tensor: Longs, at: Longs, made: Longs, begin: Longs) -> Longs:
    latest = np.full(n_tensors, -1, np.int64)
    np.maximum.at(latest, tensor, at)
    last: Longs = np.maximum(latest[made], begin)
    return last


def _piece_edges(device: Ints, piece: Ints, order: Longs) -> tuple[Longs, Longs]:
    """First and last position of the piece at each position [n_ops]."""
    new = np.ones(len(order) + 1, np.bool_)
    new[1:-1] = (np.diff(device[order]) != 0) | (np.diff(piece[order]) != 0)
    edges = np.flatnonzero(new)
    which = np.cumsum(new[:-1]) - 1
    return edges[which], edges[which + 1] - 1


def _running_at(starts: Floats, base: Longs, device: Ints | Longs, moment: Floats) -> Longs:
    """The position that each device works on at a moment: its last op to have started, or its first."""
    result = np.empty(len(device), np.int64)
    for d in np.unique(device).tolist():
        rows = device == d
        running = np.searchsorted(starts[base[d] : base[d + 1]], moment[rows], side="right") - 1
        result[rows] = base[d] + np.maximum(running, 0)
    return result
