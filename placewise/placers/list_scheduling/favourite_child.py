"""Favourite children: which reader of an op should be where it is, by a linear program or, on large graphs, greedily.

Hanen and Munier, "An approximation algorithm for scheduling dependent tasks on m processors with small communication
delays", ETFA 1995; as in Jeon et al., Baechi, SoCC 2020, section 3.3. With devices without number, s_i the start of
op i, p_i its seconds and c_ij what a transfer to its reader j takes:

    minimize w    s_i + p_i ≤ w,    s_i + p_i + c_ij x_ij ≤ s_j,    0 ≤ x_ij ≤ 1,
    Σ_j x_ij ≥ |readers of i| − 1,    Σ_i x_ij ≥ |makers for j| − 1

so that an x of 0 marks a favourite child. It is rounded at a half: no op has two favourite children, nor two
favourite parents. Seconds are means, as in upward ranks. Ops of one colocation group are together anyway: what passes
between them costs nothing and marks no favourite, and nor does what takes no time.

The program takes GLOP a quarter of a second for 2,500 pairs and four seconds for 10,000. Where it has more than there
is time for, pairs are matched greedily instead, those on the longest paths first.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from ortools.linear_solver import pywraplp

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.placers.base import Stopwatch
from placewise.simulate.judge.ranks import downward_ranks, mean_op_seconds, mean_transfer_seconds, upward_ranks
from placewise.simulate.problem_arrays import arrays_of

MOST_PAIRS = 20_000
"""The program is not tried with more of them."""
QUICK_PAIRS = 2_500
"""Nor with more than these where there is no limit of time."""
SHARE = 0.4
"""Of the time that is left, for the program."""
BUILDING = 2e-5
"""Seconds per pair that it takes to state it, about."""
_HALF = 0.5 - 1e-5
"""Less by more than the solver may be wrong, so that two that share one are never both below."""
_TICK = 0.02


class Pairs(NamedTuple):
    """Distinct pairs of a maker and a reader, sorted, with the seconds of a transfer, 0 inside a group."""

    tail: Ints  # [n_pairs]
    head: Ints  # [n_pairs]
    seconds: Floats  # [n_pairs]


def pairs_of(problem: Problem) -> Pairs:
    """Who reads what whom makes; several tensors of a pair are sent one after the other."""
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    maker = graph.tensors.producer[tensor]
    made = maker >= 0
    key = maker[made].astype(np.int64) * max(problem.n_ops, 1) + graph.consumers[made]
    known, row = np.unique(key, return_inverse=True)
    tail, head = known // max(problem.n_ops, 1), known % max(problem.n_ops, 1)
    apart = problem.block[tail] != problem.block[head]
    seconds = np.bincount(row, weights=mean_transfer_seconds(problem)[tensor[made]], minlength=len(known))
    return Pairs(tail.astype(np.int32), head.astype(np.int32), np.where(apart, seconds, 0.0))


def favourite_children(problem: Problem, watch: Stopwatch) -> tuple[Ints, str]:
    """The favourite child [n_ops] of every op, −1 for none; and what was done if it was not the linear program."""
    pairs, seconds = pairs_of(problem), mean_op_seconds(problem)
    count, limited = len(pairs.tail), bool(np.isfinite(watch.budget.seconds))
    limit = SHARE * watch.left
    if count <= (MOST_PAIRS if limited else QUICK_PAIRS) and BUILDING * count <= limit:
        sent = relaxed(problem.n_ops, pairs, seconds, limit)
        if sent is not None:
            chosen = marked(sent)
            child = np.full(problem.n_ops, -1, np.int32)
            child[pairs.tail[chosen]] = pairs.head[chosen]
            return child, ""
    a = arrays_of(problem)
    down, up = downward_ranks(problem, a), upward_ranks(problem, a)
    length = down[pairs.tail] + seconds[pairs.tail] + pairs.seconds + up[pairs.head]
    rows = np.flatnonzero(pairs.seconds > 0)
    order = rows[np.argsort(-length[rows], kind="stable")]
    child = _native.match_favourites(pairs.tail, pairs.head, order, problem.n_ops)
    return child, f"{count:,} pairs are too many for the linear program and its time: favourites were matched greedily"


def marked(sent: Floats) -> Longs:
    """The pairs whose x [n_pairs] marks a favourite child."""
    return np.flatnonzero(sent < _HALF)


def relaxed(n: int, pairs: Pairs, seconds: Floats, limit: float) -> Floats | None:
    """The x [n_pairs] of an optimum of the linear program over ops 0…n − 1 that take `seconds` [n].

    None if it takes longer than `limit`, in seconds. KeyboardInterrupt ends the solver and goes on to the caller.
    """
    scale = 1.0 / max(float(seconds.max(initial=0.0)), float(pairs.seconds.max(initial=0.0)), np.finfo(np.float64).tiny)
    solver, sent = _program(n, pairs, seconds * scale, pairs.seconds * scale)
    if np.isfinite(limit):
        solver.SetTimeLimit(max(int(1000 * limit), 1))
    status: list[int] = []
    over = threading.Event()

    def work() -> None:
        status.append(solver.Solve())
        over.set()

    threading.Thread(target=work, daemon=True).start()
    try:
        while not over.wait(_TICK):
            pass
    except KeyboardInterrupt:
        solver.InterruptSolve()
        over.wait()
        raise
    if status != [pywraplp.Solver.OPTIMAL]:
        return None
    return np.array([1.0 if x is None else x.solution_value() for x in sent])


def _program(n: int, pairs: Pairs, seconds: Floats, hop: Floats) -> tuple[Any, list[Any]]:
    """The program, and its x per pair; None for pairs of which nothing is sent: they mark no favourite."""
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
