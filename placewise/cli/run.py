"""placewise run: execute a plan on this machine, check its outputs, and time it beside the best single device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import guarded, listen, say, show, show_json, warn, working

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.runtimes.inputs import Arrays

Runtime = Annotated[
    str | None,
    typer.Option(help="onnxruntime, openvino, torch, pipelining, ray or emulated (default: by the model's format)."),
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
RuntimeOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE for the runtime, as first=yes or time-scale=1000."),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Run the stages on this Ray cluster: HOST:PORT, auto or local."),
]
Seconds = Annotated[str, typer.Option("--measure-time", help="Stop measuring after this time, as 30s.")]
TRAINING = "Training"
Train = Annotated[
    bool,
    typer.Option(
        "--train",
        help="Train: --schedule gpipe, 1f1b, interleaved or zero-bubble, --optimizer sgd, momentum or adam, and "
        "--microbatches per step, each a batch of the plan.",
        rich_help_panel=TRAINING,
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="Number of training steps.", rich_help_panel=TRAINING)]
LearningRate = Annotated[float, typer.Option(help="Of the optimizer.", rich_help_panel=TRAINING)]
CheckpointFolder = Annotated[
    Path | None, typer.Option("--checkpoint", help="Write checkpoints into this folder.", rich_help_panel=TRAINING)
]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Steps per checkpoint.", rich_help_panel=TRAINING)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.", rich_help_panel=TRAINING)]
Restarts = Annotated[
    int,
    typer.Option(
        min=0, help="How often to restart from the checkpoint after the death of a process.", rich_help_panel=TRAINING
    ),
]
CompareSteps = Annotated[
    int, typer.Option(min=0, help="Steps that one process repeats, to compare losses.", rich_help_panel=TRAINING)
]


@guarded
@opt.with_problem_options()
def run(
    plan: opt.PlanPath,
    model: opt.MovedModel = None,
    runtime: Runtime = None,
    ray: RayAddress = None,
    bind: Bind = None,
    inputs: Inputs = None,
    in_flight: InFlight = None,
    rounds: Rounds = 10,
    measure_time: Seconds = "60s",
    option: RuntimeOption = None,
    train: Train = False,
    steps: Steps = 20,
    learning_rate: LearningRate = 1e-3,
    checkpoint: CheckpointFolder = None,
    checkpoint_every: CheckpointEvery = 10,
    resume: Resume = False,
    restarts: Restarts = 3,
    compare_steps: CompareSteps = 2,
    trust_model: opt.TrustModel = False,
    seed: opt.Seed = 0,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run a plan: check its outputs against one device, then time it in turns with the best single device.

    With --train, train it instead (PyTorch): losses, seconds per step and memory beside those predicted.

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
    from placewise.runtimes.registry import choose_ray

    listen(quiet)
    _require_training(train=train, checkpoint=checkpoint, resume=resume)
    if train:
        from placewise.analysis.train_plan import TrainingRunSetting, run_training, tabulate_training, without_training
        from placewise.reporting.training_run import training_run_view

        source = find_model(plan, model)
        with working(quiet, "reading the model"):
            problem, placement = build_for_plan(source, plan, options=without_training(problem_options))
        place = TrainingRunSetting(opt.bindings(bind), read_inputs(inputs), trust_model=trust_model)
        trained = run_training(
            problem, placement, source, problem_options, place, runtime=runtime, steps=steps,
            learning_rate=learning_rate, checkpoint=checkpoint, every=checkpoint_every, resume=resume,
            restarts=restarts, compared=compare_steps, seed=seed,
            on_step=_ignore_step if quiet else _say_step,
        )  # fmt: skip
        table = tabulate_training(trained)
        if as_json:
            show_json(asdict(table))
        else:
            warn(trained.training.job.problem.warnings, quiet)
            show(training_run_view(table))
        return
    with working(quiet, "reading the model"):
        problem, placement = build_for_plan(find_model(plan, model), plan, options=problem_options)
    protocol = choose_protocol(problem, in_flight, rounds, parse_seconds(measure_time))
    options = {name: str(value) for name, value in opt.typed(option).items()}
    runtime, texts = choose_ray(runtime, ray, options)
    setting = Setting(
        runtime, opt.bindings(bind), read_inputs(inputs), protocol, options=texts, seed=seed, trust_model=trust_model
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


def _say_step(number: int, loss: float, seconds: float) -> None:
    say(f"step {number}: loss {loss:.6g}, {seconds:.3f} s")


def _ignore_step(number: int, loss: float, seconds: float) -> None:
    del number, loss, seconds


def _require_training(*, train: bool, checkpoint: Path | None, resume: bool) -> None:
    from placewise.errors import InputError

    if not train and (checkpoint is not None or resume):
        raise InputError("checkpoints are those of a training run", remedy="add --train")
