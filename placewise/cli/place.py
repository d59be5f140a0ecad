"""placewise place: a model file in, a checked and bounded plan out."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewise.cli import options as opt
from placewise.cli.command import exit_with, guarded, listen, progress, show, show_json, warn_of

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options()
def place(
    model: opt.Model,
    devices: opt.Devices = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan here.")] = None,
    target: opt.Target = None,
    placer: opt.Placer = "auto",
    option: opt.PlacerOptions = None,
    start: Annotated[
        Path | None, typer.Option(help="Start from this plan or published split.", rich_help_panel="Search")
    ] = None,
    time_limit: opt.TimeLimit = None,
    gap: opt.Gap = "0%",
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    details: Annotated[
        bool, typer.Option("--details", help="List the parts of every device, and the slowest ops and modules.")
    ] = False,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Place a model: decide which device runs each op, and prove how good the answer is.

    Exit codes: 0 done and valid, 2 bad input, 3 proved infeasible, 4 unknown, 130 interrupted without a result.
    """
    from placewise.core.build import build, start_of
    from placewise.core.place import place as place_problem
    from placewise.core.target_rules import check_options
    from placewise.files.atomic import ensure_writable
    from placewise.files.plan_file import plan_of, save_plan
    from placewise.placers.base import NO_HINTS, Hints
    from placewise.targets.kept import describe_kept, list_kept, seconds_after
    from placewise.targets.place_for import place_for
    from placewise.targets.smaller_weights import advise_precision

    listen(quiet)
    budget = opt.budget_of(time_limit, gap, seed, threads)
    if output is not None:
        ensure_writable(output)
    if target is not None:
        check_options(target, problem_options)
    with progress(quiet, budget.seconds) as on_progress:
        problem = build(model, devices, problem_options)
        hints = NO_HINTS if start is None else Hints((start_of(start, problem),))
        search = place_problem if target is None else partial(place_for, target=target)
        result = search(
            problem,
            placer=placer,
            budget=budget,
            options=opt.typed(option),
            hints=hints,
            on_progress=on_progress,
        )
        result = advise_precision(result)
    warn_of(problem, devices, quiet, models=as_json)
    if output is not None and result.placement is not None:
        save_plan(result, output)
    if as_json:
        answers: dict[str, Any] = {"tokens_per_second": result.tokens_per_second, "parts": result.by_module()}
        if details and result.placement is not None:
            from placewise.reporting.slowest import slowest_modules, slowest_ops

            answers["slowest_ops"] = [asdict(row) for row in slowest_ops(problem, result.placement)]
            answers["slowest_modules"] = [asdict(row) for row in slowest_modules(problem, result.placement)]
        show_json(plan_of(result).model_dump(mode="json") | answers)
    else:
        from placewise.reporting.console import result_view

        kept = list_kept(result, seconds_after(result))
        show(result_view(result, gantt=not quiet, targets=describe_kept(kept)))
        if details and result.placement is not None:
            from placewise.reporting.slowest import details_view

            show("", details_view(problem, result.placement))
        if output is not None and result.placement is not None:
            show(f"wrote {output}")
    exit_with(result)
