"""placewise diff: two plans of one model beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, show, show_json, working

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options()
def diff(
    before: Annotated[Path, typer.Argument(help="Plan file, or a published split.")],
    after: Annotated[Path, typer.Argument(help="Another plan of the same model.")],
    model: opt.MovedModel = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show the differences between two plans: their values and where the time goes, what moved, and device use."""
    from placewise.analysis.diff import diff as compare
    from placewise.reporting.difference import difference_view, document_of

    listen(quiet)
    with working(quiet, "reading the model"):
        found = compare(before, after, model, problem_options)
    if as_json:
        show_json(document_of(found))
    else:
        show(difference_view(found))
