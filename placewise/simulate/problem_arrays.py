"""A problem as flat arrays, for the kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs, frozen
from placewise.model.problem import Problem, cached_per_problem


class ProblemArrays(NamedTuple):
    """The columns of one problem, read-only.

    Tensors are sorted by producer; the tensors of op v are ``out_offsets[v]:out_offsets[v + 1]`` and those
    before ``out_offsets[0]`` are model inputs. Locations are device indices, and n_devices for host memory.
    """

    op_seconds: Floats  # [n_ops, n_devices]
    transfer: Floats  # [n_tensors, n_link_classes]
    producer: Ints  # [n_tensors]
    output: Bools  # [n_tensors]
    out_offsets: Longs  # [n_ops + 1]
    consumer_offsets: Longs  # [n_tensors + 1]
    consumers: Ints  # distinct consumers of each tensor
    consumed: Ints  # [len(consumers)] the tensor of each
    location: Ints  # [n_devices]
    link_class: Ints  # [n_devices + 1, n_devices + 1]
    queue: Ints  # [n_devices + 1, n_devices + 1], −1 everywhere if transfers never queue
    wire: Ints  # [n_devices + 1, n_devices + 1]
    streams: Ints  # [n_devices]
    call_overhead: Floats  # [n_devices]
    staged: bool
    n_queues: int
    n_wires: int


@cached_per_problem
def arrays_of(problem: Problem) -> ProblemArrays:
    graph, cluster = problem.graph, problem.cluster
    waits = problem.objective.execution != "contention-free"
    queue = cluster.queue if waits else frozen(np.full_like(cluster.queue, -1), np.int32)
    return ProblemArrays(
        op_seconds=problem.costs.op_seconds,
        transfer=problem.costs.transfer_seconds,
        producer=graph.tensors.producer,
        output=graph.tensors.output,
        out_offsets=graph.out_offsets,
        consumer_offsets=graph.consumer_offsets,
        consumers=graph.consumers,
        consumed=frozen(np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets)), np.int32),
        location=cluster.location,
        link_class=cluster.link_class,
        queue=queue,
        wire=cluster.wire,
        streams=frozen([device.streams for device in cluster], np.int32),
        call_overhead=frozen([device.call_overhead for device in cluster], np.float64),
        staged=cluster.transfers == "staged",
        n_queues=int(queue.max()) + 1,
        n_wires=len(cluster.wires),
    )


def find_crossing_uses(problem: Problem) -> Longs:
    """The entries of `consumers` where an op reads a tensor that an op of another group makes, ascending."""
    a = arrays_of(problem)
    maker = a.producer[a.consumed]
    return np.flatnonzero((maker >= 0) & (problem.block[maker] != problem.block[a.consumers]))


@cached_per_problem
def native_problem(problem: Problem) -> _native.Problem:
    """The same columns for the C++ kernels: checked once, never copied."""
    return to_native(arrays_of(problem))


def to_native(a: ProblemArrays) -> _native.Problem:
    """Columns for the C++ kernels."""
    return _native.Problem(
        a.op_seconds, a.transfer, a.producer, a.output, a.out_offsets, a.consumer_offsets, a.consumers, a.consumed,
        a.location, a.link_class, a.queue, a.wire, a.streams, a.call_overhead, a.staged, a.n_queues, a.n_wires,
    )  # fmt: skip
