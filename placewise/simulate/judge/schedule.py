"""`operator` latency: every device runs one op at a time (or its streams), transfers overlap compute.

The rules, which the plain twin in the tests follows word by word:
a tensor leaves when its producer finishes, one queue per ordered pair of locations (links that share a wire
share a queue), first in first out, by (finish, producer, tensor, destination); staged tensors pass host
memory and queue there a second time. Model inputs are in host memory at time 0, model outputs must reach it.
A device that has a free stream starts, of the ops whose inputs are all there, the one with the smallest
priority; it never idles while one is ready. At equal times arrivals come before starts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, frozen
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.simulate.judge.hops import logged_timeline
from placewise.simulate.judge.ranks import upward_ranks
from placewise.simulate.problem_arrays import ProblemArrays, native_problem


class ScheduleInputs(NamedTuple):
    """What the schedules of one problem share: its columns, and each op's priority."""

    native: _native.Problem
    priority: Ints
    by_priority: Ints


def schedule_inputs(problem: Problem, a: ProblemArrays, order: Ints | None = None) -> ScheduleInputs:
    """Columns and priorities; `order` [n_ops] (smaller first) replaces the upward rank, ties by op index."""
    key = -upward_ranks(problem, a) if order is None else order
    by_priority = np.argsort(key, kind="stable")
    priority = np.empty(len(by_priority), np.int32)
    priority[by_priority] = np.arange(len(by_priority), dtype=np.int32)
    return ScheduleInputs(native_problem(a), frozen(priority, np.int32), frozen(by_priority, np.int32))


def makespans(prepared: ScheduleInputs, placements: Ints, first: int, last: int, values: Floats) -> None:
    """Seconds of placements [K, n_ops], rows first to last, into `values` [K]; inf if an op cannot run where it is."""
    _native.operator_makespans(
        prepared.native, prepared.priority, prepared.by_priority, placements, first, last, values
    )


def timeline(prepared: ScheduleInputs, device: Ints) -> tuple[float, Timeline]:
    """The makespan of one placement and everything that happened."""
    value, start, finish, hops = _native.operator_timeline(
        prepared.native, prepared.priority, prepared.by_priority, device
    )
    return value, logged_timeline(start, finish, hops)
