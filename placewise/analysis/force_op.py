"""A forced move: some ops on another device, and the rest placed anew around them, beginning with the plan so moved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewise.core.place import place
from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem, Rule
from placewise.model.result import Judgement, Outcome, Result, Status
from placewise.placers.base import Budget, Hints, OnProgress
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract
from placewise.simulate.judge.schedule import schedule_inputs
from placewise.simulate.problem_arrays import arrays_of


def moved_to(placement: Placement, together: Bools, d: int) -> Placement:
    """The placement with the ops elsewhere; calls are cut anew, since their numbers belong to devices."""
    return replace(placement, device=np.where(together, d, placement.device).astype(np.int32), call=None)


def placed_anew(
    problem: Problem,
    placement: Placement,
    together: Bools,
    d: int,
    placer: str,
    budget: Budget | None,
    on_progress: OnProgress,
) -> Result:
    """The best plan that a placer finds with the ops of the mask `together` [n_ops] on device `d`."""
    names = [problem.graph.ops.name[op] for op in np.flatnonzero(together).tolist()]
    pins = (*problem.constraints.pins, Rule(_only(problem, names), problem.cluster.names[d]))
    forced = problem.with_(constraints=replace(problem.constraints, pins=pins))
    judged = [(start, judge_placement(forced, start)) for start in _starts(problem, placement, together, d)]
    known = [(start, word) for start, word in judged if word.valid]
    hints = Hints(tuple(start for start, _ in known))
    return _no_worse_than(place(forced, placer, budget, hints=hints, on_progress=on_progress), known)


def _no_worse_than(result: Result, known: Sequence[tuple[Placement, Judgement]]) -> Result:
    """The result, or the best placement known before if that is better: not every placer begins where it is told to."""
    start, word = min(known, key=lambda pair: pair[1].value, default=(None, None))
    if word is None or not word.value < result.value:
        return result
    status = Status(Outcome.FEASIBLE, result.status.reason)
    return replace(result, placement=start, judgement=word, status=status)


def _only(problem: Problem, names: Sequence[str]) -> str:
    """A pattern that matches these names and nothing else, but for modules that are called like one of them."""
    blocks: dict[int, str] = {}
    index = {name: op for op, name in enumerate(problem.graph.ops.name)}
    for name in names:
        blocks.setdefault(int(problem.block[index[name]]), name)
    return rf"\A(?:{'|'.join(map(re.escape, blocks.values()))})\Z"


def _starts(problem: Problem, placement: Placement, together: Bools, d: int) -> list[Placement]:
    """Where a search may begin: the plan with the move, and, where stages form a chain, with what must go along."""
    if placement.replicas is not None:
        return []
    moved = moved_to(placement, together, d)
    if problem.objective.kind == "latency" and problem.objective.execution == "operator":
        moved = replace(moved, order=schedule_inputs(problem, arrays_of(problem), placement.order).priority)
    carried = _carried(problem, placement, together, d) if problem.constraints.contiguous else None
    return [moved] if carried is None else [moved, replace(moved, device=carried)]


def _carried(problem: Problem, placement: Placement, together: Bools, d: int) -> Ints | None:
    """The devices [n_ops] with the ops on `d` and, as in a chain they must, what follows or precedes them.

    None where the plan's stages are no chain themselves.
    """
    chain = contract(problem)
    device = np.zeros(chain.n, np.int64)
    device[chain.component] = placement.device
    rank = _stage_ranks(chain.edges(), device, problem.n_devices)
    if rank is None:
        return None
    if not (device == d).any():
        here = device[chain.component[int(np.argmax(together))]]
        rank[d] = rank[here] + 0.5
    goes = np.zeros(chain.n, np.bool_)
    goes[chain.component[together]] = True
    after, before = goes.copy(), goes.copy()
    tails, heads = (column.tolist() for column in chain.edges())
    for tail, head in zip(tails, heads, strict=True):
        after[head] |= after[tail]
    for tail, head in sorted(zip(tails, heads, strict=True), reverse=True):
        before[tail] |= before[head]
    own = rank[device]
    goes |= (after & (own < rank[d])) | (before & (own > rank[d]))
    return np.where(goes[chain.component], d, placement.device).astype(np.int32)


def _stage_ranks(edges: tuple[Ints, Ints], device: Longs, count: int) -> Floats | None:
    """The place of each device in the chain of stages [count]; None where they go in a circle."""
    tails, heads = device[edges[0]], device[edges[1]]
    leads = np.zeros((count, count), np.bool_)
    leads[tails[tails != heads], heads[tails != heads]] = True
    rank, left = np.full(count, -1.0), set(range(count))
    while left:
        first = [d for d in sorted(left) if not leads[sorted(left), d].any()]
        if not first:
            return None
        rank[first[0]] = count - len(left)
        left.remove(first[0])
    return rank
