"""Lower bounds for latency from paths through the graph, strong for `subgraph` execution (docs/judge.md).

The value is at least that of the cheapest partition of a path v₁ → … → v_m into host ops and segments v_i … v_j, each
in a call of its own: a shortest path over its positions. Ops between two ops of a call are in it too, or it would wait
for itself; for the same reason ops after a later op of the path, or before an earlier one, are not (`PathPositions`).
The call's time is at least that of the cheapest set of ops that meets these conditions and fits on one accelerator
(`CheapestCall`). Two consecutive ops of one colocation group are both on the host or both on one accelerator: segments
that meet there must fit on it together.

Segments start with a simple lower bound (their ops, and the tensors between them and the path). The segments of the
shortest path are then cut exactly, until all of a shortest path is exact. Each shortest path is itself a bound, so that
the work may end at any moment.
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
"""Ops and uses of tensors that all cuts together may process by default."""

METHOD, HOPS = "path of minimum cuts", "path with hops"


@dataclass(frozen=True, slots=True, eq=False)
class Cutting:
    """The cheapest partition of a path: `value` bounds every placement; ops in no segment are on the host.

    `path` [m] are ops; a segment (i, j) is path[i:j]; `run` numbers the accelerators: segments that meet inside a
    group share one. `calls` [n_ops] are sets of ops that run each segment at about the cost in the bound.
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
    """The cutting with the largest value over a few paths; None if they are too long or `work` is too small.

    It ends after `work` ops and uses of tensors, or when `go_on` returns False, with the best so far.
    """
    a, costs = arrays_of(problem), call_costs(problem)
    host = _host_seconds(problem)
    paths = list_long_paths(problem, a, costs, host)
    best, each = None, problem.n_ops + len(a.consumers) + 100
    if work < each or not paths:
        return None
    network = CheapestCall(problem, costs)
    for path in paths:
        cutting, cuts = cut_path(problem, path, host, costs, network, work / each, go_on)
        best = cutting if best is None or cutting.value > best.value else best
        work -= cuts * each
    return best


def hop_bound(problem: Problem) -> Bound:
    """A weaker bound of the same paths for `operator` and `sequential` execution, in seconds.

    A path is cut into segments that fit on an accelerator and ops on the host. Where two of these meet, the tensors
    between their ops must move: the longest of them counts, by the quickest links, once for direct transfers and twice
    between accelerators for staged ones. A device may run other ops in between, so nothing beside the path counts; in
    `sequential` execution all other ops are added at their best times.
    """
    a, costs, host = arrays_of(problem), call_costs(problem)._replace(overhead=0.0), _host_seconds(problem)
    quickest = np.minimum(costs.seconds, host)
    best = 0.0
    for path in list_long_paths(problem, a, costs, host):
        alone = only_path(problem.n_ops, path)
        fits = _fits(problem, alone, costs)
        seconds = _sure_seconds(problem, path, alone, costs, hops=True)
        seconds[~fits] = np.inf
        value = _SegmentGraph(problem, path, host, fits).shortest(seconds)[0]
        if problem.objective.execution == "sequential":
            value += float(np.delete(quickest, path).sum())
        best = max(best, value * (1 - 1e-14 * (problem.n_ops + 1000))) if np.isfinite(value) else best
    return Bound(best, HOPS)


def _host_seconds(problem: Problem) -> Floats:
    return best_seconds(problem, np.flatnonzero(problem.cluster.is_host))


def _weights(problem: Problem, a: ProblemArrays, costs: CallCosts, host: Floats) -> list[Floats]:
    """Weights for longest paths: time with each op as a call of its own, best time, time on the host, and 1."""
    alone = costs.seconds + costs.overhead
    made = a.producer >= 0
    alone += np.bincount(a.producer[made], weights=costs.send[made], minlength=problem.n_ops)
    alone += np.bincount(a.consumers, weights=costs.receive[a.consumed], minlength=problem.n_ops)
    weights = [np.minimum(alone, host), np.minimum(costs.seconds, host), host, np.ones(problem.n_ops)]
    return [np.where(np.isfinite(weight), weight, 0.0) for weight in weights]


def list_long_paths(problem: Problem, a: ProblemArrays, costs: CallCosts, host: Floats) -> list[Ints]:
    """The longest path by each weight, once, if it is not too long."""
    paths = (longest_path(problem, weight) for weight in _weights(problem, a, costs, host))
    return list({path.tobytes(): path for path in paths if len(path) <= LONGEST}.values())


def longest_path(problem: Problem, weight: Floats) -> Ints:
    """The ops of a path with the largest Σ weight [n_ops], in order."""
    return _native.longest_path(native_problem(problem), weight)


