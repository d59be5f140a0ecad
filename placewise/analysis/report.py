"""Makes the HTML page of a plan: opens its model if that is available, judges it again, and writes the page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from placewise.core.build import Devices, build_for_plan
from placewise.core.open_model import Model
from placewise.core.options import NO_OPTIONS, ProblemOptions
from placewise.errors import PlanError
from placewise.exporters.stage_timeline import StageTimeline, schedule_stages
from placewise.exporters.stage_work import COMPUTE
from placewise.exporters.timeline_tasks import schedule_tasks
from placewise.files.atomic import atomic_write
from placewise.files.plan_file import PlanFile, find_model, is_plan, load_plan, plan_of, require_same_file
from placewise.model.columns import frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Result
from placewise.reporting.critical_path import critical_path
from placewise.reporting.page.data import page_data
from placewise.reporting.page.html import page_text
from placewise.reporting.page.plan_view import Period, PlacedModel, PlanView, StagePeriod
from placewise.simulate import judge_placement


def open_plan(
    path: str | os.PathLike[str],
    model: Model = None,
    devices: Devices | None = None,
    options: ProblemOptions = NO_OPTIONS,
    *,
    inputs: Any = None,
) -> PlanView:
    """A plan file with its problem and judgement, if its model is given or is at the path in the plan.

    Otherwise the view has the plan alone and says what is missing. Raises InputError and its kin for a plan or a given
    model that cannot be read, and for a model that is not the plan's.
    """
    if not is_plan(path):
        raise PlanError(
            "is a published split, not a plan", where=str(path), remedy="placewise place --start makes a plan of it"
        )
    plan = load_plan(path)
    name = _model_name(plan.source, Path(path).name)
    try:
        source = find_model(path) if model is None else model
    except PlanError as error:
        return PlanView(plan, name, missing=f"the plan {error.problem}: give the model with --model")
    if not plan.assignment:
        return PlanView(plan, name, missing=plan.unmet or f"the plan holds no placement: it is {plan.status}")
    problem, placement = build_for_plan(source, path, devices, options, example_inputs=inputs)
    if model is None:
        require_same_file(path, problem.graph)
    return make_view(plan, name, problem, placement, judge_placement(problem, placement))


def open_result(result: Result, plan: PlanFile | None = None) -> PlanView:
    """The view of a result of `place`; `plan` is its plan file, if that contains more."""
    plan = plan_of(result) if plan is None else plan
    name = _model_name(result.problem.graph.source, "a model")
    if result.placement is None or result.judgement is None:
        return PlanView(plan, name, missing=result.unmet or "there is no placement")
    return make_view(plan, name, result.problem, result.placement, result.judgement)


def make_view(plan: PlanFile, name: str, problem: Problem, placement: Placement, judgement: Judgement) -> PlanView:
    """The view of a plan with its problem and judgement."""
    path = () if judgement.timeline is None else critical_path(problem, placement, judgement.timeline)
    period = _pipeline_period(problem, placement, judgement)
    stages = _stage_period(problem, placement, judgement)
    return PlanView(plan, name, PlacedModel(problem, placement, judgement, period, path, stages))


def render_page(view: PlanView) -> str:
    """The HTML page of a plan."""
    return page_text(page_data(view))


def write_page(html: str, path: str | os.PathLike[str]) -> None:
    """Write a page, atomically. Raises OutputError."""
    with atomic_write(path) as file:
        file.write(html)


def _model_name(source: Any, default: str) -> str:
    """The name of the model's file or generator; of a configuration, whose file is always called so, its folder."""
    if not source or not source.path:
        return default
    path: str = source.path
    if path.startswith(("zoo:", "hf:")):
        return path
    file = Path(path)
    return file.parent.name if file.name == "config.json" and file.parent.name else file.name


def _pipeline_period(problem: Problem, placement: Placement, judgement: Judgement) -> Period | None:
    """One sample in a full pipeline; None without a single period, or with replicated stages."""
    objective = problem.objective
    if objective.kind != "throughput" or not 0 < judgement.value < math.inf or placement.replicas is not None:
        return None
    if problem.ways is not None:
        return None
    if objective.schedule == "gpipe" and problem.graph.ops.backward.any():
        return None
    tasks = schedule_tasks(problem, placement, judgement, 1)
    tracks = tuple(dict.fromkeys((task.place, task.track) for task in tasks))
    number = {track: k for k, track in enumerate(tracks)}
    columns: Mapping[str, Any] = {
        "track": frozen(np.array([number[task.place, task.track] for task in tasks]), np.int32),
        "start": frozen(np.array([task.start for task in tasks]), np.float64),
        "spent": frozen(np.array([task.seconds for task in tasks]), np.float64),
        "op": frozen(np.array([task.op for task in tasks]), np.int32),
        "tensor": frozen(np.array([task.tensor for task in tasks]), np.int32),
    }
    return Period(judgement.value, tracks, **columns)


def _stage_period(problem: Problem, placement: Placement, judgement: Judgement) -> StagePeriod | None:
    """One micro-batch in a pipeline whose ops are split; None for any other placement, or one that cannot run."""
    if not judgement.stages or not 0 < judgement.value < math.inf:
        return None
    made = schedule_stages(problem, placement, judgement)
    numbered = list(enumerate(made.tasks))
    of_op = {task.op: number for number, task in numbered if task.what == COMPUTE}
    rest = [number for number, task in numbered if task.what != COMPUTE]
    chosen = np.array([*(of_op[op] for op in range(problem.n_ops)), *rest], np.int64)
    return StagePeriod(
        made.period,
        frozen(np.array(made.stage)[chosen], np.int32),
        frozen(made.start[chosen], np.float64),
        frozen(np.array([made.tasks[number].seconds for number in chosen.tolist()]), np.float64),
        tuple(made.tasks[number].what + _name_peer(made.tasks[number].peer) for number in rest),
        frozen(np.array([made.tasks[number].op for number in rest]), np.int32),
        frozen(np.array([made.tasks[number].tensor for number in rest]), np.int32),
        frozen(np.array(_first_ops(made)), np.int32),
        made.joined,
    )


def _first_ops(made: StageTimeline) -> list[int]:
    """The first op of every pass through a stage: of a run of its tasks without another stage's between them."""
    found: dict[int, int] = {}
    run = 0
    for number, (task, stage) in enumerate(zip(made.tasks, made.stage, strict=True)):
        run += number > 0 and stage != made.stage[number - 1]
        if task.what == COMPUTE:
            found.setdefault(run, task.op)
    return list(found.values())


def _name_peer(stage: int) -> str:
    return f" stage {stage}" if stage >= 0 else ""
