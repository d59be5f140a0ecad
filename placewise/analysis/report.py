"""A plan as a page: opened with its model where that is at hand, judged again, and written whole or not at all."""

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
from placewise.export.picture import tasks_of
from placewise.files.atomic import atomic_write
from placewise.files.plan_file import PlanFile, find_model, is_plan, load_plan, plan_of, require_same_file
from placewise.model.columns import frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Result
from placewise.report.critical import critical_path
from placewise.report.page.data import page_data
from placewise.report.page.html import page_text
from placewise.report.page.opened import Opened, Period
from placewise.simulate import judge_placement


def open_plan(
    path: str | os.PathLike[str],
    model: Model = None,
    devices: Devices | None = None,
    options: ProblemOptions = NO_OPTIONS,
    *,
    inputs: Any = None,
) -> Opened:
    """A plan file and, if its model is where it says or is given, the problem and the judge's word.

    Without the model the answer has the plan alone and says what is missing. Raises InputError and its kin for a plan
    that cannot be read, and for a model that is given and cannot be, or is another one.
    """
    if not is_plan(path):
        raise PlanError(
            "is a published split, not a plan", where=str(path), remedy="placewise place --start makes a plan of it"
        )
    plan = load_plan(path)
    name = _name(plan, path)
    try:
        source = find_model(path) if model is None else model
    except PlanError as error:
        return Opened(plan, name, missing=f"the plan {error.problem}: give the model with --model")
    if not plan.assignment:
        return Opened(plan, name, missing=plan.unmet or f"the plan holds no placement: it is {plan.status}")
    problem, placement = build_for_plan(source, Path(path), devices, options, example_inputs=inputs)
    if model is None:
        require_same_file(path, problem.graph)
    return opened(plan, name, problem, placement, judge_placement(problem, placement))


def open_result(result: Result, plan: PlanFile | None = None) -> Opened:
    """An answer of `place`, ready to be shown; `plan` is its plan file, where that says more."""
    plan = plan_of(result) if plan is None else plan
    source = result.problem.graph.source
    name = name_of_source(source.path) if source and source.path else "a model"
    if result.placement is None or result.judgement is None:
        return Opened(plan, name, missing=result.unmet or "there is no placement")
    return opened(plan, name, result.problem, result.placement, result.judgement)


def opened(plan: PlanFile, name: str, problem: Problem, placement: Placement, judgement: Judgement) -> Opened:
    """A plan with all that belongs to it, ready to be shown."""
    path = () if judgement.timeline is None else critical_path(problem, placement, judgement.timeline)
    return Opened(plan, name, problem, placement, judgement, _period(problem, placement, judgement), path)


def html_of(shown: Opened) -> str:
    """The page of a plan."""
    return page_text(page_data(shown))


def write_page(html: str, path: str | os.PathLike[str]) -> None:
    """Write a page, atomically. Raises OutputError."""
    with atomic_write(path) as file:
        file.write(html)


def _name(plan: PlanFile, path: str | os.PathLike[str]) -> str:
    source = plan.source
    return name_of_source(source.path) if source and source.path else Path(path).name


def name_of_source(path: str) -> str:
    """What to call a model: the name of its file, or of its generator."""
    return path if path.startswith(("zoo:", "hf:")) else Path(path).name


def _period(problem: Problem, placement: Placement, judgement: Judgement) -> Period | None:
    """One sample through a full pipeline, where that has one period and its stages are on one device each."""
    objective = problem.objective
    if objective.kind != "throughput" or not 0 < judgement.value < math.inf or placement.replicas is not None:
        return None
    if objective.schedule == "gpipe" and problem.graph.ops.backward.any():
        return None
    tasks = tasks_of(problem, placement, judgement, 1)
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
