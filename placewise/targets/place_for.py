"""place_for(): a plan for one target, from what that target can express, as it runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from placewise.core.place import place
from placewise.core.target_rules import find_rule, keep_off, run_on_target
from placewise.errors import ExportError, InputError
from placewise.exporters.base import RunningExporter
from placewise.exporters.registry import create_exporter, require_library
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Judgement, Outcome, Reason, Result, Status, gap_of
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, Stopwatch, ignore
from placewise.targets.split_search import SplitPlacer


def place_for(
    problem: Problem,
    target: str,
    placer: str = "auto",
    budget: Budget | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    hints: Hints = NO_HINTS,
    on_progress: OnProgress = ignore,
) -> Result:
    """Place a problem for a target: every placement that is looked at, naive ones too, is one that it can express.

    The result's problem is run as the target runs it; its bound holds for what the target can express. Raises
    InputError for an unknown target, ExportError for one that cannot take the model or the devices.
    """
    exporter, watch = find_exporter(target), Stopwatch(budget or Budget())
    refused = _without_disks(problem, exporter)
    space = exporter.space(refused)
    if space.lines and placer != "auto":
        raise InputError(f"every split that {target} can express is searched", remedy="leave out the placer")
    parts = [refused] if space.lines else list(space.problems)
    results = list[Result]()
    for number, part in enumerate(parts):
        on_target, rest = run_on_target(part, target), watch.rest()
        project = partial(_project, exporter, on_target)
        known = replace(hints, placements=tuple(filter(None, map(project, hints.placements))))
        found = place(
            on_target,
            SplitPlacer(target, space.lines) if space.lines else placer,
            replace(rest, seconds=rest.seconds / (len(parts) - number)),
            options=None if space.lines else options,
            hints=known,
            on_progress=on_progress,
            project=project,
        )
        results.append(replace(found, problem=_as_asked(found.problem, problem)))
    best = _join(results)
    notes = (f"made for {target}, which {find_rule(target).runs}", *best.notes)
    return replace(best, seconds=watch.elapsed, target=target, notes=notes)


def _project(exporter: RunningExporter, problem: Problem, placement: Placement) -> Placement | None:
    """The nearest placement that the target can express; None if there is none."""
    try:
        return exporter.project(problem, placement)
    except ExportError:
        return None


def find_exporter(target: str) -> RunningExporter:
    """The exporter of a target that runs models. Raises InputError, MissingExtraError."""
    find_rule(target)
    exporter = create_exporter(target)
    require_library(exporter.info)
    assert isinstance(exporter, RunningExporter)
    return exporter


def _without_disks(problem: Problem, exporter: RunningExporter) -> Problem:
    if exporter.info.disk:
        return problem
    return keep_off(problem, [d for d, device in enumerate(problem.cluster) if device.kind == "disk"])


def _as_asked(part: Problem, problem: Problem) -> Problem:
    """A part without the pins and sets that the target added: the user's rules, the devices, execution and costs."""
    kept = replace(part.constraints, pins=problem.constraints.pins, together=problem.constraints.together)
    return part.with_(constraints=kept)


def _join(results: list[Result]) -> Result:
    """The best result, with what bounds them all."""
    best = min(results, key=lambda result: (result.value, result.status.outcome is Outcome.INFEASIBLE))
    bounds = [Bound(math.inf, "nothing fits") if r.status.outcome is Outcome.INFEASIBLE else r.bound for r in results]
    bound = min(bounds, key=lambda bound: bound.value)
    if best.judgement is None:
        return replace(best, bound=bound)
    baselines = dict[str, tuple[Placement, Judgement]]()
    for result in results:
        for name, known in result.baselines.items():
            baselines[name] = min(baselines.get(name, known), known, key=lambda one: (not one[1].valid, one[1].value))
    optimal = gap_of(best.value, bound.value) <= OPTIMAL_GAP
    ended = [result.status.reason for result in results]
    reason = Reason.PROVED if optimal else next((known for known in ended if known != Reason.PROVED), Reason.FINISHED)
    return replace(
        best,
        bound=bound,
        baselines=baselines,
        status=Status(Outcome.OPTIMAL if optimal else Outcome.FEASIBLE, reason),
    )
