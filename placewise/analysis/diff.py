"""diff(): two plans of one model beside each other, judged again where their model can be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewise._util.units import format_seconds
from placewise.core.build import build_for_plan
from placewise.core.open_model import Model
from placewise.core.options import NO_OPTIONS, ProblemOptions
from placewise.errors import PlacewiseError, PlanError
from placewise.files.plan_file import PlanFile, find_model, load_plan_unless_split, plan_of
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Judgement, Result
from placewise.report.account import account, pace_parts
from placewise.report.alike import traded
from placewise.report.difference import Difference, Side
from placewise.report.moves import module_paths, moves_of
from placewise.report.words import value_name
from placewise.simulate import judge_placement

DRIFT = 1e-6
"""A value that is judged again may be off the plan's by so much, as a share, before it is told."""

PlanLike = Result | str | os.PathLike[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """A plan: what its file says (None of a published split), and the problem with its placement where it is known."""

    name: str
    plan: PlanFile | None
    problem: Problem | None = None
    placement: Placement | None = None

    def assignment(self) -> dict[str, str]:
        if self.problem is not None and self.placement is not None:
            return self.placement.assignment(self.problem.graph, self.problem.cluster)
        return {} if self.plan is None else self.plan.assignment


def diff(
    before: PlanLike,
    after: PlanLike,
    model: Model = None,
    options: ProblemOptions = NO_OPTIONS,
    *,
    inputs: Any = None,
) -> Difference:
    """What differs between two plans, as results, plan files or published splits of one model.

    The model is read from where the plans say, or from `model`; where it cannot be read and none is given, the files
    alone are compared and a note says what is missing. Raises PlanError for plans of different models.
    """
    first, second = _loaded(before), _loaded(after)
    names = _names(first.name, second.name)
    _same_model(first, second, names)
    notes: list[str] = []
    try:
        first, second = (
            _opened(side, given, model, options, inputs) for side, given in ((first, before), (second, after))
        )
    except PlacewiseError as error:
        if model is not None or first.plan is None or second.plan is None:
            raise
        first, second = _loaded(before), _loaded(after)
        notes.append(f"the model cannot be read ({error}): this is what the files say, without times of single ops")
    old, new = first.assignment(), second.assignment()
    _same_ops(old, new, names)
    ops = tuple(old)
    here, there = list(old.values()), [new[op] for op in ops]
    scopes = None if first.problem is None else first.problem.graph.ops.scope
    sides = _side(first, names[0], notes), _side(second, names[1], notes)
    notes += _clusters(first, second, names)
    notes += _traded(first, second)
    return Difference(
        before=sides[0],
        after=sides[1],
        moves=moves_of(module_paths(ops, scopes), here, there),
        moved=sum(a != b for a, b in zip(here, there, strict=True)),
        ops=len(ops),
        notes=tuple(dict.fromkeys(notes)),
    )


def _loaded(given: PlanLike) -> _Planned:
    if isinstance(given, Result):
        if given.placement is None:
            raise PlanError(f"holds no placement: its status is {given.status}", where="a plan to compare")
        return _Planned("the plan", plan_of(given), given.problem, given.placement)
    plan = load_plan_unless_split(given)
    if plan is not None and not plan.assignment:
        remedy = "place the model again"
        raise PlanError(f"holds no placement: its status is {plan.status}", where=str(given), remedy=remedy)
    return _Planned(os.fspath(given), plan)


def _names(first: str, second: str) -> tuple[str, str]:
    """Short names for two plans: those of their files, or the whole paths where these are the same."""
    short = Path(first).name, Path(second).name
    if short[0] != short[1]:
        return short
    return (first, second) if first != second else ("before", "after")


def _same_model(first: _Planned, second: _Planned, names: tuple[str, str]) -> None:
    if first.plan is None or second.plan is None:
        return
    known = first.plan.graph_hash, second.plan.graph_hash
    if all(known) and known[0] != known[1]:
        made = [f"{name} of {side.plan.source.path}" if side.plan and side.plan.source else name
                for name, side in zip(names, (first, second), strict=True)]  # fmt: skip
        raise PlanError(
            f"the plans are of different models, or of one read with different options: {made[0]}, and {made[1]}",
            remedy="compare plans of one model, with the same --dim and --graph",
        )


def _same_ops(old: dict[str, str], new: dict[str, str], names: tuple[str, str]) -> None:
    if old.keys() != new.keys():
        missing, where = next(
            (op, name)
            for ours, others, name in ((old, new, names[1]), (new, old, names[0]))
            for op in ours
            if op not in others
        )
        raise PlanError(
            f"the plans name different ops: {where} has no op {missing!r}", remedy="compare plans of one model"
        )


def _opened(side: _Planned, given: PlanLike, model: Model, options: ProblemOptions, inputs: Any) -> _Planned:
    if side.problem is not None or isinstance(given, Result):
        return side
    source = find_model(given, None) if model is None else model
    problem, placement = build_for_plan(source, Path(given), None, options, example_inputs=inputs)
    return _Planned(side.name, side.plan, problem, placement)


def _side(side: _Planned, name: str, notes: list[str]) -> Side:
    if side.problem is not None and side.placement is not None:
        judged = judge_placement(side.problem, side.placement)
        notes += _drifted(side, name, judged)
        return Side(
            name=name,
            measure=value_name(side.problem.objective),
            value=judged.value,
            lower_bound=side.plan.lower_bound if side.plan is not None else 0.0,
            parts=account(side.problem, side.placement, judged),
            uses=_uses(judged.devices),
        )
    plan = side.plan
    assert plan is not None
    return _side_of_file(plan, name, notes)


def _side_of_file(plan: PlanFile, name: str, notes: list[str]) -> Side:
    objective, parts = plan.objective, None
    if objective is not None and objective.kind == "throughput":
        parts = pace_parts(objective.communication, plan.devices, plan.wires, plan.bottleneck, plan.value)
    elif objective is not None:
        notes.append("where the time of a latency goes needs the timeline, and so the model: give it with --model")
    measure = "value" if objective is None else value_name(Objective(objective.kind, schedule=objective.schedule))
    return Side(
        name=name, measure=measure, value=plan.value, lower_bound=plan.lower_bound, parts=parts,
        uses=_uses(plan.devices),
    )  # fmt: skip


def _uses(devices: Sequence[Any]) -> dict[str, dict[str, float]]:
    return {
        use.device: {
            "ops": use.ops, "compute": use.compute, "copies": use.send + use.receive, "idle": use.idle,
            "peak": use.peak,
        }
        for use in devices
    }  # fmt: skip


def _drifted(side: _Planned, name: str, judged: Judgement) -> list[str]:
    said = judged.value if side.plan is None else side.plan.value
    if not np.isfinite(said) or abs(judged.value - said) <= DRIFT * max(said, judged.value):
        return []
    return [
        f"{name} says {format_seconds(said)}, and is judged here at {format_seconds(judged.value)}: costs that were "
        "given when it was made, such as --costs, must be given again"
    ]


def _clusters(first: _Planned, second: _Planned, names: tuple[str, str]) -> list[str]:
    """What to know where the plans are not for the same devices, or not judged by the same rules."""
    if first.plan is None or second.plan is None:
        return []
    notes = []
    old, new = first.plan.cluster, second.plan.cluster
    if old is not None and new is not None and old != new:
        has = [", ".join(device.name for device in cluster.devices) for cluster in (old, new)]
        what = f"{has[0]}, and {has[1]}" if has[0] != has[1] else f"{has[0]}, with other figures"
        notes.append(f"the plans are for different clusters ({what}): each is judged on its own")
    rules = first.plan.objective, second.plan.objective
    if rules[0] is not None and rules[1] is not None and rules[0] != rules[1] and rules[0].kind == rules[1].kind:
        notes.append(
            f"the plans are judged by different rules: {names[0]} by {_told(rules[0])}, {names[1]} by {_told(rules[1])}"
        )
    return notes


def _told(objective: Any) -> str:
    said = objective.execution if objective.kind == "latency" else f"{objective.communication}, {objective.schedule}"
    return f"{said}, memory {objective.memory}"


def _traded(first: _Planned, second: _Planned) -> list[str]:
    """A note where most of what moved stays if equal devices trade names."""
    if first.problem is None or first.placement is None or second.problem is None or second.placement is None:
        return []
    if first.problem.cluster.names != second.problem.cluster.names:
        return []
    told, left = traded(first.problem.cluster, first.placement.device, second.placement.device)
    return [f"equal devices trade places ({told}): apart from that, {left} ops moved"] if told else []