@dataclass(frozen=True, slots=True, eq=False)
class PathPositions:
    """The position of each op relative to a path of `length` ops.

    `after` [n_ops] is the last position of the path that leads to the op, −1 without one; `before` [n_ops] the first
    one that the op leads to, `length` without one. An op of the path has its own position in both.
    """

    after: Ints
    before: Ints
    length: int

    def inside(self, i: int, j: int) -> Ints:
        """The ops that a call with path[i:j] must contain: they lie between two of its ops."""
        return np.flatnonzero((self.after >= i) & (self.before < j)).astype(np.int32)

    def outside(self, i: int, j: int) -> Ints:
        """The ops that it cannot contain: an op of the path outside the call lies between."""
        return np.flatnonzero((self.after >= j) | (self.before < i)).astype(np.int32)

    def sums(self, values: Floats, m: int) -> Floats:
        """Σ values [n_ops] of the ops inside path[i:j], for all i and j [m + 1, m + 1]."""
        between = np.flatnonzero((self.after >= 0) & (self.before < m))
        table = np.zeros((m + 1, m + 1))
        np.add.at(table, (self.after[between], self.before[between] + 1), values[between])
        return np.cumsum(np.cumsum(table[::-1], axis=0)[::-1], axis=1)


def path_positions(problem: Problem, path: Ints) -> PathPositions:
    """The position of each op relative to a path."""
    after, before = _native.locate_beside_path(native_problem(problem), path)
    return PathPositions(after, before, len(path))


def only_path(n_ops: int, path: Ints) -> PathPositions:
    """Positions that ignore all ops beside the path."""
    after, before = np.full(n_ops, -1, np.int32), np.full(n_ops, len(path), np.int32)
    after[path] = before[path] = np.arange(len(path))
    return PathPositions(after, before, len(path))


def cut_path(
    problem: Problem,
    path: Ints,
    host: Floats,
    costs: CallCosts,
    network: CheapestCall,
    cuts: float,
    go_on: Callable[[], bool],
) -> tuple[Cutting, int]:
    """The cutting of one path [m] with about `cuts` cuts at most, and the number of cuts made."""
    m, beside = len(path), path_positions(problem, path)
    shared = _fits(problem, only_path(problem.n_ops, path), costs)
    seconds, segments = _sure_seconds(problem, path, beside, costs), _SegmentGraph(problem, path, host, shared)
    seconds[~_fits(problem, beside, costs)] = np.inf
    exact: dict[tuple[int, int], Bools] = {}
    used = 0
    while True:
        value, steps = segments.shortest(seconds)
        open_ = [step for step in steps if step not in exact]
        if not open_ or used >= cuts or not go_on():
            break
        for i, j in open_:
            least, exact[i, j] = network.cheapest(beside.inside(i, j), beside.outside(i, j))
            seconds[i, j] = max(seconds[i, j], least)
        used += len(open_)
    steps = [step for step in steps[::-1] if step in exact]
    run = np.cumsum([not (k and segments.tied[i] and steps[k - 1][1] == i) for k, (i, _) in enumerate(steps)]) - 1
    proved = value * (1 - 1e-14 * (m + 1000))
    return Cutting(proved, path, tuple(steps), tuple(run.tolist()), tuple(exact[step] for step in steps)), used


def _sure_seconds(
    problem: Problem, path: Ints, beside: PathPositions, costs: CallCosts, *, hops: bool = False
) -> Floats:
    """The least seconds of a call with path[i:j] [m + 1, m + 1], inf if impossible; entries with i ≥ j are undefined.

    They count its ops, the ops between them, and the tensors between it and its neighbours on the path; with `hops`
    only the longest of these tensors, received only where transfers are staged.
    """
    m, staged = len(path), problem.cluster.transfers == "staged"
    endless = ~np.isfinite(costs.seconds)
    along = beside.sums(np.where(endless, 0.0, costs.seconds), m)
    places, tensors = _tensors_along(problem, path)
    received, sent = np.zeros(m + 1), np.zeros(m + 1)
    join = np.maximum.at if hops else np.add.at
    if staged or not hops:
        join(received, places, costs.receive[tensors])
    join(sent, places, costs.send[tensors])
    result: Floats = along + received[:, None]
    result += sent[None, :] + costs.overhead
    result -= 1e-12 * along[0, m]
    np.maximum(result, 0.0, out=result)
    if endless.any():
        result[beside.sums(endless.astype(np.float64), m) > 0] = np.inf
    return result


def _tensors_along(problem: Problem, path: Ints) -> tuple[Ints, Ints]:
    """The tensors that an op of the path passes to the next one: the position of the reader, and the tensor."""
    a, position = arrays_of(problem), np.full(problem.n_ops + 1, -1, np.int32)
    position[path] = np.arange(len(path))
    reader, writer = position[a.consumers], position[a.producer[a.consumed]]
    joining = np.flatnonzero((writer >= 0) & (reader == writer + 1))
    return reader[joining], a.consumed[joining]


def _fits(problem: Problem, beside: PathPositions, costs: CallCosts) -> Bools:
    """Whether the blocks of a call with path[i:j] fit on one accelerator [m + 1, m + 1]."""
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


class _SegmentGraph:
    """The ways to join the segments of one path."""

    def __init__(self, problem: Problem, path: Ints, host: Floats, fits: Bools) -> None:
        block = problem.block[path]
        self.tied = np.concatenate(([False], block[1:] == block[:-1], [False]))
        self._cutter = _native.PathCutter(host[path], fits, self.tied)

    def shortest(self, seconds: Floats) -> tuple[float, list[tuple[int, int]]]:
        """The least seconds, and the segments (i, j) on accelerators that reach it, the last first."""
        return self._cutter.find_shortest(seconds)
