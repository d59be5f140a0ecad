"""Lower bounds for latency from paths through the graph, strong for `subgraph` execution.

Take any path v₁ → … → v_m of ops, and any placement with any calls that can run. An op ends before the op behind it on
the path begins, unless both are in one call, so the value is at least the time of everything that the path passes
through, one after the other: ops on the host, and calls. Calls do not wait for each other in a circle, so no
path returns to a call that it has left: what a call has of the path is a segment v_i … v_j, and all of the
call's time (overhead, receiving, ops, sending) lies between the moments at which the path enters and leaves it.
What lies between two ops of the call is in it too, or it would wait for what waits for it; for the same reason what
comes behind a later op of the path, or before an earlier one, is not (`Beside`). The call's time is at least the
cheapest set of ops that keeps to this and fits on one accelerator (`CheapestCall`). The value is therefore at least
the cheapest way to cut the path into host ops and segments: a shortest path over its positions. Where two ops that
follow each other are in one colocation group, both are on the host or both on one accelerator: segments that meet
there must fit on it together.

Cuts are computed where they matter only. Segments start with what is sure without one (their ops, what crosses
between them and the path); the shortest path is found, its segments are cut exactly, and so on until all of it is
exact. Each of these shortest paths is itself a bound, so that the work may end at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import best_seconds
from placewise.simulate.bounds.cheapest_call import CallCosts, CheapestCall, call_costs
from placewise.simulate.problem_arrays import ProblemArrays, arrays_of, native_problem

LONGEST = 1500
WORK = 1e6
"""So many ops and uses of tensors are looked at by all cuts together, unless there is time for more."""

METHOD, HOPS = "path of minimum cuts", "path with hops"


@dataclass(frozen=True, slots=True, eq=False)
class Cutting:
    """The cheapest way to cut a path: `value` bounds every placement; what is in no segment is on the host.

    `path` [m] are ops; a segment (i, j) is path[i:j]; `run` numbers the accelerators: segments that meet inside a
    group share one. `calls` [n_ops] are sets that may run each segment at what the bound charges, or near it.
    """

    value: float
    path: Ints
    segments: tuple[tuple[int, int], ...]
    run: tuple[int, ...]
    calls: tuple[Bools, ...]


def path_bound(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> Bound:
    """The best bound of a few paths in `subgraph` execution; see `best_cutting`."""
    cutting = best_cutting(problem, work=work, go_on=go_on)
    return Bound(cutting.value if cutting else 0.0, METHOD)


def best_cutting(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> Cutting | None:
    """The cutting with the largest value of a few paths; None if they are too long, or there is no work to spend.

    It stops after `work` ops and uses of tensors, or when `go_on` says so, with what it has.
    """
    a, costs = arrays_of(problem), call_costs(problem)
    host = _host_seconds(problem)
    paths = [longest_path(a, weight) for weight in _weights(problem, a, costs, host)]
    best, each = None, problem.n_ops + len(a.consumers) + 100
    if work < each or min(len(path) for path in paths) > LONGEST:
        return None
    network = CheapestCall(problem, costs)
    for k, path in enumerate(paths):
        if len(path) <= LONGEST and not any(np.array_equal(path, other) for other in paths[:k]):
            cutting, cuts = cut_path(problem, path, host, costs, network, work / each, go_on)
            best = cutting if best is None or cutting.value > best.value else best
            work -= cuts * each
    return best


def hop_bound(problem: Problem) -> Bound:
    """A weaker bound of the same paths for `operator` and `sequential` execution, in seconds.

    A path is cut into segments that fit on an accelerator and ops on the host, and where two of them meet, what one op
    makes for the next must move: the longest of their tensors by the quickest links, once for direct transfers and
    twice between accelerators for staged ones. Ops of one device need not be one call, and may have stopped for others
    in between, so nothing beside the path is charged; but in `sequential` execution all other ops come on top, at
    their best.
    """
    a, costs, host = arrays_of(problem), call_costs(problem)._replace(overhead=0.0), _host_seconds(problem)
    quickest = np.minimum(costs.seconds, host)
    best = 0.0
    for weight in _weights(problem, a, costs, host):
        path = longest_path(a, weight)
        if len(path) > LONGEST:
            continue
        alone = only_path(problem.n_ops, path)
        fits = _fitting(problem, alone, costs)
        seconds = _sure_seconds(problem, path, alone, costs, hops=True)
        seconds[~fits] = np.inf
        value = _Ways(problem, path, host, fits).shortest(seconds)[0]
        if problem.objective.execution == "sequential":
            value += float(np.delete(quickest, path).sum())
        best = max(best, value * (1 - 1e-14 * (problem.n_ops + 1000))) if np.isfinite(value) else best
    return Bound(best, HOPS)


def _host_seconds(problem: Problem) -> Floats:
    return best_seconds(problem, np.flatnonzero(problem.cluster.is_host))


def _weights(problem: Problem, a: ProblemArrays, costs: CallCosts, host: Floats) -> list[Floats]:
    """What a path should have much of: time if every op were a call of its own; best time; host time; ops."""
    alone = costs.seconds + costs.overhead
    made = a.producer >= 0
    alone += np.bincount(a.producer[made], weights=costs.send[made], minlength=problem.n_ops)
    alone += np.bincount(a.consumers, weights=costs.receive[a.consumed], minlength=problem.n_ops)
    weights = [np.minimum(alone, host), np.minimum(costs.seconds, host), host, np.ones(problem.n_ops)]
    return [np.where(np.isfinite(weight), weight, 0.0) for weight in weights]


def longest_path(a: ProblemArrays, weight: Floats) -> Ints:
    """The ops of a path with the largest Σ weight [n_ops], in order."""
    return _native.longest_path(native_problem(a), weight)


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Where every op stands to a path of `length` ops.

    `after` [n_ops] is the last position of the path that leads to the op, −1 if none does; `before` [n_ops] the first
    one that it leads to, `length` if there is none; an op of the path has its own position in both.
    """

    after: Ints
    before: Ints
    length: int

    def inside(self, i: int, j: int) -> Ints:
        """The ops that a call on path[i:j] must have: they lie between two of its ops."""
        return np.flatnonzero((self.after >= i) & (self.before < j)).astype(np.int32)

    def outside(self, i: int, j: int) -> Ints:
        """The ops that it cannot have: something of the path that is not in the call lies between."""
        return np.flatnonzero((self.after >= j) | (self.before < i)).astype(np.int32)

    def sums(self, values: Floats, m: int) -> Floats:
        """Σ values [n_ops] of the ops inside path[i:j], for all i and j [m + 1, m + 1]."""
        between = np.flatnonzero((self.after >= 0) & (self.before < m))
        table = np.zeros((m + 1, m + 1))
        np.add.at(table, (self.after[between], self.before[between] + 1), values[between])
        result: Floats = np.cumsum(np.cumsum(table[::-1], axis=0)[::-1], axis=1)
        return result


