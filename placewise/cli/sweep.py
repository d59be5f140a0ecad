"""placewise sweep: one model at several sizes, on several clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewise.cli import INTERRUPTED
from placewise.cli import options as opt
from placewise.cli.command import INFEASIBLE, UNKNOWN, emit, guarded, is_watched, listen, show
from placewise.errors import InputError

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.files.sweep_file import SweepFile
    from placewise.placers.base import OnProgress

SWEEP = "Sweep"


@guarded
@opt.with_problem_options()
def sweep(
    model: opt.Model,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--devices",
            "-d",
            help="Clusters as for placewise place; may be repeated, or separated by ';'. 1..8xL4 is eight clusters.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FROM:TO doubles a dimension, FROM:TO:STEP adds, A,B,C lists; k is 1024; may be repeated."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Find the cheapest cluster, or the smallest, with this: 'tokens_per_second>=30', also value, "
            "latency, throughput, memory.",
        ),
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option("--price", help="DEVICE=AMOUNT per hour, as L4=0.70; may be repeated (default: list prices)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the sweep here: .html, .json, .csv or .txt.")
    ] = None,
    target: opt.Target = None,
    resolution: Annotated[
        str, typer.Option(help="Find the largest size that fits to this share; 0: exactly.", rich_help_panel=SWEEP)
    ] = "4%",
    max_points: Annotated[int, typer.Option(help="The most points.", rich_help_panel=SWEEP)] = 256,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one per core).", rich_help_panel=SWEEP)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Evaluate on this Ray cluster: HOST:PORT, auto or local.",
            rich_help_panel=SWEEP,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Write the sweep to this JSON file after every point.", rich_help_panel=SWEEP)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.", rich_help_panel=SWEEP)] = False,
    placer: opt.Placer = "auto",
    option: opt.PlacerOptions = None,
    time_limit: Annotated[
        str | None,
        typer.Option(help="Stop the search of a point after this time (default: 10s).", rich_help_panel="Search"),
    ] = None,
    gap: opt.Gap = "0%",
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    *,
    problem_options: ProblemOptions,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on standard output.")] = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Place a model at several sizes, on several clusters: what fits, how fast it is, and what it costs.

    Exit codes: 0 done, 2 bad input, 3 nothing fits, 4 unknown or the goal is not reached, 130 interrupted.
    """
    from placewise.analysis.sweep.run import plan_sweep, run_sweep
    from placewise.files.atomic import atomic_write, ensure_writable
    from placewise.reporting.sweep import format_of, sweep_view
    from placewise.reporting.sweep_page import render_sweep

    listen(quiet)
    if as_csv and as_json:
        raise InputError("--csv and --json are two formats", remedy="leave out one of them")
    if output is not None:
        format_of(output)
        ensure_writable(output)
    plan = plan_sweep(
        model,
        devices or None,
        parse_ranges(vary),
        problem_options,
        opt.budget_of(time_limit, gap, seed, threads),
        until=until,
        prices=parse_prices(prices),
        resolution=resolution,
        max_points=max_points,
        placer=placer,
        placer_options=opt.typed(option),
        target=target,
    )
    with _bar(quiet) as on_progress:
        found = run_sweep(plan, workers=workers, ray=ray, checkpoint=checkpoint, resume=resume, on_progress=on_progress)
    if output is not None:
        with atomic_write(output) as file:
            file.write(render_sweep(found, format_of(output)))
    if as_json or as_csv:
        emit(render_sweep(found, "json" if as_json else "csv"))
    else:
        show(sweep_view(found), *([f"wrote {output}"] if output is not None else []))
    code = _exit_code(found)
    if code:
        raise typer.Exit(code)


def parse_ranges(texts: list[str] | None) -> dict[str, str]:
    """``["context=4k:256k"]`` → {"context": "4k:256k"}. Raises InputError."""
    return _named(texts, "--vary", "batch=1:64")


def parse_prices(texts: list[str] | None) -> dict[str, object]:
    """``["L4=0.70"]`` → {"L4": "0.70"}. Raises InputError."""
    return dict(_named(texts, "--price", "L4=0.70"))


def _named(texts: list[str] | None, flag: str, like: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or []:
        name, sign, value = text.rpartition("=")
        if not sign or not name or not value:
            raise InputError(f"{flag} {text!r} is not a name and a value", remedy=f"write it like {flag} {like}")
        if name in found:
            raise InputError(f"{flag} {name} is given twice", remedy="give it once")
        found[name] = value
    return found


@contextmanager
def _bar(quiet: bool) -> Iterator[OnProgress]:
    """A bar on standard error, if a person is watching."""
    from placewise.placers.base import Progress, ignore

    if quiet or not is_watched():
        yield ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from placewise._util.text import visible

    columns: tuple[Any, ...] = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def update(state: Progress) -> None:
            done, _, rest = state.message.partition(" of ")
            total = rest.partition(" ")[0]
            bar.update(task, description=visible(state.message), completed=int(done), total=int(total))

        yield update


def _exit_code(found: SweepFile) -> int:
    if not found.complete:
        return INTERRUPTED
    if found.until:
        return 0 if any(answer.devices is not None for answer in found.answers) else UNKNOWN
    if any(point.fits for point in found.points):
        return 0
    return INFEASIBLE if all(point.fits is False for point in found.points) else UNKNOWN
