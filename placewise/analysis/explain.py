"""explain(): why an op is where it is. Each device is tried with nothing else moved; a forced move is placed anew.

A forced move pins the ops to another device and runs a placer on what is left, from the plan with the move in it, so
that what it finds is never worse than the plain move where that keeps the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise.analysis.force_op import moved_to, placed_anew
from placewise.analysis.select_ops import chosen_ops
from placewise.errors import InputError
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem, matching
from placewise.model.result import Judgement, Result
from placewise.placers.base import Budget, OnProgress, ignore
from placewise.report.account import account
from placewise.report.alike import traded
from placewise.report.copies import copies_of
from placewise.report.difference import Change, part_changes
from placewise.report.explanation import Choice, Explanation, Forced
from placewise.report.words import value_name
from placewise.simulate import judge_placement, lower_bound
from placewise.simulate.blocks import storage_bytes

MOST_DEVICES = 64
"""So many devices are tried; of more, those that were asked for and the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """The explanation, and the results of the forced moves, one for each device that was asked for and may be."""

    explanation: Explanation
    results: tuple[Result, ...]


def explain(
    problem: Problem,
    placement: Placement,
    asked: str,
    why_not: Sequence[str] = (),
    budget: Budget | None = None,
    *,
    placer: str = "auto",
    on_progress: OnProgress = ignore,
) -> Explained:
    """Why the ops of `asked` (a name, a module, a pattern) are where they are in `placement`.

    For each device of `why_not` the rest is placed anew around the move, within `budget` each. Raises InputError for
    what is no op or device, and where the ops of a module are on several devices.
    """
    ops, what = chosen_ops(problem, asked)
    here = _home(problem, placement, ops, asked)
    wanted = _wanted(problem, placement, here, why_not)
    judged = judge_placement(problem, placement)
    together = np.isin(problem.block, problem.block[ops])
    tried = [here, *wanted, *(d for d in range(problem.n_devices) if d != here and d not in wanted)][:MOST_DEVICES]
    choices = {d: _choice(problem, placement, judged, together, d, chosen=d == here) for d in sorted(tried)}
    results, forced = [], []
    for d in wanted:
        if choices[d].refusal:
            forced.append(_refused(problem, d))
            continue
        result = placed_anew(problem, placement, together, d, placer, budget, on_progress)
        results.append(result)
        forced.append(_forced(problem, placement, judged, d, result))
    names = problem.graph.ops.name
    along = np.flatnonzero(together & ~np.isin(np.arange(problem.n_ops), ops))
    explanation = Explanation(
        asked=asked,
        ops=tuple(names[op] for op in ops.tolist()),
        along=tuple(names[op] for op in along.tolist()),
        what=what,
        device=problem.cluster.names[here],
        measure=value_name(problem.objective),
        value=judged.value,
        lower_bound=lower_bound(problem, go_on=lambda: False).value,
        choices=tuple(choices.values()),
        forced=tuple(forced),
        notes=_notes(problem, placement, judged, together),
    )
    return Explained(explanation, tuple(results))


def _home(problem: Problem, placement: Placement, ops: Ints, asked: str) -> int:
    homes, count = np.unique(placement.device[ops], return_counts=True)
    if len(homes) > 1:
        names = problem.cluster.names
        where = ", ".join(f"{names[d]} ({n} ops)" for d, n in zip(homes.tolist(), count.tolist(), strict=True))
        raise InputError(f"{asked!r} is on several devices: {where}", remedy="ask about a smaller module, or one op")
    return int(homes[0])


def _wanted(problem: Problem, placement: Placement, here: int, names: Sequence[str]) -> list[int]:
    wanted = []
    for name in dict.fromkeys(names):
        d = problem.cluster.index(name)
        lead = d if placement.replicas is None else int(placement.replicas[d])
        if here in (d, lead):
            others = ", ".join(other for other in problem.cluster.names if other != name)
            remedy = f"choose another device: {others}" if others else "the cluster has no other device"
            raise InputError(f"the plan has it on {name} already", remedy=remedy)
        wanted.append(lead)
    return list(dict.fromkeys(wanted))


