"""What the processes of an emulated cluster are told: tasks, what they wait for, and whom they tell.

Only the standard library is imported here and in the modules that the processes load, so that they start at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct

ADMITTED = -1
"""The number under which a sample's start is told, as if it were a task: it enters the cluster."""
DONE = -2
"""The number under which a process tells the host that all of its tasks of a sample have ended."""
HEADER = Struct("<iiId")
"""Task, sample, bytes that follow (the highest bit: none come after them), moment."""
LAST = 1 << 31
VALUE = Struct("<Q")
"""What stands for the contents of a tensor; the last part of a message begins with one for each tensor in it."""


@dataclass(frozen=True, slots=True)
class TaskOp:
    """An op inside a task, the tensors that it reads and makes, and the operands that it may overwrite."""

    op: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwrites: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceTask:
    """Something that takes `seconds` on a resource of a process (−1: no resource limits it), once per sample.

    It is ready when `waits` others have ended, or when its sample is admitted if it waits for none. Among ready tasks
    of a resource the one of the first round starts, then of the smallest `key`; on a first-in, first-out resource the
    one that was ready first. A task's round is its sample and `stage` (see `join_stages`). `order` sorts what happens
    at one moment. A transfer `sends` a tensor: its bytes leave during the seconds that come after
    its `latency`. `tells` are the processes that learn of its end: a group of which one member runs a sample, the
    tensors that are in its memory from then on, and the bytes that it receives.
    """

    number: int
    resource: int
    seconds: float
    key: tuple[int, ...]
    order: tuple[int, int, int]
    waits: int
    steps: tuple[TaskOp, ...] = ()
    sends: int = -1
    latency: float = 0.0
    stage: int = 0
    tells: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = ()


@dataclass(frozen=True, slots=True)
class Resource:
    """How many tasks run at a time, and whether ready ones start first in, first out.

    It decides when everything that ends at a moment has ended; if `eager`, at once.
    """

    slots: int = 1
    fifo: bool = False
    eager: bool = False


@dataclass(frozen=True, slots=True)
class PeerProgram:
    """The part of one process in a placement.

    `waiters` are the tasks here that wait for a task (or for `ADMITTED`), `brings` the tensors that are here from its
    end on; `orders` sorts those tasks. `uses` counts how often a tensor is used here, `size` is its bytes. `kept`
    tensors stay until the sample is done. `told` is how many messages of a sample come here, besides that of its
    admission. `turn` and `turns`: the process runs the samples with this remainder. `stages` counts those of all tasks
    of the placement. Only the host has `parties`, how many tell it of every sample, the groups that it `admits` samples
    to, and `outputs`.
    """

    tasks: tuple[ResourceTask, ...] = ()
    resources: tuple[Resource, ...] = ()
    waiters: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    brings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    orders: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    uses: Mapping[int, int] = field(default_factory=dict)
    size: Mapping[int, int] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()
    told: int = 0
    turn: int = 0
    turns: int = 1
    stages: int = 1
    parties: int = 0
    admits: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedClock:
    """The time that all processes share: moment 0 is at `start` of the system's steady clock, in seconds.

    A second of the plan takes `scale` seconds. A process decides `guard` seconds late, so that what is due at a moment
    has arrived when it decides; up to `slack` seconds of delay are caught up, and only what is beyond them counts.
    """

    start: float
    scale: float
    guard: float
    slack: float


@dataclass(frozen=True, slots=True)
class Report:
    """What one process saw.

    `spans` are (task, sample, first moment, last moment) in the order of the ends, `ended` is when the last one was
    seen, in real seconds. `done` are the seconds at which the samples were complete, and `values` their outputs, both
    from the host only. `peak` is the most bytes held at once, `late` the largest delay in real seconds.
    """

    spans: tuple[tuple[int, int, float, float], ...]
    ended: float
    peak: int
    late: float
    moved: int
    done: Mapping[int, float]
    values: Mapping[int, tuple[int, ...]]


def join_stages(stage: int, stages: int, in_flight: int) -> int:
    """The rounds by which a task comes after the first of its sample, where no more samples than these are in flight.

    If devices and links work on one stage of every sample per round, a round takes as long as the busiest of them.
    """
    return stage * in_flight // max(stages, in_flight)


def value_of_input(sample: int) -> int:
    """What stands for the model's inputs of a sample."""
    return _digest((-1, sample))


def value_of_op(op: int, reads: Iterable[tuple[int, int]]) -> int:
    """What stands for the results of an op, from the tensors that it reads and what stands for their contents."""
    return _digest((op, *(number for pair in reads for number in pair)))


def _digest(numbers: tuple[int, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")
