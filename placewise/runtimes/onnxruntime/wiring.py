"""What the parent and the workers share: tasks, tensor regions, counters, and which worker signals which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from placewise.processes.shared_memory import SharedMemory, align_up

STRIDE = 8
"""Integers of 8 bytes from one counter to the next: a cache line."""
START_FLAG = 0
"""The counter that becomes 1 when samples may start. The states of the workers follow, then the task counters."""
IDLE, WAITING, RUNNING = 0, 1, 2
"""States of a worker; while it runs a piece, its state is RUNNING plus the number of the piece."""


class Role(Enum):
    """Whether a tensor is an input of the model, passed between pieces, or an output of the model."""

    INPUT = "input"
    INNER = "inner"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor in shared memory: its role, element types of ONNX and numpy, shape, and size in bytes."""

    role: Role
    element: int
    dtype: Any
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Region:
    """Where the copies of a tensor lie: `count` copies from byte `offset` on, `stride` bytes apart."""

    tensor: TensorSpec
    offset: int
    stride: int
    count: int


@dataclass(frozen=True, slots=True)
class PieceTask:
    """One piece as one worker runs it.

    The worker runs the samples `first`, `first` + `step`, …; after each, `counter` holds the next one. A sample can
    start when every group in `waits` has finished it, that is, when the counter of the member that runs this sample has
    passed it. A task without `waits` starts a sample as soon as fewer than the allowed number are in flight. `signals`
    lists the workers that wait for the piece. `ends`: no other piece comes after it. `model` is a serialized model or
    the path of one.
    """

    number: int
    name: str
    model: bytes | str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    counter: int
    first: int
    step: int
    waits: tuple[tuple[int, ...], ...]
    signals: tuple[int, ...]
    ends: bool


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The row of a worker among all, the descriptors that it shares with them, and how it computes.

    `last` are the counters of the pieces that end a sample, in groups of members. A worker polls for `spin` seconds
    before it sleeps until it is signalled; `first` gives its threads real-time priority.
    """

    row: int
    counters_fd: int
    n_counters: int
    tensors_fd: int
    eventfds: tuple[int, ...]
    last: tuple[tuple[int, ...], ...]
    device: str
    provider: str
    provider_options: Mapping[str, str]
    session_options: Mapping[str, str]
    threads: int
    spin: float
    first: bool


def counter_bytes(n_counters: int) -> int:
    """Bytes of shared memory that the counters take."""
    return n_counters * STRIDE * 8


def view_counters(memory: SharedMemory, n_counters: int) -> Any:
    """The counters, one integer each, which all workers and their parent see."""
    rows: Any = memory.view(0, (n_counters * STRIDE,), "int64")
    return memoryview(rows)[::STRIDE]


def lay_out_tensors(
    tensors: Mapping[str, TensorSpec], inputs: int, ring: int, outputs: int
) -> tuple[int, dict[str, Region]]:
    """The bytes that all tensors take, and the region of each: as many copies as given for its role."""
    copies = {Role.INPUT: inputs, Role.INNER: ring, Role.OUTPUT: outputs}
    regions, offset = {}, 0
    for name, tensor in tensors.items():
        stride = align_up(tensor.nbytes)
        regions[name] = Region(tensor, offset, stride, copies[tensor.role])
        offset += stride * copies[tensor.role]
    return offset, regions


def is_finished(counters: Any, groups: Iterable[tuple[int, ...]], sample: int) -> bool:
    """Whether every group has finished a sample; the member that runs the sample counts."""
    return all(counters[group[sample % len(group)]] > sample for group in groups)
