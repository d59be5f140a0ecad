"""A policy's view of a problem: units that move together, and the graph between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placewise.coarsen.merging import sums
from placewise.model.columns import Bools, Floats, Ints, distinct
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import may_run
from placewise.simulate.contiguity import strong_components
from placewise.simulate.judge.ranks import mean_op_seconds, mean_transfer_seconds


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Units of ops, numbered by the mean position of their ops, and the distinct edges between them.

    `unit` [n_ops]; `tail`, `head` [n_edges]; `flow` [n_edges], mean seconds of the transfer; `seconds`
    [n_units, n_devices], sums over ops, inf where `allowed` is false.
    """

    problem: Problem
    unit: Ints
    tail: Ints
    head: Ints
    flow: Floats
    seconds: Floats
    allowed: Bools

    @property
    def n(self) -> int:
        return len(self.seconds)

    @property
    def n_devices(self) -> int:
        return self.problem.n_devices

    def placements(self, device: npt.NDArray[np.integer]) -> Ints:
        """Devices of units [K, n_units] → placements [K, n_ops]."""
        rows: Ints = np.ascontiguousarray(device, np.int32)[:, self.unit]
        return rows

    def devices(self, placements: Ints) -> Ints:
        """Placements [K, n_ops] → devices of units [K, n_units]: the device with most of a unit's seconds."""
        weight = mean_op_seconds(self.problem) + 1e-12
        devices = np.empty((len(placements), self.n), np.int32)
        for k, device in enumerate(placements):
            share = sums(weight, self.unit * self.n_devices + device, self.n * self.n_devices).reshape(self.n, -1)
            devices[k] = np.where(self.allowed, share, -1.0).argmax(axis=1)
        return devices


def build_view(problem: Problem, label: npt.NDArray[np.integer]) -> View:
    """Build the view in which ops with one label [n_ops], and ops of one colocation group, are one unit."""
    unit = _number_by_position(_join_labels(problem.block, label))
    n = int(unit.max(initial=-1)) + 1
    tail, head, flow = _edges(problem, unit, n)
    allowed = may_run(problem, unit, n)
    columns = [sums(np.where(problem.allowed[:, d], problem.costs.op_seconds[:, d], 0.0), unit, n)
               for d in range(problem.n_devices)]  # fmt: skip
    seconds = np.where(allowed, np.stack(columns, axis=1).reshape(n, -1), np.inf)
    return View(problem, unit, tail, head, flow, seconds, allowed)


def _join_labels(block: Ints, label: npt.NDArray[np.integer]) -> Ints:
    """The finest labels [n_ops] that split neither a block nor a label: components of the two together."""
    group = (np.unique(label, return_inverse=True)[1] + int(block.max(initial=-1)) + 1).astype(np.int32)
    tail, head = np.concatenate((block, group)), np.concatenate((group, block))
    component, _ = strong_components(tail, head, int(group.max(initial=-1)) + 1)
    return component[block]


def _number_by_position(label: Ints) -> Ints:
    """Number the same groups by the mean position of their ops."""
    _, dense, count = np.unique(label, return_inverse=True, return_counts=True)
    place = np.bincount(dense, weights=np.arange(len(label)), minlength=len(count)) / count
    rank = np.empty(len(count), np.int32)
    rank[np.lexsort((np.arange(len(count)), place))] = np.arange(len(count))
    numbered: Ints = rank[dense]
    return numbered


def _edges(problem: Problem, unit: Ints, n: int) -> tuple[Ints, Ints, Floats]:
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    maker = graph.tensors.producer[tensor]
    made = maker >= 0
    tail, head = unit[maker[made]].astype(np.int64), unit[graph.consumers[made]].astype(np.int64)
    # A tensor with several readers in one unit is transferred once.
    once = distinct((tensor[made] * max(n, 1) + head)[tail != head])
    of, head = once // max(n, 1), once % max(n, 1)
    key = unit[graph.tensors.producer[of]].astype(np.int64) * max(n, 1) + head
    pairs = distinct(key)
    flow = sums(mean_transfer_seconds(problem)[of], np.searchsorted(pairs, key), len(pairs))
    return (pairs // max(n, 1)).astype(np.int32), (pairs % max(n, 1)).astype(np.int32), flow
