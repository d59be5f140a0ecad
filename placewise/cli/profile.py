"""placewise profile: what every op of a model takes on the devices of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, show, show_json, warn, working
from placewise.cli.run import Bind

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.files.profile_file import ProfileFile


@guarded
@opt.with_problem_options("dims", "view", "graph", "optimizer", "freeze", "cache")
def profile(
    model: opt.Model,
    devices: opt.Devices = "cores",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the profile here.")] = None,
    runtime: Annotated[
        str, typer.Option(help="onnxruntime, openvino, torch, pipelining or llama.cpp (default: by the format).")
    ] = "",
    bind: Bind = None,
    repeats: Annotated[
        int, typer.Option(min=3, help="Runs on each device: the least number, but for llama.cpp the most.")
    ] = 20,
    loaded: Annotated[
        bool, typer.Option("--loaded", help="Also measure while all devices run the model at once.")
    ] = False,
    pilots: Annotated[
        int,
        typer.Option(min=0, help="Placements to run, to measure what borders between pieces cost and what plans miss."),
    ] = 5,
    afresh: Annotated[bool, typer.Option("--afresh", help="Ignore cached times, and replace them.")] = False,
    trust_model: opt.TrustModel = False,
    seed: opt.Seed = 0,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure every op of a model on the devices of this machine, for --costs.

    Exit codes: 0 done, 2 bad input or it does not run, 130 interrupted.
    """
    from placewise.core.build import build
    from placewise.files.atomic import ensure_writable
    from placewise.files.profile_file import save_profile
    from placewise.profiling.profile import Profiling
    from placewise.profiling.profile import profile as measure
    from placewise.profiling.profile_cache import ProfileCache

    listen(quiet)
    if output is not None:
        ensure_writable(output)
    with working(quiet, "reading the model"):
        problem = build(model, devices, problem_options)
    kept = None if problem_options.cache is False else ProfileCache()
    how = Profiling(
        runtime, opt.bindings(bind), repeats, loaded, kept, afresh, seed, trust_model=trust_model, pilots=pilots
    )
    found = measure(problem, how)
    warn(found.notes, quiet)
    if output is not None:
        save_profile(found, output)
    if as_json:
        show_json(found.model_dump(mode="json"))
    else:
        _show(found)
        if output is not None:
            show(f"wrote {output}")


def _show(found: ProfileFile) -> None:
    from placewise._util.units import format_seconds
    from placewise.reporting.console import rows_table

    rows = []
    for device in found.devices:
        for state, figures in (("alone", device.idle), ("all busy", device.loaded)):
            if figures is None:
                continue
            total = sum(seconds or 0.0 for seconds in figures.ops)
            whole = ("–", "–") if figures.whole is None else (format_seconds(figures.whole), f"{figures.spread:.1%}")
            kernels = "–" if figures.whole is None else f"{figures.kernels / figures.whole:.1%}"
            calls = format_seconds(device.call_overhead)
            rows.append(
                (
                    device.name,
                    state,
                    *whole,
                    kernels,
                    calls,
                    format_seconds(total),
                    ("measured before" if device.cached else "measured"),
                )
            )
    head = ("device", "other devices", "whole model ", "spread ", "kernels ", "a call ", "ops ", "")
    show(f"{found.runtime} {found.runtime_version}: {len(found.ops)} ops", rows_table(head, rows))
    for border in found.borders:
        ends, rate = f"{border.source} and {border.target}", f"{border.bandwidth / 1e9:.3g} GB/s"
        each = f"{format_seconds(border.latency)} (spread {border.spread:.1%})"
        show(f"a tensor between stages on {ends} takes {each} and its bytes at {rate}")
    for line in _runs_lines(found):
        show(line)
    fused = {ops for device in found.devices for ops in device.fused}
    if fused:
        show(f"{sum(map(len, fused))} ops share {len(fused)} kernels, and stay together where these costs are used")


def _runs_lines(found: ProfileFile) -> Iterator[str]:
    """What runs of whole placements said."""
    from placewise._util.units import format_bytes, format_seconds
    from placewise.core.apply_profile import summarize_runs

    if found.runs is None:
        return
    runs = summarize_runs(found.runs)
    if runs.cores:
        yield f"the runtime's own threads on {runs.cores} cores: {format_seconds(runs.own_threads)}"
    rate, border = found.runs.border_bytes_per_second, format_seconds(found.runs.border_seconds)
    if found.runs.pilots:
        bytes_ = f" and its bytes at {format_bytes(int(rate))}/s" if rate else ""
        yield f"a tensor from another device costs {border}{bytes_}, by {len(found.runs.pilots) - runs.plans} runs"
    if runs.plans:
        how = f"{abs(runs.longer):.1%} {'longer' if runs.longer > 0 else 'less'}"
        yield f"{runs.describe_plans()} took {how} than the costs say (±{runs.error:.1%})"
