"""placewise compare: several placers on one problem, the same seconds for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewise.cli import INTERRUPTED
from placewise.cli import options as opt
from placewise.cli.run import INFEASIBLE, UNKNOWN, guarded, listen, progress, show, show_json, warn_of

if TYPE_CHECKING:
    from placewise.studies.compare import Entry


@guarded
def compare(
    model: opt.Model,
    devices: opt.Devices = None,
    placers: Annotated[str, typer.Option(help="Names with commas, or 'all'.")] = "all",
    objective: opt.ObjectiveName = None,
    dim: opt.Dims = None,
    time_limit: opt.TimeLimit = None,
    gap: opt.Gap = "0%",
    seed: opt.Seed = 0,
    execution: opt.Execution = None,
    communication: opt.Communication = None,
    memory: opt.Memory = None,
    contiguous: opt.Contiguous = None,
    convex: opt.Convex = False,
    replicas: opt.Replicas = None,
    step_samples: opt.StepSamples = None,
    schedule: opt.Schedule = None,
    view: opt.View = None,
    costs: opt.Costs = None,
    graph: opt.GraphName = None,
    optimizer: opt.Optimizer = None,
    freeze: opt.Freeze = None,
    dtype: opt.Dtype = None,
    pin: opt.Pins = None,
    forbid: opt.Forbidden = None,
    headroom: opt.Headroom = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run several placers on one problem and show the leaderboard; --time-limit holds for each."""
    from placewise.building import build
    from placewise.studies.compare import best_bound, parse_placers
    from placewise.studies.compare import compare as run

    listen(quiet)
    wishes = opt.wishes_of(
        objective, execution, communication, memory, contiguous, headroom, pin, forbid, dim, view, costs, graph, convex,
        replicas=replicas, step_samples=step_samples, schedule=schedule, dtype=dtype, optimizer=optimizer,
        freeze=freeze,
    )  # fmt: skip
    names, budget = parse_placers(placers), opt.budget_of(time_limit, gap, seed)
    with progress(quiet) as on_progress:
        problem = build(model, devices, wishes)
        entries = run(problem, names, budget, on_progress=on_progress)
    warn_of(problem, devices, quiet)
    bound = best_bound(entries)
    if as_json:
        show_json({"lower_bound": bound, "entries": [_document(entry, bound) for entry in entries]})
    else:
        _print(entries, bound)
    code = _exit_code(entries)
    if code:
        raise typer.Exit(code)


def _exit_code(entries: tuple[Entry, ...]) -> int:
    if any(entry.interrupted for entry in entries):
        return INTERRUPTED
    results = [entry.result for entry in entries if entry.result is not None]
    if any(result.placement is not None for result in results):
        return 0
    return INFEASIBLE if any(result.unmet for result in results) else UNKNOWN


def _print(entries: tuple[Entry, ...], bound: float) -> None:
    from placewise.model.result import gap_of
    from placewise.report.console import rows_table
    from placewise.units import format_seconds

    rows = []
    for entry in entries:
        result = entry.result
        if result is None or result.judgement is None:
            why = entry.refusal if result is None else result.unmet or "; ".join(result.notes) or str(result.status)
            rows.append((entry.placer, "–", "–", "–" if result is None else f"{result.seconds:.2f} s", why))
            continue
        gap = f"{gap_of(result.value, bound):.2%}"
        rows.append(
            (entry.placer, format_seconds(result.value), gap, f"{result.seconds:.2f} s", "; ".join(result.notes))
        )
    unmet = next((entry.result.unmet for entry in entries if entry.result is not None and entry.result.unmet), "")
    last = f"infeasible: {unmet}" if unmet else f"lower bound {format_seconds(bound)}"
    show(rows_table(("placer", "value ", "gap ", "took ", ""), rows), last)


def _document(entry: Entry, bound: float) -> dict[str, Any]:
    from placewise.model.result import gap_of

    result = entry.result
    if result is None:
        return {"placer": entry.placer, "refusal": entry.refusal}
    return {
        "placer": entry.placer,
        "value": result.value,
        "gap": gap_of(result.value, bound),
        "own_lower_bound": result.lower_bound,
        "bound_method": result.bound.method,
        "status": str(result.status.outcome),
        "reason": str(result.status.reason),
        "seconds": result.seconds,
        "seed": result.seed,
        "notes": list(result.notes),
        "unmet": result.unmet,
    }
