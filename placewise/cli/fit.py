"""placewise fit: the command that runs a language model here, its speed, and what would make it faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import INFEASIBLE, UNKNOWN, guarded, listen, progress, show, show_json, warn_of

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options("dims", "precision", "cache_type", "cache", "costs", "headroom", "max_memory", "exclude")
def fit(
    model: opt.Model,
    devices: opt.Devices = None,
    target: Annotated[str, typer.Option("--for", help="What runs the model: llama.cpp or vllm.")] = "llama.cpp",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Run the command and llama.cpp's own --fit here, and print the faster one."),
    ] = False,
    time_limit: Annotated[
        str, typer.Option(help="Time limit for each search, as 60s.", rich_help_panel="Search")
    ] = "10s",
    gap: opt.Gap = "0%",
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Print the command that runs a language model on this machine, or on --devices, and how fast it will be.

    With it: what limits the speed, and what would be twice as fast. Exit codes as those of place.
    """
    from placewise.analysis.fit.fit_model import fit_model
    from placewise.model.result import Outcome
    from placewise.reporting.fitted import fitted_document, fitted_view

    listen(quiet)
    budget = opt.budget_of(time_limit, gap, seed, threads)
    with progress(quiet, budget.seconds) as on_progress:
        found = fit_model(
            model, devices, problem_options, target=target, measure=measure, budget=budget, on_progress=on_progress
        )
    warn_of(found.result.problem, devices or "this", quiet, models=as_json)
    if as_json:
        show_json(fitted_document(found))
    else:
        show(fitted_view(found))
    if found.result.status.outcome is Outcome.INFEASIBLE:
        raise typer.Exit(INFEASIBLE)
    if found.result.placement is None:
        raise typer.Exit(UNKNOWN)
