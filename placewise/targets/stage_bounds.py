"""Least seconds of a stage of consecutive units on a device: what it computes, receives and sends at the very least."""

from __future__ import annotations

import numpy as np

from placewise.exporters.projection import range_bytes
from placewise.exporters.space import Line
from placewise.model.columns import Floats, Longs
from placewise.model.problem import Problem
from placewise.model.quantized import held_bytes
from placewise.simulate.in_place import in_place_ops

SAFE = 1 - 1e-9
"""What sums in floating point may be off."""


def bound_stages(problem: Problem, line: Line, devices: list[int]) -> Floats:
    """Lower bounds [devices, units + 1, units + 1] on the seconds of units i up to j; inf where these cannot be.

    For throughput, on the load of the device; for latency, on what its pieces add to one sample.
    """
    compute = _compute_seconds(problem, line, devices)
    needed = range_bytes(problem, line.unit, line.count) + _working_bytes(problem, line)
    crossing = _Crossings(problem, line)
    costs = np.full((len(devices), line.count + 1, line.count + 1), np.inf)
    for place, device in enumerate(devices):
        busy = np.vstack((np.zeros(2), np.cumsum(compute[place], axis=0)))
        spent = busy[None, :, 0] - busy[:, None, 0]
        receive, send = crossing.receives(device), crossing.sends(device)
        barred = busy[None, :, 1] > busy[:, None, 1]
        barred[:-1, 1:] |= needed > problem.capacity[device]
        barred |= np.tri(line.count + 1, dtype=np.bool_)
        costs[place] = np.where(barred, np.inf, SAFE * np.maximum(_combine(problem, device, spent, receive, send), 0.0))
    return costs


def _combine(problem: Problem, device: int, compute: Floats, receive: Floats, send: Floats) -> Floats:
    if problem.objective.kind == "latency":
        return compute + receive + send + problem.cluster.devices[device].call_overhead
    mode = problem.objective.communication
    if mode == "blocking":
        return compute + receive + send
    both = receive + send if mode == "overlap" else np.maximum(receive, send)
    return np.maximum(compute, both)


def _compute_seconds(problem: Problem, line: Line, devices: list[int]) -> Floats:
    """Seconds, and the number of ops that cannot run, of every unit on every device: [devices, units, 2]."""
    found = np.zeros((len(devices), line.count, 2))
    for place, device in enumerate(devices):
        able = problem.allowed[:, device] & np.isfinite(problem.costs.op_seconds[:, device])
        seconds = np.where(able, problem.costs.op_seconds[:, device], 0.0)
        found[place, :, 0] = np.bincount(line.unit, weights=seconds, minlength=line.count)
        found[place, :, 1] = np.bincount(line.unit[~able], minlength=line.count)
    return found


def _working_bytes(problem: Problem, line: Line) -> Floats:
    """Least bytes [units, units] of activations in the units from i to j inclusive: those of the op that needs most.

    While an op runs, its device holds what it reads and makes, less the operand that it may overwrite.
    """
    graph, count = problem.graph, line.count
    if problem.objective.memory != "live":
        return np.zeros((count, count))
    size, edges = held_bytes(problem).astype(np.float64), graph.edges
    reads = np.unique(np.stack((edges.consumer, edges.value), axis=1), axis=0)
    held = np.bincount(reads[:, 0], weights=size[reads[:, 1]], minlength=graph.n_ops)
    made = np.flatnonzero(graph.tensors.producer >= 0)
    maker = graph.tensors.producer[made]
    held += np.bincount(maker, weights=size[made], minlength=graph.n_ops)
    largest = np.zeros(graph.n_ops)
    np.maximum.at(largest, maker, size[made])
    held -= np.where(in_place_ops(graph), largest, 0.0)
    most = np.zeros(count)
    np.maximum.at(most, line.unit, held)
    return np.maximum.accumulate(np.triu(np.broadcast_to(most, (count, count))), axis=1)


