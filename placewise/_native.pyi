"""The kernels in C++ (native/). Written by scripts/write_native_stub.py; do not edit."""

"""
Kernels in C++: each is documented where it is bound, in native/*/bindings.cpp.
"""

import numpy
from numpy.typing import NDArray

class StopFlag:
    """Set by one thread, seen by kernels that run in others."""

    def __init__(self) -> None: ...
    def set(self) -> None:
        """End every kernel that was handed this flag, within 50 ms."""

    def clear(self) -> None: ...
    def is_set(self) -> bool: ...

class Problem:
    """
    The columns of one problem, checked once and read in place; see placewise.simulate.arrays.Arrays for their meaning.
    """

    def __init__(
        self,
        op_seconds: NDArray[numpy.float64],
        transfer: NDArray[numpy.float64],
        producer: NDArray[numpy.int32],
        output: NDArray[numpy.bool_],
        out_offsets: NDArray[numpy.int64],
        consumer_offsets: NDArray[numpy.int64],
        consumers: NDArray[numpy.int32],
        consumed: NDArray[numpy.int32],
        location: NDArray[numpy.int32],
        link_class: NDArray[numpy.int32],
        queue: NDArray[numpy.int32],
        wire: NDArray[numpy.int32],
        streams: NDArray[numpy.int32],
        call_overhead: NDArray[numpy.float64],
        staged: bool,
        n_queues: int,
        n_wires: int,
    ) -> None: ...
    @property
    def n_ops(self) -> int: ...
    @property
    def n_devices(self) -> int: ...

def operator_makespans(
    problem: Problem,
    priority: NDArray[numpy.int32],
    by_priority: NDArray[numpy.int32],
    placements: NDArray[numpy.int32],
    first: int,
    last: int,
    values: NDArray[numpy.float64],
) -> None:
    """
    Makespans of rows `first` to `last` of placements [K, n_ops] in `operator` execution, into `values` [K].
    """

def operator_timeline(
    problem: Problem, priority: NDArray[numpy.int32], by_priority: NDArray[numpy.int32], device: NDArray[numpy.int32]
) -> tuple[float, NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]:
    """
    The makespan of one placement [n_ops], starts and ends of its ops, and its hops [n_hops, 5].
    """

def max_loads(
    problem: Problem, placements: NDArray[numpy.int32], mode: int, first: int, last: int, values: NDArray[numpy.float64]
) -> None:
    """
    Max-loads of rows `first` to `last` of placements [K, n_ops], into `values` [K]; mode 0 is blocking, 1 overlap, 2 duplex.
    """

def pipeline_loads(problem: Problem, device: NDArray[numpy.int32]) -> tuple:
    """
    Seconds of compute, sends and receives per location [n_devices + 1], and of traffic per wire.
    """

def subgraph_calls(problem: Problem, device: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
    """
    The fewest calls of a placement [n_ops]: the number of each op's call on its accelerator, −1 on hosts.
    """

def subgraph_makespans(
    problem: Problem, placements: NDArray[numpy.int32], first: int, last: int, values: NDArray[numpy.float64]
) -> None:
    """
    Makespans of rows `first` to `last` of placements [K, n_ops] in `subgraph` execution, into `values` [K].
    """

def subgraph_timeline(
    problem: Problem, device: NDArray[numpy.int32], call: NDArray[numpy.int32]
) -> tuple[float, NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]:
    """
    The makespan of one placement with these calls, starts and ends of its ops, and its hops [n_hops, 5].
    """

def sequential_pieces(problem: Problem, device: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
    """
    The number of each op's piece [n_ops]; ops of one number and one device form a piece.
    """

def sequential_makespans(
    problem: Problem,
    in_offsets: NDArray[numpy.int64],
    in_tensors: NDArray[numpy.int32],
    placements: NDArray[numpy.int32],
    first: int,
    last: int,
    values: NDArray[numpy.float64],
) -> None:
    """
    Makespans of rows `first` to `last` of placements [K, n_ops] in `sequential` execution, into `values` [K].
    """

def sequential_timeline(
    problem: Problem, in_offsets: NDArray[numpy.int64], in_tensors: NDArray[numpy.int32], device: NDArray[numpy.int32]
) -> tuple[float, NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]:
    """
    The makespan of one placement, starts and ends of its ops, and its hops [n_hops, 5].
    """

def upward_ranks(
    problem: Problem, op_seconds: NDArray[numpy.float64], tensor_seconds: NDArray[numpy.float64]
) -> NDArray[numpy.float64]:
    """The longest path that remains from each op [n_ops], itself included."""

def downward_ranks(
    problem: Problem, op_seconds: NDArray[numpy.float64], tensor_seconds: NDArray[numpy.float64]
) -> NDArray[numpy.float64]:
    """The longest path to each op [n_ops], itself not included."""

def longest_path(problem: Problem, weight: NDArray[numpy.float64]) -> NDArray[numpy.int32]:
    """The ops of a path with the largest sum of weights [n_ops], in order."""

def return_path(
    problem: Problem, backward: NDArray[numpy.bool_], phase: NDArray[numpy.int32], device: NDArray[numpy.int32]
) -> NDArray[numpy.int32]:
    """
    The ops of a path that leaves a device and comes back, empty where there is none.
    """

def strong_components(offsets: NDArray[numpy.int64], heads: NDArray[numpy.int32]) -> tuple[NDArray[numpy.int32], int]:
    """
    The strong component of each node of a graph, numbered topologically, and how many there are.
    """

def locate_beside_path(problem: Problem, path: NDArray[numpy.int32]) -> tuple:
    """
    Two columns [n_ops]: the last position of the path [m] that leads to each op, −1 for none, and the first that it leads to, m for none.
    """

class PathCutter:
    """
    Cuts a path of m ops into segments on accelerators and ops on the host.
    """

    def __init__(self, host: NDArray[numpy.float64], fits: NDArray[numpy.bool_], tied: NDArray[numpy.bool_]) -> None:
        """
        `host` [m] seconds on the host, `fits` [m + 1, m + 1] whether path[i:j] fits on one accelerator, `tied` [m + 1] whether what meets at a position shares a device.
        """

    def find_shortest(self, seconds: NDArray[numpy.float64]) -> tuple[float, list[tuple[int, int]]]:
        """
        The least seconds where path[i:j] takes seconds[i, j], and the segments (i, j), the last first.
        """
