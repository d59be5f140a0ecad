"""Forces ops onto a device and places the rest anew around them, starting from the plan with the move applied."""

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
from placewise.model.topology import sort_topologically
from placewise.placers.base import Budget, Hints, OnProgress
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract
from placewise.simulate.judge.schedule import schedule_inputs


def move_ops(placement: Placement, together: Bools, d: int) -> Placement:
    """The placement with the ops on device `d`. It has no calls, whose numbers are per device: they are cut anew."""
    return replace(placement, device=np.where(together, d, placement.device).astype(np.int32), call=None)


def force_ops(
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
    pins = (*problem.constraints.pins, Rule(_match_only(problem, names), problem.cluster.names[d]))
    forced = problem.with_(constraints=replace(problem.constraints, pins=pins))
    judged = [(start, judge_placement(forced, start)) for start in _list_starts(problem, placement, together, d)]
    valid = [(start, judgement) for start, judgement in judged if judgement.valid]
    hints = Hints(tuple(start for start, _ in valid))
    return _keep_best(place(forced, placer, budget, hints=hints, on_progress=on_progress), valid)


def _keep_best(result: Result, starts: Sequence[tuple[Placement, Judgement]]) -> Result:
    """The result, or the best start if that is better: some placers ignore hints."""
    start, judgement = min(starts, key=lambda pair: pair[1].value, default=(None, None))
    if judgement is None or not judgement.value < result.value:
        return result
    status = Status(Outcome.FEASIBLE, result.status.reason)
    return replace(result, placement=start, judgement=judgement, status=status)


def _match_only(problem: Problem, names: Sequence[str]) -> str:
    """A pattern that matches these op names; it also matches modules with one of these names."""
    blocks: dict[int, str] = {}
    index = {name: op for op, name in enumerate(problem.graph.ops.name)}
    for name in names:
        blocks.setdefault(int(problem.block[index[name]]), name)
    return rf"\A(?:{'|'.join(map(re.escape, blocks.values()))})\Z"


def _list_starts(problem: Problem, placement: Placement, together: Bools, d: int) -> list[Placement]:
    """Starts for the search: the plan with the move and, if stages form a chain, with the ops that must move along."""
    if placement.replicas is not None:
        return []
    moved = move_ops(placement, together, d)
    if problem.objective.kind == "latency" and problem.objective.op_by_op:
        moved = replace(moved, order=schedule_inputs(problem, placement.order).priority)
    device = _move_chain(problem, placement, together, d) if problem.constraints.contiguous else None
    return [moved] if device is None else [moved, replace(moved, device=device)]


def _move_chain(problem: Problem, placement: Placement, together: Bools, d: int) -> Ints | None:
    """The devices [n_ops] with the ops on `d`, and with the ops before or after them that a chain of stages moves too.

    None if the stages of the plan do not form a chain.
    """
    chain = contract(problem)
    device = np.zeros(chain.n, np.int64)
    device[chain.component] = placement.device
    rank = _rank_stages(chain.edges(), device, problem.n_devices)
    if rank is None:
        return None
    if not (device == d).any():
        here = device[chain.component[int(np.argmax(together))]]
        rank[d] = rank[here] + 0.5
    moves = np.zeros(chain.n, np.bool_)
    moves[chain.component[together]] = True
    after, before = moves.copy(), moves.copy()
    tails, heads = (column.tolist() for column in chain.edges())
    for tail, head in zip(tails, heads, strict=True):
        after[head] |= after[tail]
    for tail, head in sorted(zip(tails, heads, strict=True), reverse=True):
        before[tail] |= before[head]
    own = rank[device]
    moves |= (after & (own < rank[d])) | (before & (own > rank[d]))
    return np.where(moves[chain.component], d, placement.device).astype(np.int32)


def _rank_stages(edges: tuple[Ints, Ints], device: Longs, count: int) -> Floats | None:
    """The position of each device in the chain of stages [count]; None if the stages form a cycle."""
    tails, heads = device[edges[0]], device[edges[1]]
    before: list[set[int]] = [set() for _ in range(count)]
    for tail, head in zip(tails.tolist(), heads.tolist(), strict=True):
        before[head].add(tail)
    order = sort_topologically([nodes - {d} for d, nodes in enumerate(before)], range(count))
    return np.argsort(order).astype(np.float64) if len(order) == count else None
