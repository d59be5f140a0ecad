"""Compares two plans of one model; both are judged again if the model can be read."""

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
from placewise.reporting.breakdown import break_down_pace, break_down_value
from placewise.reporting.device_parts import describe_device_parts
from placewise.reporting.difference import Difference, PlanSide
from placewise.reporting.moves import list_moves, match_interchangeable, module_paths
from placewise.reporting.ranges import name_range
from placewise.reporting.sentences import value_name
from placewise.reporting.stages import describe_op_places, describe_place
from placewise.simulate import judge_placement

DRIFT = 1e-6
"""A judged value that differs by a larger share from the value in the plan gets a note."""

PlanLike = Result | str | os.PathLike[str]


@dataclass(frozen=True, slots=True, eq=False)
class _LoadedPlan:
    """A plan: its file (None for a published split), and, once the model is read, its problem and placement."""

    name: str
    plan: PlanFile | None
    problem: Problem | None = None
    placement: Placement | None = None

    def assignment(self, *, by_file: bool) -> dict[str, str]:
        """Where each op runs, by name; of split stages also how, in the words of the plan's file if `by_file`."""
        if self.problem is not None and self.placement is not None:
            if self.placement.way is not None and not by_file:
                places = describe_op_places(self.problem, self.placement)
                return dict(zip(self.problem.graph.ops.name, places, strict=True))
            if self.placement.way is None:
                return self.placement.assignment(self.problem.graph, self.problem.cluster)
        if self.plan is None:
            return {}
        staged = {
            op: describe_place(
                name_range(stage.devices), stage.data_parallel, stage.tensor_parallel, stage.ways.get(op, "")
            )
            for stage in self.plan.stages or ()
            for op in stage.ops
        }
        return {op: staged.get(op, device) for op, device in self.plan.assignment.items()}


def diff(
    before: PlanLike,
    after: PlanLike,
    model: Model = None,
    options: ProblemOptions = NO_OPTIONS,
    *,
    inputs: Any = None,
) -> Difference:
    """What differs between two plans of one model: results, plan files or published splits.

    The model is read from the path in the plans, or from `model`. If it cannot be read and none is given, the files
    alone are compared, and a note says what is missing. Raises PlanError for plans of different models.
    """
    first, second = _load_plan(before), _load_plan(after)
    names = _short_names(first.name, second.name)
    _require_same_model(first, second, names)
    notes: list[str] = []
    try:
        first, second = (
            _open_model(side, source, model, options, inputs) for side, source in ((first, before), (second, after))
        )
    except PlacewiseError as error:
        if model is not None or first.plan is None or second.plan is None:
            raise
        first, second = _load_plan(before), _load_plan(after)
        notes.append(f"the model cannot be read ({error}): this is what the files say, without times of single ops")
    by_file = first.problem is None or second.problem is None
    old, new = first.assignment(by_file=by_file), second.assignment(by_file=by_file)
    _require_same_ops(old, new, names)
    ops = tuple(old)
    here, there = list(old.values()), [new[op] for op in ops]
    scopes = None if first.problem is None else first.problem.graph.ops.scope
    sides = _make_side(first, names[0], notes), _make_side(second, names[1], notes)
    notes += _note_setups(first, second, names)
    notes += _note_swaps(first, second)
    return Difference(
        before=sides[0],
        after=sides[1],
        moves=list_moves(module_paths(ops, scopes), here, there),
        moved=sum(a != b for a, b in zip(here, there, strict=True)),
        ops=len(ops),
        notes=tuple(dict.fromkeys(notes)),
    )


def _load_plan(source: PlanLike) -> _LoadedPlan:
    if isinstance(source, Result):
        if source.placement is None:
            raise PlanError(f"holds no placement: its status is {source.status}", where="a plan to compare")
        return _LoadedPlan("the plan", plan_of(source), source.problem, source.placement)
    plan = load_plan_unless_split(source)
    if plan is not None and not plan.assignment:
        remedy = "place the model again"
        raise PlanError(f"holds no placement: its status is {plan.status}", where=str(source), remedy=remedy)
    return _LoadedPlan(os.fspath(source), plan)


def _short_names(first: str, second: str) -> tuple[str, str]:
    """The file names of two plans, or their whole paths if the names are equal."""
    short = Path(first).name, Path(second).name
    if short[0] != short[1]:
        return short
    return (first, second) if first != second else ("before", "after")


def _require_same_model(first: _LoadedPlan, second: _LoadedPlan, names: tuple[str, str]) -> None:
    if first.plan is None or second.plan is None:
        return
    known = first.plan.graph_hash, second.plan.graph_hash
    if all(known) and known[0] != known[1]:
        a, b = (
            f"{name} of {plan.source.path}" if plan.source else name
            for name, plan in zip(names, (first.plan, second.plan), strict=True)
        )
        raise PlanError(
            f"the plans are of different models, or of one read with different options: {a}, and {b}",
            remedy="compare plans of one model, with the same --dim and --graph",
        )


