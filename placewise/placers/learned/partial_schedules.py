"""Partial list schedules of a graph of units, many at once, whose transfers never queue.

A unit starts when its inputs have arrived and its device is idle. Ranks are upward ranks at mean costs, as in HEFT
(Topcuoglu et al. 2002); without insertion, and with the unit of the highest rank on the device where it ends first, a
schedule is the critical-path heuristic that Yao et al. (ICLR 2026) compare with.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Bools, Floats, Longs

STATE = 6
"""Of a device: its load; of the unit's inputs there, the seconds, the first start and the last end; when the unit could
start there, and when it would end."""
TIE = 1e-9
"""Relative difference up to which ranks and ends are ties."""


class ScheduleGraph(NamedTuple):
    """n units on D devices.

    `seconds` [n, D], 0 where not `allowed`; `reads` [n, n]: whether each other unit reads a unit; `inputs` [n, most]:
    what a unit reads, n for none, and `sent` [n, most], the mean seconds of those transfers; `pace` [D, D]: those of
    each link over the mean. `rank` [n]: the longest path to the end; `onward`, `backward` [n]: the next unit on the
    longest path to the end and from the start, n for none.
    """

    seconds: Floats
    allowed: Bools
    reads: Bools
    inputs: Longs
    sent: Floats
    pace: Floats
    rank: Floats
    onward: Longs
    backward: Longs


def schedule_graph(
    tail: npt.NDArray[np.integer],
    head: npt.NDArray[np.integer],
    flow: Floats,
    seconds: Floats,
    allowed: Bools,
    pace: Floats,
) -> ScheduleGraph:
    """The graph of edges with mean seconds `flow` [n_edges]; those against the order of units are left out."""
    n, keep = len(seconds), tail < head
    sends, reads = np.zeros((n, n)), np.zeros((n, n), np.bool_)
    sends[tail[keep], head[keep]], reads[tail[keep], head[keep]] = flow[keep], True
    seconds = np.where(allowed, seconds, 0.0)
    inputs = np.full((n, int(reads.sum(axis=0).max(initial=0))), n)
    sent, mean = np.zeros(inputs.shape), seconds.sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)
    paths = np.zeros((2, n + 1))
    (before, rank), (backward, onward) = paths, np.full((2, n), n)
    for unit in range(n):
        read = np.flatnonzero(reads[:, unit])
        inputs[unit, : len(read)], sent[unit, : len(read)] = read, sends[read, unit]
        lengths = before[read] + mean[read] + sends[read, unit]
        backward[unit], before[unit] = (read[lengths.argmax()], lengths.max()) if len(read) else (n, 0.0)
    for unit in reversed(range(n)):
        readers = np.flatnonzero(reads[unit])
        lengths = rank[readers] + sends[unit, readers]
        onward[unit] = readers[lengths.argmax()] if len(readers) else n
        rank[unit] = mean[unit] + lengths.max(initial=0.0)
    return ScheduleGraph(seconds, allowed, reads, inputs, sent, pace, rank[:n], onward, backward)


class PartialSchedules:
    """K schedules under construction. `ready` [K, n] marks the units that may be placed next."""

    def __init__(self, graph: ScheduleGraph, count: int) -> None:
        n, n_devices = graph.seconds.shape
        self.graph, self.row, self.scale = graph, np.arange(count), float(graph.seconds.mean()) or 1.0
        self.missing = np.tile(graph.reads.sum(axis=0), (count, 1))
        self.ready = self.missing == 0
        self.start, self.end, self.spent = np.zeros((3, count, n + 1))
        self.device = np.zeros((count, n + 1), np.int64)
        self.earliest, self.idle, self.load = np.zeros((3, count, n_devices))

    def state(self, unit: Longs) -> Floats:
        """The features [K, D, STATE] of devices for the next unit [K]: log(1 + what is above the least of them)."""
        graph, row = self.graph, self.row[:, None]
        read = graph.inputs[unit]
        source, start, end = self.device[row, read], self.start[row, read], self.end[row, read]
        here = (source[:, :, None] == np.arange(self.load.shape[1])) & (read < len(graph.inputs))[:, :, None]
        arrival = end[:, :, None] + graph.sent[unit][:, :, None] * graph.pace[source]
        self.earliest = np.maximum(arrival.max(axis=1, initial=0.0), self.idle)
        first = np.where(here, start[:, :, None], np.inf).min(axis=1, initial=np.inf)
        columns = (
            self.load, (here * self.spent[row, read][:, :, None]).sum(axis=1), np.where(np.isinf(first), 0.0, first),
            (here * end[:, :, None]).max(axis=1, initial=0.0), self.earliest, self.earliest + graph.seconds[unit],
        )  # fmt: skip
        state = np.stack(columns, axis=2)
        least = np.where(graph.allowed[unit][:, :, None], state, np.inf).min(axis=1, keepdims=True)
        features: Floats = np.log1p(np.maximum(state - least, 0.0) / self.scale)
        return features

    def place(self, unit: Longs, device: Longs) -> None:
        """Let the unit [K] for which `state` was asked run on a device [K]."""
        row, spent, reads = self.row, self.graph.seconds[unit, device], self.graph.reads[unit]
        self.start[row, unit] = self.earliest[row, device]
        self.idle[row, device] = self.end[row, unit] = self.earliest[row, device] + spent
        self.load[row, device] += spent
        self.spent[row, unit], self.device[row, unit] = spent, device
        self.missing -= reads
        self.ready |= reads & (self.missing == 0)
        self.ready[row, unit] = False

    def critical(self) -> Bools:
        """The ready units [K, n] of the highest rank."""
        rank = np.where(self.ready, self.graph.rank, -np.inf)
        critical: Bools = rank >= rank.max(axis=1, keepdims=True) - TIE * self.graph.rank.max(initial=0.0)
        return critical

    def quickest(self, unit: Longs, state: Floats) -> Bools:
        """The devices [K, D] on which a unit with this `state` would end first."""
        return self.graph.allowed[unit] & (state[:, :, -1] <= TIE)
