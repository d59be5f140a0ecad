"""`operator` latency: each device runs one op at a time (or one per stream); transfers overlap compute.

The rules, which the plain twin in the tests follows to the letter:
a tensor leaves when its producer finishes. Each ordered pair of locations has a queue (links that share a wire share a
queue), first in first out, by (moment, producer, tensor, destination); staged tensors pass through host memory and
queue there again. Model inputs are in host memory at time 0, and model outputs must reach it. A device with a free
stream starts the op with the smallest priority among those whose inputs have arrived; it never idles while an op is
ready. At equal times arrivals come before starts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem, cached_per_problem
from placewise.model.result import Timeline
from placewise.simulate.judge.hops import logged_timeline
from placewise.simulate.judge.ranks import round_ranks, upward_ranks
from placewise.simulate.latest import Latest
from placewise.simulate.problem_arrays import native_problem


class ScheduleInputs(NamedTuple):
    """What all schedules of a problem share: its columns, the priority of each op, and the ops by priority."""

    native: _native.Problem
    priority: Ints
    by_priority: Ints


def schedule_inputs(problem: Problem, order: Ints | None = None) -> ScheduleInputs:
    """Columns and priorities; `order` [n_ops] (smaller first) replaces the upward rank, ties by op index."""
    return _inputs_by_rank(problem) if order is None else _inputs_by(problem, order)


@cached_per_problem
def _inputs_by_rank(problem: Problem) -> ScheduleInputs:
    return _inputs_by(problem, -round_ranks(upward_ranks(problem)))


def _inputs_by(problem: Problem, key: Ints | Floats) -> ScheduleInputs:
    by_priority = np.argsort(key, kind="stable")
    priority = np.empty(len(by_priority), np.int32)
    priority[by_priority] = np.arange(len(by_priority), dtype=np.int32)
    return ScheduleInputs(native_problem(problem), frozen(priority, np.int32), frozen(by_priority, np.int32))


def makespans(inputs: ScheduleInputs, placements: Ints, first: int, last: int, values: Floats) -> None:
    """Write the seconds of placements [K, n_ops], rows first to last, into `values` [K]; inf if an op cannot run."""
    _native.operator_makespans(inputs.native, inputs.priority, inputs.by_priority, placements, first, last, values)


_LATEST = Latest[tuple[float, Timeline]]()


def timeline(problem: Problem, placement: Placement) -> tuple[float, Timeline]:
    """The makespan of a placement, and its timeline, to which nobody may write."""
    known = _LATEST.find(problem, placement)
    if known is not None:
        return known
    inputs = schedule_inputs(problem, placement.order)
    value, start, finish, hops = _native.operator_timeline(
        inputs.native, inputs.priority, inputs.by_priority, placement.device
    )
    found = value, logged_timeline(start, finish, hops)
    _LATEST.keep(problem, placement, found)
    return found
