"""Explains why ops are split or recomputed as they are: the best plan with each other choice for their unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise.analysis.select_ops import select_ops, unnamed_op
from placewise.core.place import place
from placewise.core.split_ways import remake_ways
from placewise.errors import InputError
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Result
from placewise.model.ways import Ways, keep_ways
from placewise.placers.base import Budget, OnProgress, ignore
from placewise.reporting.explanation import OpExplanation
from placewise.reporting.sentences import value_name
from placewise.reporting.split_explanation import ForcedChoice, PlanChoices, SplitExplanation, WayOfUnit
from placewise.simulate import judge_placement
from placewise.simulate.judge.stages import load_stages

RECOMPUTE, KEEP = "recompute", "no-recompute"
TOKENS, NO_TOKENS = "sequence-parallel", "no-sequence-parallel"
"""Choices for the whole plan: what leaves a layer has one form."""
_DEGREE = re.compile(r"tp=(\d{1,6})")


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """The explanation of an op or of stages, and a result per forced choice, or device that may run the ops."""

    explanation: OpExplanation | PlanChoices
    results: tuple[Result, ...]


def explain_split(
    problem: Problem,
    placement: Placement,
    asked: str | None,
    why_not: Sequence[str] = (),
    budget: Budget | None = None,
    *,
    on_progress: OnProgress = ignore,
) -> Explained:
    """Why the unit of the ops that `asked` names runs as it does in a plan with stages.

    For each choice of `why_not` ("tp=4", "recompute", "no-recompute", and for the whole plan "sequence-parallel" or
    "no-sequence-parallel"; by default all that the unit has), everything is placed anew with it, within `budget`.
    Those for the whole plan need no `asked`. Raises InputError for an unknown op or choice, and for ops in several
    units.
    """
    ways = problem.require_ways()
    if asked is None:
        of_ops = [choice for choice in why_not if choice not in (TOKENS, NO_TOKENS)]
        if of_ops or not why_not:
            raise unnamed_op(*of_ops)
        results, forced = _force(problem, np.zeros(0, np.int64), why_not, budget, on_progress)
        value = judge_placement(problem, placement).value
        return Explained(PlanChoices(measure=value_name(problem.objective, ways), value=value, forced=forced), results)
    ops, _ = select_ops(problem, asked)
    units = np.unique(ways.unit[ops])
    judged = judge_placement(problem, placement)
    if len({int(placement.stage[op]) for op in ops.tolist()} if placement.stage is not None else ()) != 1:
        raise InputError(f"{asked!r} is in several stages", remedy="ask about a smaller module, or one op")
    unit, s = int(units[0]), int(np.asarray(placement.stage)[ops[0]])
    group, use, chosen = placement.stages[s], judged.stages[s], int(np.asarray(placement.way)[unit])
    kind = int(ways.device_class[group.devices[0]])
    choices = why_not or _list_choices(problem, units, chosen)
    results, forced = _force(problem, units, choices, budget, on_progress)
    explanation = SplitExplanation(
        asked=asked,
        unit=_name_units(ways, units, asked),
        n_units=len(units),
        first=_name_units(ways, units[:1], asked),
        stage=s,
        devices=tuple(problem.cluster.names[d] for d in group.devices),
        tensor_parallel=group.tensor_parallel,
        data_parallel=group.data_parallel,
        in_flight=use.in_flight,
        stage_seconds=use.seconds,
        stage_bytes=use.peak,
        capacity=min(float(problem.capacity[d]) for d in group.devices),
        bytes_kept=_stage_bytes(problem, placement, s, degree=group.tensor_parallel, keep=True),
        bytes_whole=_stage_bytes(problem, placement, s, degree=1),
        trains=ways.trains,
        sequence_parallel=problem.constraints.sequence_parallel and group.tensor_parallel > 1,
        pays_per_stage=problem.objective.kind == "throughput",
        measure=value_name(problem.objective, ways),
        value=judged.value,
        ways=tuple(_describe_way(ways, way, kind, chosen) for way in ways.ways_of(unit).tolist()),
        forced=forced,
    )
    return Explained(explanation, results)


def _force(
    problem: Problem, units: Ints, choices: Sequence[str], budget: Budget | None, on_progress: OnProgress
) -> tuple[tuple[Result, ...], tuple[ForcedChoice, ...]]:
    """The best plan with each choice for the units, and the same as a row of the explanation."""
    found = [place(_with_choice(problem, units, choice), "auto", budget, on_progress=on_progress) for choice in choices]
    rows = (
        ForcedChoice(choice=choice, value=result.value, lower_bound=result.lower_bound, unmet=result.unmet)
        for choice, result in zip(choices, found, strict=True)
    )
    return tuple(found), tuple(rows)


def _stage_bytes(
    problem: Problem, placement: Placement, stage: int, *, degree: int, keep: bool = False
) -> float | None:
    """What each device of a stage would hold if its units ran over so many devices, with `keep` without recomputation.

    None if some unit has no such way.
    """
    ways, way = problem.require_ways(), np.array(placement.way)
    for unit in np.unique(ways.unit[np.asarray(placement.stage) == stage]).tolist():
        wanted = False if keep else bool(ways.recompute[way[unit]])
        fits = [w for w in ways.ways_of(unit, degree).tolist() if bool(ways.recompute[w]) == wanted]
        if not fits:
            return None
        way[unit] = fits[0]
    groups = list(placement.stages)
    groups[stage] = replace(groups[stage], tensor_parallel=degree)
    return load_stages(problem, replace(placement, stages=tuple(groups), way=way))[stage].peak


def _describe_way(ways: Ways, way: int, kind: int, chosen: int) -> WayOfUnit:
    return WayOfUnit(
        name=ways.name[way],
        degree=int(ways.degree[way]),
        chosen=way == chosen,
        recomputes=bool(ways.recompute[way]),
        seconds=float(ways.seconds[way, kind]),
        collective=float(ways.collective_seconds[way, kind]),
        in_flight=float(ways.bytes_in_flight[way]),
        held=float(ways.bytes_fixed[way]),
    )


def _name_units(ways: Ways, units: Ints, asked: str) -> str:
    return ways.unit_names[int(units[0])] if ways.unit_names and len(units) == 1 else asked


def _list_choices(problem: Problem, units: Ints, chosen: int) -> list[str]:
    """Every other degree of the unit, the other rule of recomputation if it has a way for it, and whole tokens."""
    ways = problem.require_ways()
    own = np.isin(ways.way_unit, units)
    degrees = sorted(set(ways.degree[own].tolist()) - {int(ways.degree[chosen])})
    other = KEEP if ways.recompute[chosen] else RECOMPUTE
    has_other = bool((ways.recompute[own] != ways.recompute[chosen]).any())
    whole = [NO_TOKENS] if problem.constraints.sequence_parallel else []
    return [*(f"tp={degree}" for degree in degrees), *([other] if has_other else []), *whole]


def _with_choice(problem: Problem, units: Ints, choice: str) -> Problem:
    """The problem in which the units run as `choice` says; with a choice for the whole plan, all units do."""
    if choice not in (TOKENS, NO_TOKENS):
        ways = problem.require_ways()
        return problem.with_(ways=keep_ways(ways, _select_ways(ways, units, choice)))
    if (choice == TOKENS) == problem.constraints.sequence_parallel:
        raise InputError(f"the plan is one with {choice} already", remedy="ask for the other choice")
    return remake_ways(problem, sequence_parallel=choice == TOKENS)


def _select_ways(ways: Ways, units: Ints, choice: str) -> Bools:
    """Which ways [n_ways] are left where the units must run as `choice` says."""
    own = np.isin(ways.way_unit, units)
    degree = _DEGREE.fullmatch(choice)
    if degree is not None:
        fits = ways.degree == int(degree[1])
    elif choice in (RECOMPUTE, KEEP):
        fits = ways.recompute == (choice == RECOMPUTE)
    else:
        remedy = f"give tp=DEGREE, {RECOMPUTE}, {KEEP}, {TOKENS} or {NO_TOKENS}"
        raise InputError(f"{choice!r} is no choice for ops that may be split", remedy=remedy)
    if len(np.unique(ways.way_unit[own & fits])) < len(units):
        known = sorted(set(ways.degree[own].tolist()))
        remedy = f"its degrees are {', '.join(map(str, known))}"
        if choice in (RECOMPUTE, KEEP):
            remedy = "it has nothing to keep for a backward pass" if ways.trains else "only training recomputes"
        raise InputError(f"the unit has no way for {choice}", remedy=remedy)
    left: Bools = ~own | fits
    return left
