"""placewise check: whether a given plan keeps every rule."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from placewise.cli import options as opt
from placewise.cli.command import INFEASIBLE, guarded, show, show_json
from placewise.cli.judge import judge_plan

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options()
def check(
    model: opt.Model,
    plan: opt.PlanPath,
    devices: opt.Devices = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Check a plan against every rule: exit code 0 if it is valid, 3 if it breaks one."""
    problem, placement, judgement = judge_plan(model, plan, devices, problem_options, quiet)
    if as_json:
        from placewise.coarsen.module_parts import list_parts

        broken = [asdict(violation) for violation in judgement.violations]
        show_json({"valid": judgement.valid, "violations": broken, "parts": list_parts(problem, placement)})
    else:
        from placewise.reporting.console import device_parts_view, use_of_devices, violation_view

        if problem.ways is None:
            show(device_parts_view(problem, placement), violation_view(judgement))
        else:
            show(*use_of_devices(problem, judgement, placement), violation_view(judgement))
    if not judgement.valid:
        raise typer.Exit(INFEASIBLE)
