"""`subgraph` latency (Tarnawski et al. 2020): an accelerator runs each contiguous piece as one call.

A call waits for all its inputs and for the previous call of its device, receives its inputs one after another,
computes, and sends its outputs; only then are they visible. Ops on host devices run as soon as their inputs are there,
any number at a time. A tensor is received once per call: between two calls of one accelerator it goes to host memory
and back. Staged: a call sends each tensor once. Direct: once per destination call, and once to the host, at that link's
speed. The placement may give the calls; by default they are the fewest by alternation depth: an op's call number is how
often a path to it has entered its device. If calls wait for each other in a circle, the placement cannot run.
"""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.simulate.judge.hops import logged_timeline
from placewise.simulate.problem_arrays import native_problem


def cut_calls(problem: Problem, device: Ints) -> Ints:
    """The published rule: the call number of each op [n_ops] on its accelerator, −1 for ops on host devices."""
    return _native.subgraph_calls(native_problem(problem), device)


def makespans(problem: _native.Problem, placements: Ints, first: int, last: int, values: Floats) -> None:
    """Write the seconds of placements [K, n_ops], rows first to last, to `values` [K]; calls by the published rule."""
    _native.subgraph_makespans(problem, placements, first, last, values)


def timeline(problem: Problem, device: Ints, call: Ints | None = None) -> tuple[float, Timeline]:
    """The makespan of one placement, when each op ran, and each call's transfers, one after another."""
    numbers = cut_calls(problem, device) if call is None else _without_gaps(device, call)
    value, start, finish, hops = _native.subgraph_timeline(native_problem(problem), device, numbers)
    return value, logged_timeline(start, finish, hops)


def _without_gaps(device: Ints, call: Ints) -> Ints:
    """The calls [n_ops] renumbered from 0 on each device, in the same order."""
    lowest = int(call.min(initial=0))
    span = int(call.max(initial=0)) - lowest + 1
    calls, dense = np.unique(device.astype(np.int64) * span + call - lowest, return_inverse=True)
    first = np.searchsorted(calls, device.astype(np.int64) * span)
    numbers: Ints = (dense - first).astype(np.int32)
    return numbers