def beside_path(a: ProblemArrays, path: Ints) -> Beside:
    """Where every op stands to a path."""
    after, before = _native.locate_beside_path(native_problem(a), path)
    return Beside(after, before, len(path))


def only_path(n_ops: int, path: Ints) -> Beside:
    """As if nothing else were joined to the path."""
    after, before = np.full(n_ops, -1, np.int32), np.full(n_ops, len(path), np.int32)
    after[path] = before[path] = np.arange(len(path))
    return Beside(after, before, len(path))


def cut_path(
    problem: Problem,
    path: Ints,
    host: Floats,
    costs: CallCosts,
    network: CheapestCall,
    cuts: float,
    go_on: Callable[[], bool],
) -> tuple[Cutting, int]:
    """The cutting of one path [m] with about `cuts` cuts at most, and how many were used."""
    m, beside = len(path), beside_path(arrays_of(problem), path)
    shared = _fitting(problem, only_path(problem.n_ops, path), costs)
    seconds, ways = _sure_seconds(problem, path, beside, costs), _Ways(problem, path, host, shared)
    seconds[~_fitting(problem, beside, costs)] = np.inf
    exact: dict[tuple[int, int], Bools] = {}
    used = 0
    while True:
        value, steps = ways.shortest(seconds)
        open_ = [step for step in steps if step not in exact]
        if not open_ or used >= cuts or not go_on():
            break
        for i, j in open_:
            least, exact[i, j] = network.cheapest(beside.inside(i, j), beside.outside(i, j))
            seconds[i, j] = max(seconds[i, j], least)
        used += len(open_)
    steps = [step for step in steps[::-1] if step in exact]
    run = np.cumsum([not (k and ways.tied[i] and steps[k - 1][1] == i) for k, (i, _) in enumerate(steps)]) - 1
    proved = value * (1 - 1e-14 * (m + 1000))
    return Cutting(proved, path, tuple(steps), tuple(run.tolist()), tuple(exact[step] for step in steps)), used