def _choice(
    problem: Problem, placement: Placement, judged: Judgement, together: Bools, d: int, *, chosen: bool
) -> Choice:
    name = problem.cluster.names[d]
    if placement.replicas is not None and int(placement.replicas[d]) != d:
        lead = problem.cluster.names[int(placement.replicas[d])]
        return Choice(device=name, refusal=f"it runs the stage of {lead} as well")
    refusal = "" if chosen else _refusal(problem, together, d)
    if refusal:
        return Choice(device=name, refusal=refusal)
    moved = placement if chosen else moved_to(placement, together, d)
    word = judged if chosen else judge_placement(problem, moved)
    copies, tensors, size = _copies(problem, moved, word, together)
    use = word.devices[d]
    return Choice(
        device=name,
        chosen=chosen,
        compute=float(problem.costs.op_seconds[together, d].sum()),
        copies=copies,
        tensors=tensors,
        bytes=size,
        adds=_added_bytes(problem, moved, together, d),
        peak=use.peak,
        capacity=use.capacity,
        value=word.value,
        broken=tuple(violation.message for violation in word.violations),
    )


def _refusal(problem: Problem, together: Bools, d: int) -> str:
    """Why the ops may not be on a device, "" if they may."""
    barred = np.flatnonzero(together & ~problem.allowed[:, d])
    if not len(barred):
        return ""
    op, device, rules = int(barred[0]), problem.cluster.devices[d], problem.constraints
    name, kind = problem.graph.ops.name[op], problem.graph.ops.kind[op]
    if not device.available:
        return f"{device.name} may not be used"
    if kind in device.unsupported or not np.isfinite(problem.costs.op_seconds[op, d]):
        return f"{device.name} cannot run {kind} ({name})"
    pins = [rule for rule in rules.pins if rule.device != device.name and matching(problem.graph, rule.pattern)[op]]
    if pins:
        return f"the rule --pin '{pins[0].pattern}={pins[0].device}' keeps {name} on {pins[0].device}"
    forbids = [r for r in rules.forbidden if r.device == device.name and matching(problem.graph, r.pattern)[op]]
    if forbids:
        return f"the rule --forbid '{forbids[0].pattern}={device.name}' keeps {name} away"
    return f"{name} may not run on {device.name}"


def _copies(problem: Problem, placement: Placement, judged: Judgement, together: Bools) -> tuple[float, int, float]:
    """The seconds that links spend on tensors that the ops read or make; how many of them travel, and their bytes."""
    graph, made = problem.graph, problem.graph.tensors.producer
    touched = np.zeros(graph.n_tensors, np.bool_)
    touched[graph.edges.value[together[graph.edges.consumer]]] = True
    touched[made >= 0] |= together[made[made >= 0]]
    copies = copies_of(problem, placement, judged.timeline)
    rows = touched[copies.tensor]
    travels = np.unique(copies.tensor[rows])
    size = np.maximum(graph.tensors.bytes[travels], 0).sum()
    return math.fsum(copies.seconds[rows].tolist()), len(travels), float(size)


def _added_bytes(problem: Problem, placement: Placement, together: Bools, d: int) -> float:
    """State of the ops, and weights that no other op on their device uses."""
    graph = problem.graph
    total = float(graph.ops.state_bytes[together].sum(dtype=np.float64))
    if not len(graph.weight_edges):
        return total
    storage, user = graph.weights.storage[graph.weight_edges.value], graph.weight_edges.consumer
    own = np.unique(storage[together[user]])
    others = np.unique(storage[~together[user] & (placement.device[user] == d)])
    return total + float(storage_bytes(graph)[np.setdiff1d(own, others)].sum())


def _forced(problem: Problem, placement: Placement, judged: Judgement, d: int, result: Result) -> Forced:
    changes: tuple[Change, ...] = ()
    moved, trade = 0, ""
    if result.placement is not None and result.judgement is not None:
        trade, moved = traded(problem.cluster, placement.device, result.placement.device)
        changes = part_changes(
            account(problem, placement, judged), account(result.problem, result.placement, result.judgement)
        )
    return Forced(
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


def _refused(problem: Problem, d: int) -> Forced:
    name = problem.cluster.names[d]
    return Forced(device=name, value=math.inf, lower_bound=math.inf, bound_method="", placer="", seconds=0.0)


def _notes(problem: Problem, placement: Placement, judged: Judgement, together: Bools) -> tuple[str, ...]:
    notes = []
    if not judged.valid:
        notes.append(f"the plan itself breaks a rule: {judged.violations[0].message}")
    if placement.call is not None:
        notes.append("the calls of the plan are cut anew where something moves")
    if problem.n_devices > MOST_DEVICES:
        notes.append(f"{MOST_DEVICES} of {problem.n_devices} devices were tried")
    return tuple(notes)
