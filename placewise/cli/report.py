"""placewise report: a plan as one page that opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, say, show, show_json, warn, working

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options()
def report(
    plan: Annotated[Path, typer.Argument(help="Plan file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the page here (default: beside the plan, as .html).")
    ] = None,
    model: opt.MovedModel = None,
    devices: opt.Devices = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show a plan as one self-contained HTML page: what runs where and when, what it waits for, and the proof.

    It needs the model for the timeline, the graph, the memory and the cuts; without it, the page says what is missing.
    --json prints the data of the page, and writes a page only with --output.
    """
    from placewise.analysis.report import open_plan, write_page
    from placewise.files.atomic import ensure_writable
    from placewise.reporting.page.data import page_data
    from placewise.reporting.page.html import page_text

    listen(quiet)
    if output is None and not as_json:
        output = plan.with_suffix(".html")
    if output is not None:
        ensure_writable(output)
    with working(quiet, "reading the model"):
        opened = open_plan(plan, model, devices, problem_options)
    if opened.problem is not None:
        warn(opened.problem.warnings, quiet)
    elif not quiet:
        say(f"note: {opened.missing}; the page has no timeline, graph, memory and cuts")
    data = page_data(opened)
    if output is not None:
        write_page(page_text(data), output)
    if as_json:
        show_json(data)
    else:
        show(f"wrote {output}")
