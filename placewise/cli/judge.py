"""placewise judge: what a given plan is worth, and which rules it breaks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, show, show_json, warn, working

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.model.placement import Placement
    from placewise.model.problem import Problem
    from placewise.model.result import Judgement


@guarded
@opt.with_problem_options()
def judge(
    model: opt.Model,
    plan: opt.PlanPath,
    devices: opt.Devices = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Price a plan, valid or not; list the rules it breaks and what memory holds at its peak.

    Options that are not given are the plan's own.
    """
    from placewise.coarsen.module_parts import list_parts
    from placewise.files.stage_records import list_stages
    from placewise.reporting.console import judgement_view
    from placewise.reporting.devices import peak_record
    from placewise.simulate import memory_peaks

    problem, placement, judgement = judge_plan(model, plan, devices, problem_options, quiet)
    peaks = memory_peaks(problem, placement, judgement.timeline)
    if as_json:
        peaks_and_parts = {"peaks": [peak_record(peak) for peak in peaks], "parts": list_parts(problem, placement)}
        stages = list_stages(problem, placement, judgement) if judgement.stages else ()
        records = {"stages": [stage.model_dump() for stage in stages]} if problem.ways is not None else {}
        show_json(_document(judgement) | peaks_and_parts | records)
        return
    show(judgement_view(problem, judgement, peaks, placement))


def judge_plan(
    model: opt.Model, plan: opt.PlanPath, devices: str | None, problem_options: ProblemOptions, quiet: bool
) -> tuple[Problem, Placement, Judgement]:
    """The problem and the placement of a plan, judged; warnings go to standard error."""
    from placewise.core.build import build_for_plan
    from placewise.simulate import judge_placement

    listen(quiet)
    with working(quiet, "reading the model"):
        problem, placement = build_for_plan(model, plan, devices, problem_options)
        judgement = judge_placement(problem, placement)
    warn(problem.warnings, quiet)
    return problem, placement, judgement


def _document(judgement: Judgement) -> dict[str, Any]:
    return {
        "value": judgement.value,
        "valid": judgement.valid,
        "bottleneck": judgement.bottleneck,
        "devices": [asdict(use) for use in judgement.devices],
        "phases": [asdict(phase) for phase in judgement.phases],
        "wires": dict(judgement.wires),
        "violations": [asdict(broken) for broken in judgement.violations],
        **({} if judgement.pipeline is None else {"pipeline": asdict(judgement.pipeline)}),
    }
