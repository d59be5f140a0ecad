"""placewise explain: why an op is where it is, and what it costs to have it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, progress, show, show_json, warn
from placewise.errors import InputError

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options()
def explain(
    plan: opt.PlanPath,
    op: Annotated[
        str | None, typer.Argument(help="The name of an op or module, or a regular expression that matches one op.")
    ] = None,
    why_not: Annotated[
        list[str] | None,
        typer.Option(
            "--why-not",
            help="DEVICE, tp=4, recompute, no-recompute or no-sequence-parallel: force it, and place the rest again.",
        ),
    ] = None,
    model: opt.MovedModel = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the best plan of a --why-not here.")
    ] = None,
    placer: opt.Placer = "auto",
    time_limit: Annotated[
        str, typer.Option(help="Time limit for each --why-not search, as 60s.", rich_help_panel="Search")
    ] = "10s",
    gap: opt.Gap = "0%",
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    devices: opt.Devices = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Explain why an op is where it is: its compute, copies and memory there and elsewhere.

    With --why-not, the op is forced onto that device and the rest is placed again, to show what the move really costs.
    Choices for the whole plan, such as no-sequence-parallel, need no op.
    """
    from placewise.analysis.explain import explain as study
    from placewise.core.build import build_for_plan
    from placewise.files.atomic import ensure_writable
    from placewise.files.plan_file import find_model, save_plan
    from placewise.reporting.split_explanation import document_of, view_of

    listen(quiet)
    if output is not None:
        if not why_not:
            raise InputError("-o keeps the plan of a forced move", remedy="add --why-not DEVICE")
        ensure_writable(output)
    budget = opt.budget_of(time_limit, gap, seed, threads)
    with progress(quiet, budget.seconds * len(why_not or ())) as on_progress:
        problem, placement = build_for_plan(find_model(plan, model), plan, devices, problem_options)
        found = study(problem, placement, op, tuple(why_not or ()), budget, placer=placer, on_progress=on_progress)
    warn(problem.warnings, quiet)
    kept = [result for result in found.results if result.placement is not None]
    if output is not None and kept:
        save_plan(min(kept, key=lambda result: result.value), output)
    if as_json:
        show_json(document_of(found.explanation))
        return
    show(view_of(found.explanation))
    if output is not None:
        show(f"wrote {output}" if kept else "nothing is written: no plan was found")
