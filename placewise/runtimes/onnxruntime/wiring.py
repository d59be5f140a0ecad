"""What the workers are told: who runs which piece after which, where tensors lie, and who rings at whose door."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from placewise.processes.arena import Arena, aligned

CELL = 8
"""Whole numbers of 8 bytes from one cell of the board to the next: a cache line."""
GO = 0
"""The cell that is 1 as soon as samples may start; the states of the workers follow it, then the counters."""
IDLE, WAITING, RUNNING = 0, 1, 2
"""States of a worker; from RUNNING on, the number of its piece is added."""


class Role(Enum):
    """Whether a tensor is given by the user, handed on from piece to piece, or given back."""

    INPUT = "input"
    INNER = "inner"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Kind:
    """A tensor that is handed over: its role, ONNX's element type, numpy's, its shape and its bytes."""

    role: Role
    element: int
    dtype: Any
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Region:
    """Where the copies of a tensor lie: `count` of them from `offset`, `stride` bytes apart."""

    kind: Kind
    offset: int
    stride: int
    count: int


@dataclass(frozen=True, slots=True)
class Work:
    """One piece, as one worker runs it.

    It runs the samples `first`, `first` + `step`, …; after each, `cell` holds the next. A sample can begin when every
    group in `waits` has it: the cell of the member whose turn the sample was is beyond it. Where there is nothing to
    wait for, a sample begins when fewer than all that may be in flight are. `rings` are the workers that wait for the
    piece. `ends` says that nothing in the model comes after it. `model` is a serialized model, or the path of one.
    """

    number: int
    name: str
    model: bytes | str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    cell: int
    first: int
    step: int
    waits: tuple[tuple[int, ...], ...]
    rings: tuple[int, ...]
    ends: bool


@dataclass(frozen=True, slots=True)
class Seat:
    """What one worker is, among all: its place in their row, the descriptors that it shares, and how it computes.

    `last` are the cells of the pieces that end a sample, in groups of members. `spin` is how many seconds it looks out
    for work before it sleeps until somebody rings; `first` lets it go before other programs.
    """

    row: int
    board: int
    cells: int
    data: int
    doors: tuple[int, ...]
    last: tuple[tuple[int, ...], ...]
    device: str
    provider: str
    provider_options: Mapping[str, str]
    session_options: Mapping[str, str]
    threads: int
    spin: float
    first: bool


def board_of(arena: Arena, cells: int) -> Any:
    """The board as one whole number per cell, which every worker and its parent see."""
    columns: Any = arena.view(0, (cells * CELL,), "int64")
    return memoryview(columns)[::CELL]


def laid_out(kinds: Mapping[str, Kind], inputs: int, ring: int, outputs: int) -> tuple[int, dict[str, Region]]:
    """Where every tensor lies, and how many bytes that takes: so many copies of each role."""
    copies = {Role.INPUT: inputs, Role.INNER: ring, Role.OUTPUT: outputs}
    regions, offset = {}, 0
    for name, kind in kinds.items():
        stride = aligned(kind.nbytes)
        regions[name] = Region(kind, offset, stride, copies[kind.role])
        offset += stride * copies[kind.role]
    return offset, regions


def is_past(board: Any, groups: Iterable[tuple[int, ...]], sample: int) -> bool:
    """Whether every group has done this sample: the member whose turn it was counts."""
    return all(board[group[sample % len(group)]] > sample for group in groups)


def nbytes_of(shape: tuple[int, ...], itemsize: int) -> int:
    return math.prod(shape) * itemsize
