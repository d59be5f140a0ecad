"""Explains why an op is where it is: tries it on each device alone, and places the rest anew around a forced move.

A forced move pins the ops to another device and runs a placer on the rest, starting from the plan with the move
applied. So the result is never worse than the move alone, if that keeps the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from placewise.analysis.explain_split import Explained, explain_split
from placewise.analysis.force_op import force_ops, move_ops
from placewise.analysis.select_ops import select_ops, unnamed_op
from placewise.errors import InputError
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem, matching
from placewise.model.result import Judgement, Result
from placewise.placers.base import Budget, OnProgress, ignore
from placewise.reporting.breakdown import break_down_value
from placewise.reporting.copies import list_copies
from placewise.reporting.device_parts import describe_device_parts
from placewise.reporting.difference import PartChange, compare_parts
from placewise.reporting.explanation import Choice, ForcedMove, OpExplanation
from placewise.reporting.moves import match_interchangeable
from placewise.reporting.pipeline import pipeline_line
from placewise.reporting.sentences import value_name
from placewise.simulate import bound_soon, judge_placement
from placewise.simulate.blocks import held_storages, storage_bytes

MAX_DEVICES = 64
"""How many devices are tried at most: those of `why_not`, then the first of the others."""


def explain(
    problem: Problem,
    placement: Placement,
    asked: str | None,
    why_not: Sequence[str] = (),
    budget: Budget | None = None,
    *,
    placer: str = "auto",
    on_progress: OnProgress = ignore,
) -> Explained:
    """Why the ops that `asked` names (an op, a module, a pattern) are where they are in `placement`.

    For each device of `why_not`, the rest is placed anew around the move, within `budget` each. Raises InputError for
    an unknown op or device, and for a module whose ops are on several devices. Where ops may be split, it is
    `explain_split`.
    """
    if problem.ways is not None:
        return explain_split(problem, placement, asked, why_not, budget, on_progress=on_progress)
    if asked is None:
        raise unnamed_op(*why_not)
    ops, what = select_ops(problem, asked)
    here = _find_device(problem, placement, ops, asked)
    targets = _find_targets(problem, placement, here, why_not)
    judged = judge_placement(problem, placement)
    together = np.isin(problem.block, problem.block[ops])
    candidates = list(dict.fromkeys((here, *targets, *range(problem.n_devices))))[:MAX_DEVICES]
    choices = {d: _judge_choice(problem, placement, judged, together, d, chosen=d == here) for d in sorted(candidates)}
    results, forced = [], []
    for d in targets:
        if choices[d].refusal:
            inf, name = math.inf, problem.cluster.names[d]
            forced.append(ForcedMove(device=name, value=inf, lower_bound=inf, bound_method="", placer="", seconds=0.0))
            continue
        result = force_ops(problem, placement, together, d, placer, budget, on_progress)
        results.append(result)
        forced.append(_compare_move(problem, placement, judged, d, result))
    names = problem.graph.ops.name
    along = np.flatnonzero(together & ~np.isin(np.arange(problem.n_ops), ops))
    explanation = OpExplanation(
        asked=asked,
        ops=tuple(names[op] for op in ops.tolist()),
        along=tuple(names[op] for op in along.tolist()),
        what=what,
        device=problem.cluster.names[here],
        measure=value_name(problem.objective),
        value=judged.value,
        lower_bound=bound_soon(problem).value,
        choices=tuple(choices.values()),
        forced=tuple(forced),
        notes=(*_list_notes(problem, placement, judged), *filter(None, [pipeline_line(judged.pipeline)])),
        beside=describe_device_parts(problem, placement)[here],
    )
    return Explained(explanation, tuple(results))


def _find_device(problem: Problem, placement: Placement, ops: Ints, asked: str) -> int:
    homes, count = np.unique(placement.device[ops], return_counts=True)
    if len(homes) > 1:
        names = problem.cluster.names
        where = ", ".join(f"{names[d]} ({n} ops)" for d, n in zip(homes.tolist(), count.tolist(), strict=True))
        raise InputError(f"{asked!r} is on several devices: {where}", remedy="ask about a smaller module, or one op")
    return int(homes[0])


def _find_targets(problem: Problem, placement: Placement, here: int, names: Sequence[str]) -> list[int]:
    """The devices of these names; for a replica, the first device of its stage."""
    targets = []
    for name in dict.fromkeys(names):
        d = problem.cluster.index(name)
        lead = d if placement.replicas is None else int(placement.replicas[d])
        if here in (d, lead):
            others = ", ".join(other for other in problem.cluster.names if other != name)
            remedy = f"choose another device: {others}" if others else "the cluster has no other device"
            raise InputError(f"the plan has it on {name} already", remedy=remedy)
        targets.append(lead)
    return list(dict.fromkeys(targets))


def _judge_choice(
    problem: Problem, placement: Placement, judged: Judgement, together: Bools, d: int, *, chosen: bool
) -> Choice:
    name, node = problem.cluster.names[d], problem.cluster.nodes[d]
    if placement.replicas is not None and int(placement.replicas[d]) != d:
        lead = problem.cluster.names[int(placement.replicas[d])]
        return Choice(device=name, node=node, refusal=f"it runs the stage of {lead} as well")
    refusal = "" if chosen else _find_refusal(problem, together, d)
    if refusal:
        return Choice(device=name, node=node, refusal=refusal)
    moved = placement if chosen else move_ops(placement, together, d)
    judgement = judged if chosen else judge_placement(problem, moved)
    copies, tensors, size = _sum_copies(problem, moved, judgement, together)
    use = judgement.devices[d]
    return Choice(
        device=name,
        node=node,
        chosen=chosen,
        compute=float(problem.costs.op_seconds[together, d].sum()),
        copies=copies,
        tensors=tensors,
        bytes=size,
        adds=_added_bytes(problem, moved, together, d),
        peak=use.peak,
        capacity=use.capacity,
        value=judgement.value,
        broken=tuple(violation.message for violation in judgement.violations),
    )


def _find_refusal(problem: Problem, together: Bools, d: int) -> str:
    """Why a device may not run the ops; "" if it may."""
    barred = np.flatnonzero(together & ~problem.allowed[:, d])
    if not len(barred):
        return ""
    op, device, rules = int(barred[0]), problem.cluster.devices[d], problem.constraints
    name, kind = problem.graph.ops.name[op], problem.graph.ops.kind[op]
    if not device.available:
        return f"{device.name} may not be used"
    if not device.can_run(kind) or not np.isfinite(problem.costs.op_seconds[op, d]):
        return f"{device.name} cannot run {kind} ({name})"
    pins = [rule for rule in rules.pins if rule.device != device.name and matching(problem.graph, rule.pattern)[op]]
    if pins:
        return f"the rule --pin '{pins[0].pattern}={pins[0].device}' keeps {name} on {pins[0].device}"
    forbids = [r for r in rules.forbidden if r.device == device.name and matching(problem.graph, r.pattern)[op]]
    if any(not rule.pattern for rule in forbids):
        return f"nothing may run on {device.name}"
    if forbids:
        return f"the rule --forbid '{forbids[0].pattern}={device.name}' keeps {name} away"
    return f"{name} may not run on {device.name}"


def _sum_copies(problem: Problem, placement: Placement, judged: Judgement, together: Bools) -> tuple[float, int, float]:
    """The seconds of copies of tensors that the ops read or make, how many such tensors are copied, and their bytes."""
    graph, maker = problem.graph, problem.graph.tensors.producer
    touched = np.zeros(graph.n_tensors, np.bool_)
    touched[graph.edges.value[together[graph.edges.consumer]]] = True
    touched[maker >= 0] |= together[maker[maker >= 0]]
    copies = list_copies(problem, placement, judged.timeline)
    rows = touched[copies.tensor]
    tensors = np.unique(copies.tensor[rows])
    size = np.maximum(graph.tensors.bytes[tensors], 0).sum()
    return math.fsum(copies.seconds[rows].tolist()), len(tensors), float(size)


def _added_bytes(problem: Problem, placement: Placement, together: Bools, d: int) -> float:
    """Bytes of the state of the ops, and of weights that no other op on device `d` uses."""
    graph = problem.graph
    owner, storage = held_storages(graph, np.where(together, -1, placement.device))
    fresh = np.setdiff1d(storage[owner == -1], storage[owner == d])
    return float(graph.ops.state_bytes[together].sum(dtype=np.float64)) + float(storage_bytes(graph)[fresh].sum())


def _compare_move(problem: Problem, placement: Placement, judged: Judgement, d: int, result: Result) -> ForcedMove:
    changes: tuple[PartChange, ...] = ()
    moved, trade = 0, ""
    if result.placement is not None and result.judgement is not None:
        trade, moved = match_interchangeable(problem.cluster, placement.device, result.placement.device)
        before = break_down_value(problem, placement, judged)
        changes = compare_parts(before, break_down_value(result.problem, result.placement, result.judgement))
    return ForcedMove(
        device=problem.cluster.names[d],
        value=result.value,
        lower_bound=result.lower_bound,
        bound_method=result.bound.method,
        placer=result.placer,
        seconds=result.seconds,
        moved=moved,
        traded=trade,
        unmet=result.unmet,
        changes=changes,
    )


def _list_notes(problem: Problem, placement: Placement, judged: Judgement) -> tuple[str, ...]:
    notes = []
    if not judged.valid:
        notes.append(f"the plan itself breaks a rule: {judged.violations[0].message}")
    if placement.call is not None:
        notes.append("the calls of the plan are cut anew where something moves")
    if problem.n_devices > MAX_DEVICES:
        notes.append(f"{MAX_DEVICES} of {problem.n_devices} devices were tried")
    return tuple(notes)
