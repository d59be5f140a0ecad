"""Favourite children: the reader that each op should share its device with, by linear programming or greedily.

Hanen and Munier, "An approximation algorithm for scheduling dependent tasks on m processors with small communication
delays", ETFA 1995; as in Jeon et al., Baechi, SoCC 2020, section 3.3. For an unlimited number of devices, with s_i the
start of op i, p_i its seconds and c_ij the seconds of a transfer to its reader j:

    minimize w    s_i + p_i ≤ w,    s_i + p_i + c_ij x_ij ≤ s_j,    0 ≤ x_ij ≤ 1,
    Σ_j x_ij ≥ |readers of i| − 1,    Σ_i x_ij ≥ |makers for j| − 1

An x of 0 marks a favourite child. x is rounded at a half, so that no op has two favourite children or two favourite
parents. Seconds are means, as in upward ranks. Ops of one colocation group share a device anyway: transfers between
them cost nothing and mark no favourite, nor do transfers that take no time.

GLOP takes a quarter of a second for 2,500 pairs and four seconds for 10,000. If there are more pairs than there is time
for, pairs are matched greedily instead, those on the longest paths first.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from ortools.linear_solver import pywraplp

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.placers.base import Stopwatch
from placewise.simulate.judge.ranks import downward_ranks, mean_op_seconds, mean_transfer_seconds, upward_ranks

MAX_PAIRS = 20_000
"""The largest linear program, in pairs."""
QUICK_PAIRS = 2_500
"""The same without a time limit."""
SHARE = 0.4
"""The share of the remaining time that the linear program may take."""
BUILDING = 2e-5
"""Approximate seconds per pair to build the linear program."""
_HALF = 0.5 - 1e-5
"""Below a half by more than the solver's tolerance, so that two pairs that share an op are never both below."""
_TICK = 0.02


class Pairs(NamedTuple):
    """Distinct pairs of a producer and a reader, sorted, with the seconds of a transfer, 0 inside a group."""

    tail: Ints  # [n_pairs]
    head: Ints  # [n_pairs]
    seconds: Floats  # [n_pairs]


def list_pairs(problem: Problem) -> Pairs:
    """All pairs of a producer and a reader. Several tensors of a pair are sent one after the other."""
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    producer = graph.tensors.producer[tensor]
    produced = producer >= 0
    key = producer[produced].astype(np.int64) * max(problem.n_ops, 1) + graph.consumers[produced]
    known, row = np.unique(key, return_inverse=True)
    tail, head = known // max(problem.n_ops, 1), known % max(problem.n_ops, 1)
    apart = problem.block[tail] != problem.block[head]
    seconds = np.bincount(row, weights=mean_transfer_seconds(problem)[tensor[produced]], minlength=len(known))
    return Pairs(tail.astype(np.int32), head.astype(np.int32), np.where(apart, seconds, 0.0))


def find_favourite_children(problem: Problem, watch: Stopwatch) -> tuple[Ints, str]:
    """The favourite child [n_ops] of every op, −1 for none; and a note if the linear program was not used."""
    pairs, seconds = list_pairs(problem), mean_op_seconds(problem)
    count, limited = len(pairs.tail), bool(np.isfinite(watch.budget.seconds))
    limit = SHARE * watch.left
    if count <= (MAX_PAIRS if limited else QUICK_PAIRS) and BUILDING * count <= limit:
        sent = solve_relaxation(problem.n_ops, pairs, seconds, limit)
        if sent is not None:
            chosen = select_favourites(sent)
            child = np.full(problem.n_ops, -1, np.int32)
            child[pairs.tail[chosen]] = pairs.head[chosen]
            return child, ""
    down, up = downward_ranks(problem), upward_ranks(problem)
    length = down[pairs.tail] + seconds[pairs.tail] + pairs.seconds + up[pairs.head]
    rows = np.flatnonzero(pairs.seconds > 0)
    order = rows[np.argsort(-length[rows], kind="stable")]
    note = f"{count:,} pairs are too many for the linear program in this time: favourites were matched greedily"
    return match_greedily(pairs, order, problem.n_ops), note


def match_greedily(pairs: Pairs, order: Longs, n: int) -> Ints:
    """The favourite child [n] of every op: of the pairs in `order`, each whose ends are both free."""
    child, has_parent = np.full(n, -1, np.int32), np.zeros(n, np.bool_)
    for tail, head in zip(pairs.tail[order].tolist(), pairs.head[order].tolist(), strict=True):
        if child[tail] < 0 and not has_parent[head]:
            child[tail], has_parent[head] = head, True
    return child


def select_favourites(sent: Floats) -> Longs:
    """The pairs whose x [n_pairs] marks a favourite child."""
    return np.flatnonzero(sent < _HALF)


def solve_relaxation(n: int, pairs: Pairs, seconds: Floats, limit: float) -> Floats | None:
    """An optimal x [n_pairs] of the linear program over ops 0…n − 1 that take `seconds` [n].

    None if the solver takes longer than `limit` seconds. KeyboardInterrupt stops the solver and is raised again.
    """
    scale = 1.0 / max(float(seconds.max(initial=0.0)), float(pairs.seconds.max(initial=0.0)), np.finfo(np.float64).tiny)
    solver, sent = _build_program(n, pairs, seconds * scale, pairs.seconds * scale)
    if np.isfinite(limit):
        solver.SetTimeLimit(max(int(1000 * limit), 1))
    status: list[int] = []
    done = threading.Event()

    def run() -> None:
        status.append(solver.Solve())
        done.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not done.wait(_TICK):
            pass
    except KeyboardInterrupt:
        solver.InterruptSolve()
        done.wait()
        raise
    if status != [pywraplp.Solver.OPTIMAL]:
        return None
    return np.array([1.0 if x is None else x.solution_value() for x in sent])


def _build_program(n: int, pairs: Pairs, seconds: Floats, hop: Floats) -> tuple[Any, list[Any]]:
    """The linear program, and its x per pair; None for pairs whose transfers take no time: they mark no favourite."""
    solver = pywraplp.Solver("favourites", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
    solver.SuppressOutput()
    infinity, costs = solver.infinity(), (hop > 0).tolist()
    start = [solver.NumVar(0.0, infinity, "") for _ in range(n)]
    sent = [solver.NumVar(0.0, 1.0, "") if cost else None for cost in costs]
    end = solver.NumVar(0.0, infinity, "")
    for begin, duration in zip(start, seconds.tolist(), strict=True):
        row = solver.Constraint(duration, infinity)
        row.SetCoefficient(end, 1.0)
        row.SetCoefficient(begin, -1.0)
    tails, heads = pairs.tail.tolist(), pairs.head.tolist()
    for x, i, j, c in zip(sent, tails, heads, hop.tolist(), strict=True):
        row = solver.Constraint(float(seconds[i]), infinity)
        row.SetCoefficient(start[j], 1.0)
        row.SetCoefficient(start[i], -1.0)
        if x is not None:
            row.SetCoefficient(x, -c)
    for ends in (tails, heads):
        together: dict[int, list[Any]] = {}
        for x, i in zip(sent, ends, strict=True):
            if x is not None:
                together.setdefault(i, []).append(x)
        for several in together.values():
            row = solver.Constraint(len(several) - 1.0, infinity)
            for x in several:
                row.SetCoefficient(x, 1.0)
    solver.Objective().SetCoefficient(end, 1.0)
    solver.Objective().SetMinimization()
    return solver, sent
