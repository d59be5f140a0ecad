"""placewise inspect: what a model consists of."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.run import guarded, listen, show, show_json, warn, warn_of, working

if TYPE_CHECKING:
    from placewise.analysis.inspect import Inspection, InspectionRow
    from placewise.core.options import ProblemOptions


_MAX_ROWS = 30


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
    from placewise.analysis.inspect import price_model
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
    _print(inspection)


def _print(found: Inspection) -> None:
    from placewise._util.units import format_bytes, format_count
    from placewise.reporting.console import rows_table
    from placewise.reporting.slowest import slowest_view

    flops = "unknown: the file gives times" if found.flops is None else f"{format_count(found.flops)}FLOP"
    backward = f" ({found.backward_ops} backward)" if found.backward_ops else ""
    parameters = f"{format_count(found.parameters)} parameters in {found.weights} weights"
    lines = [
        ("ops", f"{found.ops}{backward}, {found.tensors} tensors, {found.edges} edges"),
        ("work", flops),
        *(
            ("phase", f"{phase.name}, {phase.ops} ops, {format_count(phase.flops)}FLOP, ×{phase.repeats}")
            for phase in found.phases
        ),
        ("weights", f"{format_bytes(found.weight_bytes)}, {parameters}"),
        ("state", format_bytes(found.state_bytes)),
        ("activations", f"{format_bytes(found.activation_bytes)} in all tensors together"),
        ("groups", str(found.groups)),
        *(("input", text) for text in found.inputs),
        *(("output", text) for text in found.outputs),
    ]
    show(rows_table(("", ""), lines), "")
    show(rows_table(_columns("kind"), [_cells(row) for row in found.by_kind]), "")
    show(rows_table(_columns("scope"), [_cells(row) for row in found.by_scope[:_MAX_ROWS]]))
    if len(found.by_scope) > _MAX_ROWS:
        show(f"… and {len(found.by_scope) - _MAX_ROWS} more scopes: --json shows all")
    if found.slowest_ops:
        show("", slowest_view(found.slowest_ops, found.slowest_modules))


def _columns(what: str) -> tuple[str, ...]:
    return (what, "ops ", "FLOPs ", "weights ", "outputs ")


def _cells(row: InspectionRow) -> tuple[str, ...]:
    from placewise._util.units import format_bytes, format_count

    return (
        row.name, str(row.ops), format_count(row.flops), format_bytes(row.weight_bytes), format_bytes(row.output_bytes),
    )  # fmt: skip
