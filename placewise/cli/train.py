"""placewise train: a policy learns to place a model, by the simulator's word or by what runs really take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placewise.cli import options as opt
from placewise.cli.command import exit_with, guarded, listen, progress, show, show_json, warn_of
from placewise.cli.run import Bind, Inputs, read_inputs

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.training.pretrain import PretrainSetting

LEARNING = "Learning"
Policy = Annotated[str | None, typer.Option(help="The policy to train (default: hsdag).", rich_help_panel=LEARNING)]
Reward = Annotated[
    str | None,
    typer.Option(
        help="The reward: simulated (the default), or measured by a runtime: onnxruntime, openvino, torch.",
        rich_help_panel=LEARNING,
    ),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE for the policy; may be repeated.", rich_help_panel=LEARNING),
]
Updates = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Stop after this many updates (default: 100 if there is no other limit, or the corpus file's).",
        rich_help_panel=LEARNING,
    ),
]
Evaluations = Annotated[
    int | None, typer.Option(min=0, help="Stop after pricing this many placements.", rich_help_panel=LEARNING)
]
Patience = Annotated[
    int | None,
    typer.Option(min=0, help="Stop after this many updates without a better placement.", rich_help_panel=LEARNING),
]
CheckpointPath = Annotated[
    Path | None, typer.Option(help="Store the training here: a folder or a .json file.", rich_help_panel=LEARNING)
]
Every = Annotated[int, typer.Option(min=1, help="Write a checkpoint every N updates.", rich_help_panel=LEARNING)]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the checkpoint.", rich_help_panel=LEARNING)]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        "--from",
        metavar="CHECKPOINT",
        help="Start from the policy and the weights of this checkpoint.",
        rich_help_panel=LEARNING,
    ),
]
CorpusPath = Annotated[
    Path | None,
    typer.Option(
        "--corpus",
        metavar="FILE",
        help="Pretrain on the problems of this TOML file instead of one model.",
        rich_help_panel=LEARNING,
    ),
]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", help="Write TensorBoard logs to this folder.", rich_help_panel=LEARNING)
]

WORKERS = "Many workers"
Controllers = Annotated[
    int | None,
    typer.Option(help="Processes that roll out and learn (default: 2).", rich_help_panel=WORKERS),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Measuring processes per controller (default: 1; 0 if the reward is simulated).",
        rich_help_panel=WORKERS,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="Run on this Ray cluster: HOST:PORT or auto.", rich_help_panel=WORKERS
    ),
]


@guarded
@opt.with_problem_options()
def train(
    model: opt.OptionalModel = None,
    devices: opt.Devices = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan here.")] = None,
    policy: Policy = None,
    reward: Reward = None,
    option: PolicyOption = None,
    updates: Updates = None,
    evaluations: Evaluations = None,
    patience: Patience = None,
    checkpoint: CheckpointPath = None,
    every: Every = 50,
    resume: Resume = False,
    weights: Weights = None,
    corpus: CorpusPath = None,
    tensorboard: TensorBoard = None,
    controllers: Controllers = None,
    workers: Workers = None,
    ray: Ray = None,
    start: Annotated[
        Path | None, typer.Option(help="A plan or published split to start from.", rich_help_panel=LEARNING)
    ] = None,
    bind: Bind = None,
    inputs: Inputs = None,
    trust_model: opt.TrustModel = False,
    time_limit: opt.TimeLimit = None,
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    *,
    problem_options: ProblemOptions,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train a policy to place a model; the best placement found is the plan. Or pretrain it on a corpus.

    Exit codes: 0 done and valid, 2 bad input, 3 proved infeasible, 4 unknown, 130 interrupted without a result.
    """
    from dataclasses import replace

    from placewise.analysis.measure_placements import Setting
    from placewise.core.build import build, start_of
    from placewise.core.options import ProblemOptions
    from placewise.errors import InputError
    from placewise.files.atomic import ensure_writable
    from placewise.files.plan_file import plan_of, save_plan
    from placewise.placers.base import NO_HINTS, Hints
    from placewise.reporting.console import result_view
    from placewise.training.pretrain import PretrainSetting
    from placewise.training.resume import with_weights
    from placewise.training.train import TrainingSetting, worker_config
    from placewise.training.train import train as learn
    from placewise.training.train_result import SIMULATED, document, lines

    listen(quiet)
    budget = replace(opt.budget_of(time_limit, "0%", seed, threads), iterations=updates, evaluations=evaluations)
    options = opt.typed(option) | ({} if patience is None else {"patience": patience})
    pool = worker_config(controllers, workers, ray, reward)
    if corpus is not None:
        given = {"MODEL": model, "--devices": devices, "--output": output, "--reward": reward, "--start": start,
                 "--evaluations": evaluations, "--patience": patience, "--workers": workers, "--bind": bind,
                 "--inputs": inputs}  # fmt: skip
        strangers = [name for name, value in given.items() if value not in (None, [], ())]
        if strangers or problem_options != ProblemOptions():
            stranger = strangers[0] if strangers else "the options of a model"
            raise InputError(f"--corpus excludes {stranger}", remedy="leave it out: the corpus file says everything")
        pretrained = PretrainSetting(
            corpus, policy, options, budget, checkpoint, every, resume, weights, tensorboard, pool
        )
        _on_corpus(pretrained, as_json=as_json, quiet=quiet)
        return
    if model is None:
        raise InputError("there is nothing to train on", remedy="give a model, or a corpus with --corpus FILE")
    if reward in (None, SIMULATED) and (bind or inputs) and not resume:
        raise InputError(
            f"{'--bind' if bind else '--inputs'} goes with a measured reward only",
            remedy="name a runtime: --reward onnxruntime",
        )
    policy, options = with_weights(weights, policy, options)
    measuring = Setting(binding=opt.bindings(bind), inputs=read_inputs(inputs), seed=seed, trust_model=trust_model)
    setting = TrainingSetting(
        policy,
        options,
        budget,
        reward,
        checkpoint,
        every,
        resume,
        tensorboard,
        measuring=measuring,
        workers=pool,
    )
    if output is not None:
        ensure_writable(output)
    with progress(quiet, budget.seconds) as on_progress:
        problem = build(model, devices, problem_options)
        hints = NO_HINTS if start is None else Hints((start_of(start, problem),))
        trained = learn(problem, setting, hints=hints, on_progress=on_progress)
    result = trained.result
    warn_of(problem, devices, quiet)
    if output is not None and result.placement is not None:
        save_plan(result, output)
    if as_json:
        show_json(plan_of(result).model_dump(mode="json") | {"training": document(trained)})
    else:
        show(result_view(result, gantt=not quiet), *lines(trained))
        if output is not None and result.placement is not None:
            show(f"wrote {output}")
    exit_with(result)


def _on_corpus(setting: PretrainSetting, *, as_json: bool, quiet: bool) -> None:
    """Pre-train, and say what came of it."""
    from placewise.training.pretrain import pretrain
    from placewise.training.pretrain_result import document, lines

    with progress(quiet, setting.budget.seconds) as on_progress:
        done = pretrain(setting, on_progress=on_progress)
    if as_json:
        show_json(document(done))
    else:
        show(*lines(done))
