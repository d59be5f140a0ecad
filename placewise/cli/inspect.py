"""placewise inspect: what a model consists of."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, show, show_json, warn, warn_of, working

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options(
    "dims", "view", "graph", "optimizer", "freeze", "precision", "cache", "costs", "supported", "unsupported"
)
def inspect(
    model: opt.Model,
    devices: opt.Devices = None,
    depth: Annotated[int, typer.Option(min=1, help="How many levels of scopes to show.")] = 2,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show ops, tensors, FLOPs and weights, by kind and by scope; with devices, the slowest ops on each."""
    from placewise.analysis.inspect import inspect as look
    from placewise.analysis.inspect import inspection_view, price_model
    from placewise.core.open_model import open_model

    listen(quiet)
    with working(quiet, "reading the model"):
        imported = open_model(model, problem_options)
        problem = price_model(imported, model, devices, problem_options)
        inspection = look(imported, depth=depth, problem=problem)
    if as_json:
        show_json(asdict(inspection))
        return
    warn(inspection.warnings, quiet)
    if problem is not None:
        warn_of(problem, devices, quiet)
    show(inspection_view(inspection))