class _Crossings:
    """The tensors that later units of the same phase read: whom a stage must receive from, and send to."""

    def __init__(self, problem: Problem, line: Line) -> None:
        graph, unit = problem.graph, line.unit
        self.problem, self.line = problem, line
        tensor, reader = graph.edges.value.astype(np.int64), graph.edges.consumer
        maker = graph.tensors.producer[tensor]
        phase = graph.ops.phase
        inside = (maker >= 0) & (phase[np.maximum(maker, 0)] == phase[reader])
        start, end = np.where(maker >= 0, unit[np.maximum(maker, 0)], -1), unit[reader]
        keep = (inside | (maker < 0)) & (end > start)
        pairs = np.unique(np.stack((tensor[keep], start[keep], end[keep]), axis=1), axis=0)
        self.tensor, self.maker, self.reader = (pairs[:, k] for k in range(3))
        same = np.r_[False, self.tensor[1:] == self.tensor[:-1]] if len(pairs) else np.zeros(0, np.bool_)
        self.before = np.where(same, np.r_[-1, self.reader[:-1]] if len(pairs) else self.reader, self.maker)

    def receives(self, device: int) -> Floats:
        """Seconds [units + 1, units + 1]: each tensor that the stage reads and an earlier unit makes, once."""
        if self.problem.cluster.is_host[device]:
            return np.zeros((self.line.count + 1, self.line.count + 1))
        made = self._least(self._others(device), device)
        host = self._class_seconds(len(self.problem.cluster), device)
        seconds = np.where(self.maker < 0, host[self.tensor], made[self.tensor])
        return _sum_boxes(self.before + 1, self.reader + 1, self.reader + 1, self.line.count, seconds)

    def sends(self, device: int) -> Floats:
        """Seconds [units + 1, units + 1]: each tensor that the stage makes and a later unit reads, and each output."""
        problem, count = self.problem, self.line.count
        if problem.cluster.is_host[device]:
            return np.zeros((count + 1, count + 1))
        graph = problem.graph
        home = self._class_seconds(device, len(problem.cluster))
        staged, latency = problem.cluster.transfers == "staged", problem.objective.kind == "latency"
        last = np.full(graph.n_tensors, -1, np.int64)
        np.maximum.at(last, self.tensor[self.maker >= 0], self.reader[self.maker >= 0])
        output = np.asarray(graph.tensors.output) & (graph.tensors.producer >= 0)
        way = home if staged else self._least_to(device)
        read = (last >= 0) & (not latency or staged) & ~output
        made = np.where(graph.tensors.producer >= 0, self.line.unit[np.maximum(graph.tensors.producer, 0)], 0)
        total = np.zeros((count + 1, count + 1))
        for chosen, until, seconds in ((read, last, way), (output, np.full_like(last, count), home)):
            rows = np.flatnonzero(chosen)
            total += _sum_boxes(
                np.zeros(len(rows), np.int64), made[rows] + 1, made[rows] + 1, count, seconds[rows], until[rows]
            )
        return total

    def _others(self, device: int) -> list[int]:
        """The locations that another stage may be at."""
        line, cluster = self.line, self.problem.cluster
        others = [other for other in np.flatnonzero(line.devices).tolist() if other != device]
        return [*others, *([len(cluster)] if line.first >= 0 or self.problem.cluster.transfers == "staged" else [])]

    def _least(self, sources: list[int], device: int) -> Floats:
        """The least seconds of every tensor from any of these locations to a device."""
        if self.problem.cluster.transfers == "staged":
            return self._class_seconds(len(self.problem.cluster), device)
        ways = [self._class_seconds(source, device) for source in sources]
        return np.min(ways, axis=0) if ways else np.zeros(self.problem.graph.n_tensors)

    def _least_to(self, device: int) -> Floats:
        ways = [self._class_seconds(device, target) for target in self._others(device)]
        return np.min(ways, axis=0) if ways else np.zeros(self.problem.graph.n_tensors)

    def _class_seconds(self, source: int, target: int) -> Floats:
        return self.problem.costs.transfer_seconds[:, self.problem.cluster.link_class[source, target]]


def _sum_boxes(low: Longs, high: Longs, end: Longs, count: int, seconds: Floats, until: Longs | None = None) -> Floats:
    """Σ seconds over the boxes that hold (i, j): low ≤ i < high, end ≤ j ≤ until (the last unit's end by default)."""
    marks = np.zeros((count + 2, count + 2))
    last = np.full(len(low), count) if until is None else until
    for rows, columns, sign in ((low, end, 1.0), (high, end, -1.0), (low, last + 1, -1.0), (high, last + 1, 1.0)):
        np.add.at(marks, (rows, columns), sign * seconds)
    return np.cumsum(np.cumsum(marks, axis=0), axis=1)[: count + 1, : count + 1]
