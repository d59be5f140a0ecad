"""placewise compare: several placers on one problem, the same seconds for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import INTERRUPTED
from placewise.cli import options as opt
from placewise.cli.command import INFEASIBLE, UNKNOWN, emit, guarded, listen, progress, show, show_json, warn_of
from placewise.cli.run import Bind, InFlight, Inputs, Rounds, Runtime, Seconds, read_inputs
from placewise.errors import InputError

if TYPE_CHECKING:
    from placewise.analysis.compare import LeaderboardEntry
    from placewise.core.options import ProblemOptions


@guarded
@opt.with_problem_options()
def compare(
    model: opt.Model,
    devices: opt.Devices = None,
    placers: Annotated[str, typer.Option(help="Placers, separated by commas, or 'all'.")] = "all",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the leaderboard here.")] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="table, json, csv or markdown (default for a file: by its suffix)."),
    ] = None,
    expert: Annotated[Path | None, typer.Option(help="A split or plan made by hand, for the placer 'expert'.")] = None,
    measure: Annotated[
        int | None, typer.Option(min=1, help="Run the N best placements on this machine, in turns.")
    ] = None,
    runtime: Runtime = None,
    bind: Bind = None,
    inputs: Inputs = None,
    in_flight: InFlight = None,
    rounds: Rounds = 10,
    measure_time: Seconds = "60s",
    trust_model: opt.TrustModel = False,
    save_plan: Annotated[
        Path | None, typer.Option(help="Write the best plan here, including the leaderboard, for placewise report.")
    ] = None,
    time_limit: opt.TimeLimit = None,
    gap: opt.Gap = "0%",
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run several placers on one problem and show the leaderboard; --time-limit applies to each.

    Exit codes: 0 a placer found a placement, 2 bad input, 3 proved infeasible, 4 unknown, 130 interrupted.
    """
    from placewise._util.units import parse_seconds
    from placewise.analysis.compare import best_plan, parse_placers, tabulate_entries
    from placewise.analysis.compare import compare as run
    from placewise.analysis.measure_placements import Setting, add_measurements, choose_protocol
    from placewise.core.build import build, start_of
    from placewise.files.atomic import atomic_write, ensure_writable
    from placewise.files.plan_file import save_plan as save
    from placewise.reporting.leaderboard import board_view, document_of, format_for, render_leaderboard

    listen(quiet)
    form = format_for(output, _wanted(form, as_json))
    names, budget = parse_placers(placers), opt.budget_of(time_limit, gap, seed, threads)
    for path in (output, save_plan):
        if path is not None:
            ensure_writable(path)
    with progress(quiet) as on_progress:
        problem = build(model, devices, problem_options)
        human = None if expert is None else start_of(expert, problem)
        entries = run(problem, names, budget, expert=human, on_progress=on_progress)
    warn_of(problem, devices, quiet)
    board, best = tabulate_entries(entries), best_plan(entries)
    if save_plan is not None and best is not None:
        save(best, save_plan)
    if measure is not None:
        protocol = choose_protocol(problem, in_flight, rounds, parse_seconds(measure_time))
        setting = Setting(runtime, opt.bindings(bind), read_inputs(inputs), protocol, trust_model=trust_model)
        board = add_measurements(board, entries, measure, setting)
    if output is not None:
        with atomic_write(output) as file:
            file.write(render_leaderboard(board, form))
        show(board_view(board), f"wrote {output}")
    elif form == "table":
        show(board_view(board))
    elif form == "json":
        show_json(document_of(board))
    else:
        emit(render_leaderboard(board, form))
    code = _exit_code(entries)
    if code:
        raise typer.Exit(code)


def _wanted(form: str | None, as_json: bool) -> str | None:
    """The format that is asked for; --json is short for one. Raises InputError."""
    if as_json and form not in (None, "json"):
        raise InputError(f"--json and --format {form} are two formats", remedy="leave out one of them")
    return "json" if as_json else form


def _exit_code(entries: tuple[LeaderboardEntry, ...]) -> int:
    if any(entry.interrupted for entry in entries):
        return INTERRUPTED
    results = [entry.result for entry in entries if entry.result is not None]
    if any(result.placement is not None for result in results):
        return 0
    return INFEASIBLE if any(result.unmet for result in results) else UNKNOWN