def _sure_seconds(problem: Problem, path: Ints, beside: Beside, costs: CallCosts, *, hops: bool = False) -> Floats:
    """What a call on path[i:j] takes at least [m + 1, m + 1]: inf if it cannot be; entries with i ≥ j mean nothing.

    Its ops, those between them, and the tensors that join it to the ops before and behind it on the path; with
    `hops` only the longest of these, received only where transfers are staged.
    """
    m, staged = len(path), problem.cluster.transfers == "staged"
    endless = ~np.isfinite(costs.seconds)
    along = beside.sums(np.where(endless, 0.0, costs.seconds), m)
    refused = beside.sums(endless.astype(np.float64), m)
    received, sent = np.zeros(m + 1), np.zeros(m + 1)
    for place in range(1, m):
        joining = np.intersect1d(
            problem.graph.inputs_of(int(path[place])), problem.graph.outputs_of(int(path[place - 1]))
        )
        received[place], sent[place] = costs.receive[joining].sum(), costs.send[joining].sum()
        if hops:
            received[place] = costs.receive[joining].max() if staged else 0.0
            sent[place] = costs.send[joining].max()
    result: Floats = along + received[:, None] + sent[None, :] + costs.overhead
    result = np.maximum(result - 1e-12 * along[0, m], 0.0)
    result[refused > 0] = np.inf
    return result


def _fitting(problem: Problem, beside: Beside, costs: CallCosts) -> Bools:
    """Whether the blocks that a call on path[i:j] has fit on one accelerator together [m + 1, m + 1]."""
    m = beside.length
    fitting = np.ones((m + 1, m + 1), np.bool_)
    if not np.isfinite(costs.room):
        return fitting
    order = np.argsort(-beside.after, kind="stable")
    enters = np.full(problem.n_blocks, m)
    at = 0
    for i in range(m - 1, -1, -1):
        while at < len(order) and beside.after[order[at]] == i:
            op = order[at]
            enters[problem.block[op]] = min(enters[problem.block[op]], beside.before[op])
            at += 1
        used = np.cumsum(np.bincount(enters, weights=costs.held, minlength=m + 1)[:m])
        fitting[i, 1:] = used <= costs.room * (1 + 1e-12)
    return fitting


class _Ways:
    """How the segments of one path can be joined."""

    def __init__(self, problem: Problem, path: Ints, host: Floats, fits: Bools) -> None:
        block = problem.block[path]
        self.tied = np.concatenate(([False], block[1:] == block[:-1], [False]))
        self._cutter = _native.PathCutter(host[path], fits, self.tied)

    def shortest(self, seconds: Floats) -> tuple[float, list[tuple[int, int]]]:
        """The least seconds, and the segments (i, j) on accelerators that reach it, the last first."""
        return self._cutter.find_shortest(seconds)
