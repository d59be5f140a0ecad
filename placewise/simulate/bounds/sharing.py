"""A lower bound for latency in `operator` and `subgraph` execution: ops that must share a device, or a call.

docs/judge.md says which values are refuted; the largest is found by bisection. Heads and tails are those of
`windows.py`; interrupting the ops of one device as Jackson's rule does can only end earlier (Carlier 1982, "The
one-machine sequencing problem"). That ops which cannot wait for a transfer must share a device is the bound of
Papadimitriou and Yannakakis (1990).

A schedule in `subgraph` execution is no schedule in `operator` execution that waits longer, since hosts run any number
of ops at once. But ops that cannot wait for what calls send and receive are in one call, or all on hosts, without their
groups, whose ops may be in several calls. T is refuted if a path through the call, with all of the call's ops, exceeds
it on every accelerator, and a longest path with the times of the host exceeds it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import DeviceClasses, best_seconds, unshared_bytes
from placewise.simulate.bounds.bisection import find_refuted
from placewise.simulate.bounds.cheapest_call import call_costs
from placewise.simulate.bounds.intervals import least_delays
from placewise.simulate.bounds.propagation import one_machine_end
from placewise.simulate.bounds.windows import PathBounds
from placewise.simulate.problem_arrays import arrays_of, find_crossing_uses, native_problem

METHOD, IN_CALLS = "ops that must share a device", "ops that must share a call"
WORK = 0.1
"""The work of all values of T: about as many seconds."""
_SURE = 1 + 1e-9
"""What a sum must exceed T by, as it is computed in floating point."""
_SETS = 40
"""The most sets that are scheduled for one T, those with most to do."""
_OP_WORK, _EDGE_WORK = 3e-6, 4e-7
"""The work of scheduling an op, and of looking at a use of a tensor."""


class Uses(NamedTuple):
    """Uses of tensors by other groups: the ops that make and read them, and the seconds of the quickest transfer."""

    maker: Ints
    reader: Ints
    delay: Floats


def sharing_bound(
    problem: Problem,
    classes: DeviceClasses,
    times: Floats,
    paths: PathBounds,
    *,
    above: float = 0.0,
    work: float = WORK,
    go_on: Callable[[], bool] = lambda: True,
) -> Bound:
    """The largest T that is refuted, in seconds, starting from `above`; 0 if none above it is.

    `times` [n_blocks, n_classes] is inf where a block may not run. It ends after `work` or when `go_on` is False.
    """
    test = _Test(problem, classes, times, paths, work, go_on)
    low = max(above, float(np.sum(paths, axis=0).max(initial=0.0)))
    best = find_refuted(low, test.refutes, test.goes_on)
    return Bound(best, IN_CALLS if problem.objective.execution == "subgraph" else METHOD)


class _Test:
    """What must share a device if a placement ends by T, and whether that is impossible."""

    def __init__(
        self,
        problem: Problem,
        classes: DeviceClasses,
        times: Floats,
        paths: PathBounds,
        most: float,
        go_on: Callable[[], bool],
    ) -> None:
        self._problem, (self._seconds, self._head, self._tail) = problem, paths
        self._usable = np.isfinite(times)
        self._classes = classes
        self._in_calls = problem.objective.execution == "subgraph"
        self._owner = np.arange(problem.n_ops) if self._in_calls else problem.block.astype(np.int64)
        self._host_seconds = best_seconds(problem, np.flatnonzero(problem.cluster.is_host))
        self._held = unshared_bytes(problem)
        self._uses = list_uses(problem)
        self._work, self._most, self._go_on = 0.0, most, go_on

    def goes_on(self) -> bool:
        """Whether work and time are left. What is found without looking further holds too."""
        return self._work < self._most and self._go_on()

    def refutes(self, latest: float) -> bool:
        """Whether no placement ends by `latest`."""
        over, uses = latest * _SURE, self._uses
        maker, reader = uses.maker, uses.reader
        seconds, head, tail = self._seconds, self._head, self._tail
        before, after = (head + seconds)[maker] + uses.delay, uses.delay + (seconds + tail)[reader]
        block, sets = self._owner, np.arange(int(self._owner.max()) + 1)
        joined = before + (seconds + tail)[reader] > over
        joins = block[maker[joined]], block[reader[joined]]
        while len(joins[0]) and self.goes_on():
            sets = join_sets(sets, *joins)
            self._work += _EDGE_WORK * len(maker)
            apart = sets[block[maker]] != sets[block[reader]]
            joins = _find_neighbours(
                np.concatenate((reader[apart], maker[apart])),
                sets[block[np.concatenate((maker[apart], reader[apart]))]],
                np.concatenate((before[apart], np.zeros(int(apart.sum())))),
                np.concatenate((np.zeros(int(apart.sum())), after[apart])),
                (seconds, head, tail),
                over,
            )
            joins = block[joins[0]], joins[1]
        return self._overloads(sets[block], over)

    def _overloads(self, set_of: Longs, over: float) -> bool:
        """Whether some set [n_ops] does not end in time, or fits, on any device."""
        load = np.bincount(set_of, weights=self._seconds)
        order = np.argsort(set_of, kind="stable")
        first = np.searchsorted(set_of[order], np.arange(len(load) + 1))
        for number in np.argsort(-load, kind="stable")[:_SETS].tolist():
            ops = order[first[number] : first[number + 1]]
            if load[number] > 0 and not any(self._may_run(ops, c, over) for c in range(len(self._classes.count))):
                return True
        return False

    def _may_run(self, ops: Longs, c: int, over: float) -> bool:
        """Whether ops fit and may end in time on one device of class c."""
        problem, device = self._problem, int(self._classes.example[c])
        if self._in_calls and problem.cluster.is_host[device]:
            return self._longest_path(ops, self._host_seconds[ops]) <= over
        blocks = np.unique(problem.block[ops])
        if not self._usable[blocks, c].all():
            return False
        if float(self._held[blocks].sum()) > float(problem.capacity[device]) * _SURE:
            return False
        if self._in_calls:
            own = float(problem.costs.op_seconds[ops, device].sum())
            outside = self._longest_path(ops, np.zeros(len(ops)))
            return own + outside + problem.cluster.devices[device].call_overhead <= over
        if problem.cluster.devices[device].streams > 1:
            return True
        self._work += _OP_WORK * len(ops)
        columns = self._head[ops], problem.costs.op_seconds[ops, device], self._tail[ops]
        tasks = list(zip(*(column.tolist() for column in columns), strict=True))
        return one_machine_end(tasks) <= over

    def _longest_path(self, ops: Longs, own: Floats) -> float:
        """The longest path through any of some ops, in seconds, if they take their `own`."""
        seconds = self._seconds.copy()
        seconds[ops] = own
        if not np.isfinite(own).all():
            return np.inf
        self._work += _OP_WORK * len(seconds)
        native, none = native_problem(self._problem), np.zeros(self._problem.graph.n_tensors)
        before, after = _native.downward_ranks(native, seconds, none), _native.upward_ranks(native, seconds, none)
        return float((before + after)[ops].max())


def list_uses(problem: Problem) -> Uses:
    """The uses of tensors by groups that do not make them; in `subgraph` execution all, and what calls pay for them."""
    a = arrays_of(problem)
    maker = a.producer[a.consumed]
    if problem.objective.execution == "subgraph":
        costs, used = call_costs(problem), np.flatnonzero(maker >= 0)
        delay = costs.send + costs.receive + costs.overhead
        if problem.allowed[:, problem.cluster.is_host].any():
            delay = np.minimum(costs.send, costs.receive + costs.overhead)
        return Uses(maker[used], a.consumers[used], delay[a.consumed[used]])
    delay = least_delays(problem)
    other = find_crossing_uses(problem)
    return Uses(maker[other], a.consumers[other], delay[a.consumed[other]])


def _find_neighbours(
    op: Longs, beside: Longs, before: Floats, after: Floats, times: tuple[Floats, Floats, Floats], over: float
) -> tuple[Longs, Longs]:
    """Ops that must be in a set `beside` them, and those sets: elsewhere they would start too late or hold it up."""
    seconds, head, tail = times
    wide = int(beside.max(initial=0)) + 1
    key, at = np.unique(op.astype(np.int64) * wide + beside, return_inverse=True)
    which, near = key // wide, key % wide
    start, rest = head[which].copy(), tail[which].copy()
    np.maximum.at(start, at, before)
    np.maximum.at(rest, at, after)
    joined = start + seconds[which] + rest > over
    return which[joined], near[joined]


def join_sets(sets: Longs, one: Longs, other: Longs) -> Longs:
    """The set of each block [n_blocks] after joining pairs of sets or blocks: the number of one of its blocks."""
    parent = sets.tolist()

    def find(block: int) -> int:
        while parent[block] != block:
            parent[block] = parent[parent[block]]
            block = parent[block]
        return block

    for a, b in {(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)}:
        parent[find(a)] = find(b)
    return np.array([find(block) for block in range(len(parent))], np.int64)
