"""A lower bound for latency in `operator` execution: load between heads and tails (docs/judge.md).

Ops with head ≥ h and tail ≥ q run in the window from h to T − q, where every stream of a device has T − q − h seconds:
T ≥ h + q + L, where L is the least load of the busiest stream over all assignments of these ops (Carlier 1982, "The
one-machine sequencing problem").

Heads and tails are longest paths at best times, longer by what intervals of a path prove (`PathTimes`). Intervals are
proved along a longest path, of which every part is a longest path too. So an op of it starts after what is proved, and
any other path to an op, through a part of this one, is no longer than with that part's own seconds.

L is bounded by the fractional assignment (`assignment.py`), whose prices also hold for links between accelerators and
the host: the m queues to the host take m (T − q − h) seconds at most within the window, and so do those from it. At
given prices the least assignment is a minimum cut (`host_cut.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Longs
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import DeviceClasses, best_seconds, block_sums
from placewise.simulate.bounds.assignment import find_prices
from placewise.simulate.bounds.host_cut import Sides, list_traffic
from placewise.simulate.bounds.intervals import NOTHING, PathTimes
from placewise.simulate.problem_arrays import arrays_of, native_problem

METHOD = "load between heads and tails"
WORK = 0.3
"""The work of all windows: about as many seconds."""
_GRID = 96
"""The most heads, and tails, that a window may begin and end at."""
_APART = 32
"""The heads, and tails, of windows that are bounded differ by more than this part of the list."""
_CLOSE = 0.002
"""A window that promises no more than this share above what is known is not bounded."""
_ROUNDS = 60
"""The most prices for one window."""
_ROUND_WORK, _UNIT_WORK = 2e-4, 1e-7
"""The work of a round, and of each of its blocks, classes and uses of tensors."""


class PathBounds(NamedTuple):
    """Seconds of each op [n_ops] in any placement and order: at least its own, those before, and those after it."""

    seconds: Floats
    head: Floats
    tail: Floats


class HeadTailWindows(NamedTuple):
    """Windows from heads [n] to tails [k], and the seconds at best of the ops in each [n, k]."""

    heads: Floats
    tails: Floats
    load: Floats


def load_bound(
    problem: Problem,
    classes: DeviceClasses,
    times: Floats,
    paths: PathBounds,
    *,
    above: float = 0.0,
    work: float = WORK,
    go_on: Callable[[], bool] = lambda: True,
) -> Bound:
    """The largest h + q + L of the windows that promise most, in seconds; 0 if none promises more than `above`.

    `times` [n_blocks, n_classes] is inf where a block may not run. It ends after `work` or when `go_on` is False.
    """
    streams = np.array([problem.cluster.devices[d].streams for d in classes.example.tolist()])
    machines = classes.count * streams
    windows = list_windows(paths)
    accelerators = ~problem.cluster.is_host[classes.example]
    wide = float(machines[accelerators if accelerators.any() else slice(None)].sum())
    promise = windows.heads[:, None] + windows.tails[None, :] + windows.load / wide
    promise[windows.load == 0] = 0
    spread = _Spread(problem, classes, times, machines, paths)
    best, near = 0.0, [len(windows.heads) // _APART, len(windows.tails) // _APART]
    while work > 0 and go_on():
        i, j = np.unravel_index(promise.argmax(), promise.shape)
        if promise[i, j] <= max(best, above) * (1 + _CLOSE):
            break
        h, q = float(windows.heads[i]), float(windows.tails[j])
        value, spent = spread.bound(h, q, max(best, above) - h - q, work, go_on)
        best, work = max(best, (h + q + value) * (1 - 1e-14 * (problem.n_ops + 1000))), work - spent
        promise[max(i - near[0], 0) : i + near[0] + 1, max(j - near[1], 0) : j + near[1] + 1] = 0
    return Bound(best, METHOD)


def bound_paths(problem: Problem, known: PathTimes = NOTHING) -> PathBounds:
    """The best time of every op, and the longest paths before and after it, longer by what is known of one path."""
    seconds = best_seconds(problem, np.arange(problem.n_devices))
    native, none = native_problem(problem), np.zeros(problem.graph.n_tensors)
    early, late = np.zeros(problem.n_ops), np.zeros(problem.n_ops)
    if len(known.path):
        path, own = known.path, seconds[known.path]
        early[path[1:]] = np.maximum(known.start[1:] - known.start[:-1] - own[:-1], 0.0)
        late[path[:-1]] = np.maximum(known.rest[:-1] - known.rest[1:] - own[1:], 0.0)
    head: Floats = _native.downward_ranks(native, seconds + early, none) + early
    tail: Floats = _native.upward_ranks(native, seconds + late, none) - seconds
    return PathBounds(seconds, head, np.maximum(tail, 0.0))


def list_windows(paths: PathBounds) -> HeadTailWindows:
    """Windows that begin and end at evenly chosen heads and tails."""
    seconds, head, tail = paths
    heads, tails = _choose(head), _choose(tail)
    load = np.zeros((len(heads), len(tails)))
    at = np.searchsorted(heads, head, "right") - 1, np.searchsorted(tails, tail, "right") - 1
    np.add.at(load, at, seconds)
    return HeadTailWindows(heads, tails, load[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1])


def _choose(values: Floats) -> Floats:
    every = np.unique(values)
    return every[np.unique(np.linspace(0, len(every) - 1, _GRID).astype(np.intp))]


class _Spread:
    """Assignments of the ops in a window to classes of devices, with tensors that cross to the host and back."""

    def __init__(
        self,
        problem: Problem,
        classes: DeviceClasses,
        times: Floats,
        machines: Longs,
        paths: PathBounds,
    ) -> None:
        a, host = arrays_of(problem), problem.n_devices
        seconds, head, tail = paths
        self._problem, self._classes, self._head, self._tail = problem, classes, head, tail
        self._usable, self._n = np.isfinite(times), len(machines)
        self._end = np.where(a.producer >= 0, (head + seconds)[a.producer], 0.0)
        self._after = tail + seconds
        devices = np.flatnonzero(~problem.cluster.is_host & problem.allowed.any(axis=0))
        queues = [len(np.unique(a.queue[devices, host])), len(np.unique(a.queue[host, devices]))]
        queues = queues if a.n_queues else [len(a.producer)] * 2
        self._machines = np.concatenate((machines, np.maximum(queues, 1)))

    def bound(self, h: float, q: float, least: float, work: float, go_on: Callable[[], bool]) -> tuple[float, float]:
        """A lower bound on the seconds of the window from h to T − q, and the work spent; it may stop below `least`."""
        problem, a, n = self._problem, arrays_of(self._problem), self._n
        inside, seconds = (self._head >= h) & (self._tail >= q), problem.costs.op_seconds
        devices = self._classes.example.tolist()
        columns = [block_sums(problem, np.where(inside & problem.allowed[:, d], seconds[:, d], 0.0)) for d in devices]
        times = np.where(self._usable, np.stack(columns, axis=1), np.inf)
        counted = (self._end[a.consumed] >= h) & (self._after[a.consumers] >= q)
        traffic = list_traffic(problem, counted, a.output & (self._end >= h) & (q <= 0))
        sides = Sides(problem, self._classes, times, traffic)

        done = 0

        def spread(pace: Floats, per_byte: Floats) -> tuple[float, Floats, Floats]:
            nonlocal done
            done += 1
            price, used, moved, held = sides.assign(pace[:n], pace[n:], per_byte)
            return price, np.concatenate((used, moved)), held

        each = _ROUND_WORK + _UNIT_WORK * (times.size + 4 * (len(traffic.tensor) if traffic else 0))
        rounds = max(min(int(work / each), _ROUNDS), 1)
        value, _ = find_prices(
            spread, self._machines, sides.room, sides.scale, sides.unit, rounds=rounds, least=least, go_on=go_on
        )
        return value, done * each
