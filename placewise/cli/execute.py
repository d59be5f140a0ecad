"""placewise run: execute a plan on this machine, check its outputs, and time it beside the best single device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.run import guarded, listen, show, show_json, warn, working

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.runtimes.inputs import Arrays

Runtime = Annotated[
    str | None, typer.Option(help="onnxruntime, openvino, torch, pipelining or emulated (default: by the model's format).")
]
Bind = Annotated[
    list[str] | None,
    typer.Option(
        help="DEVICE=PLACE: bind a device of the plan to cores:0-3, cuda:1 or openvino:GPU.0, with runtime options "
        "after ';'; may be repeated."
    ),
]
Inputs = Annotated[Path | None, typer.Option(help="Inputs by name (.npz; default: random).")]
InFlight = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Samples in flight: 1 for latency, more for time per sample in a pipeline (default: by the objective).",
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds; each times every placement once.")]
RuntimeOption = Annotated[list[str] | None, typer.Option("--option", help="NAME=VALUE for the runtime, as first=yes or time-scale=1000.")]
Seconds = Annotated[str, typer.Option("--measure-time", help="Stop measuring after this time, as 30s.")]


@guarded
@opt.with_problem_options()
def run(
    plan: opt.PlanPath,
    model: Annotated[str | None, typer.Option(help="The model file, if it has moved.")] = None,
    runtime: Runtime = None,
    bind: Bind = None,
    inputs: Inputs = None,
    in_flight: InFlight = None,
    rounds: Rounds = 10,
    measure_time: Seconds = "60s",
    option: RuntimeOption = None,
    trust_model: opt.TrustModel = False,
    seed: opt.Seed = 0,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run a plan: check its outputs against one device, then time it in turns with the best single device.

    Exit codes: 0 it runs, 2 bad input or it does not run, 130 interrupted.
    """
    from placewise._util.units import parse_seconds
    from placewise.analysis.measure_placements import (
        PLAN,
        Setting,
        choose_protocol,
        measure_placements,
        tabulate_measurements,
    )
    from placewise.core.build import build_for_plan
    from placewise.errors import RunError
    from placewise.files.plan_file import find_model
    from placewise.reporting.measured import document_of, measurement_view

    listen(quiet)
    with working(quiet, "reading the model"):
        problem, placement = build_for_plan(find_model(plan, model), plan, options=problem_options)
    protocol = choose_protocol(problem, in_flight, rounds, parse_seconds(measure_time))
    options = {name: str(value) for name, value in opt.typed(option).items()}
    setting = Setting(
        runtime, opt.bindings(bind), read_inputs(inputs), protocol, options=options, seed=seed, trust_model=trust_model
    )
    found = measure_placements(problem, {PLAN: placement}, setting)
    sheet = tabulate_measurements(found, PLAN)
    if as_json:
        show_json(document_of(sheet))
    else:
        warn(problem.warnings, quiet)
        show(measurement_view(sheet))
    failure = found.of(PLAN).measurement.failure
    if failure:
        raise RunError(failure)


def read_inputs(path: Path | None) -> Arrays | None:
    """The arrays of a .npz file by name. Raises InputError."""
    from placewise.runtimes.inputs import load_inputs

    return None if path is None else load_inputs(path)