def _require_same_ops(old: dict[str, str], new: dict[str, str], names: tuple[str, str]) -> None:
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


def _open_model(side: _LoadedPlan, source: PlanLike, model: Model, options: ProblemOptions, inputs: Any) -> _LoadedPlan:
    if side.problem is not None or isinstance(source, Result):
        return side
    model = find_model(source, None) if model is None else model
    problem, placement = build_for_plan(model, Path(source), None, options, example_inputs=inputs)
    return _LoadedPlan(side.name, side.plan, problem, placement)


def _make_side(side: _LoadedPlan, name: str, notes: list[str]) -> PlanSide:
    if side.problem is not None and side.placement is not None:
        judged = judge_placement(side.problem, side.placement)
        notes += _note_drift(side, name, judged)
        return PlanSide(
            name=name,
            measure=value_name(side.problem.objective, side.problem.ways),
            value=judged.value,
            lower_bound=side.plan.lower_bound if side.plan is not None else 0.0,
            parts=break_down_value(side.problem, side.placement, judged),
            uses=_device_figures(judged.devices),
            holds=dict(
                zip(side.problem.cluster.names, describe_device_parts(side.problem, side.placement), strict=True)
            ),
            nodes={device.name: device.node for device in side.problem.cluster if device.node},
        )
    assert side.plan is not None
    return _read_side(side.plan, name, notes)


def _read_side(plan: PlanFile, name: str, notes: list[str]) -> PlanSide:
    objective, parts = plan.objective, None
    if objective is not None and objective.kind == "throughput":
        parts = break_down_pace(objective.communication, plan.devices, plan.wires, plan.bottleneck, plan.value)
    elif objective is not None and objective.kind == "latency":
        notes.append("where the time of a latency goes needs the timeline, and so the model: give it with --model")
    measure = "value" if objective is None else value_name(Objective(objective.kind, schedule=objective.schedule))
    return PlanSide(
        name=name, measure=measure, value=plan.value, lower_bound=plan.lower_bound, parts=parts,
        uses=_device_figures(plan.devices),
    )  # fmt: skip


def _device_figures(devices: Sequence[Any]) -> dict[str, dict[str, float]]:
    return {
        use.device: {
            "ops": use.ops, "compute": use.compute, "copies": use.send + use.receive, "idle": use.idle,
            "peak": use.peak,
        }
        for use in devices
    }  # fmt: skip


def _note_drift(side: _LoadedPlan, name: str, judged: Judgement) -> list[str]:
    recorded = judged.value if side.plan is None else side.plan.value
    if not np.isfinite(recorded) or abs(judged.value - recorded) <= DRIFT * max(recorded, judged.value):
        return []
    return [
        f"{name} says {format_seconds(recorded)}, and is judged here at {format_seconds(judged.value)}: costs that "
        "were given when it was made, such as --costs, must be given again"
    ]


def _note_setups(first: _LoadedPlan, second: _LoadedPlan, names: tuple[str, str]) -> list[str]:
    """Notes on plans for different devices, or judged by different rules."""
    if first.plan is None or second.plan is None:
        return []
    notes = []
    old, new = first.plan.cluster, second.plan.cluster
    if old is not None and new is not None and old != new:
        a, b = (", ".join(device.name for device in cluster.devices) for cluster in (old, new))
        what = f"{a}, and {b}" if a != b else f"{a}, with other figures"
        notes.append(f"the plans are for different clusters ({what}): each is judged on its own")
    rules = first.plan.objective, second.plan.objective
    if rules[0] is not None and rules[1] is not None and rules[0] != rules[1] and rules[0].kind == rules[1].kind:
        notes.append(
            "the plans are judged by different rules: "
            f"{names[0]} by {_describe_rules(rules[0])}, {names[1]} by {_describe_rules(rules[1])}"
        )
    return notes


def _describe_rules(objective: Any) -> str:
    hows = {"latency": objective.execution, "step": objective.schedule}
    how = hows.get(objective.kind, f"{objective.communication}, {objective.schedule}")
    return f"{how}, memory {objective.memory}"


def _note_swaps(first: _LoadedPlan, second: _LoadedPlan) -> list[str]:
    """A note if swapped names of equal devices explain most of the moves."""
    if first.problem is None or first.placement is None or second.problem is None or second.placement is None:
        return []
    if first.problem.cluster.names != second.problem.cluster.names:
        return []
    if first.placement.way is not None or second.placement.way is not None:
        return []
    swaps, left = match_interchangeable(first.problem.cluster, first.placement.device, second.placement.device)
    return [f"equal devices trade places ({swaps}): apart from that, {left} ops moved"] if swaps else []
