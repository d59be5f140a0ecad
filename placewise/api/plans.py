"""What is asked of a plan: judge, check, explain, diff, run, export, report."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Unpack

from placewise._util.units import parse_seconds
from placewise.analysis.diff import diff as compare_plans
from placewise.analysis.explain import explain as explain_op
from placewise.analysis.measure_placements import PLAN, Setting, choose_protocol, measure_placements
from placewise.analysis.progress import listening
from placewise.analysis.report import open_plan
from placewise.analysis.train_plan import TrainingRunSetting, run_training, without_training
from placewise.api.results import Explanation, Plan, PlanDiff, RunResult, TrainingRun, write_report
from placewise.core.build import Devices, build_for_plan
from placewise.core.open_model import Model
from placewise.core.options import NO_OPTIONS, ProblemKeywords, options_from
from placewise.core.search_limits import budget_from
from placewise.errors import ExportError, InputError
from placewise.exporters.writing import Export, plan_path, result_of, write_files
from placewise.files.plan_file import find_model, plan_of, require_same_file, save_plan, target_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Violation
from placewise.placers.base import Budget, OnProgress
from placewise.runtimes.registry import choose_ray
from placewise.simulate import judge_placement
from placewise.targets.fastest_split import export_fastest

PlanLike = Plan | str | os.PathLike[str]
"""A plan, a plan file, or a published split."""


def judge(
    model: Model,
    plan: PlanLike | Placement,
    devices: Devices | None = None,
    *,
    example_inputs: Any = None,
    **options: Unpack[ProblemKeywords],
) -> Judgement:
    """Price a plan, also one that breaks rules, and list what it breaks.

    Parameters
    ----------
    model : Problem, or a model as in `place`
        What the plan is for.
    plan : Plan, path or Placement
        A Placement goes with a Problem.
    devices, example_inputs, **options
        As in `place`; what is not given is the plan's own.

    Returns
    -------
    Judgement
        `value` in seconds (inf if it cannot run), figures of every device, and `violations`.

    Raises
    ------
    PlanError
        If the plan belongs to another model.

    Examples
    --------
    >>> import placewise as pw
    >>> plan = pw.place("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, placer="heft")
    >>> pw.judge(plan.problem, plan.placement).value == plan.value
    True

    """
    if isinstance(plan, Placement):
        if not isinstance(model, Problem):
            raise InputError("a placement is judged on a Problem", remedy="build it with build(model, devices)")
        return judge_placement(model, plan)
    return judge_placement(*_problem_of(plan, model, example_inputs, options, devices))


def check(
    model: Model,
    plan: PlanLike | Placement,
    devices: Devices | None = None,
    *,
    example_inputs: Any = None,
    **options: Unpack[ProblemKeywords],
) -> tuple[Violation, ...]:
    """List every rule that a plan breaks; empty if it keeps them all.

    Parameters
    ----------
    model, plan, devices, example_inputs, **options
        As in `judge`.

    Returns
    -------
    tuple of Violation
        The kind of each rule, a message, and the device and ops concerned.

    Raises
    ------
    PlanError
        If the plan belongs to another model.

    Examples
    --------
    >>> import placewise as pw
    >>> plan = pw.place("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, placer="heft")
    >>> pw.check(plan.problem, plan.placement)
    ()

    """
    return judge(model, plan, devices, example_inputs=example_inputs, **options).violations


def run(
    plan: PlanLike,
    model: Model = None,
    *,
    runtime: str | None = None,
    ray: str | None = None,
    bind: Mapping[str, str] | None = None,
    inputs: Mapping[str, Any] | None = None,
    in_flight: int | None = None,
    rounds: int = 10,
    measure_time: float | str = "60s",
    options: Mapping[str, Any] | None = None,
    train: bool = False,
    steps: int = 20,
    learning_rate: float = 1e-3,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    restarts: int = 3,
    compare_steps: int = 2,
    trust_model: bool = False,
    seed: int = 0,
    example_inputs: Any = None,
    **problem_options: Unpack[ProblemKeywords],
) -> RunResult | TrainingRun:
    """Run a plan on this machine: check its outputs against one device, then time it beside that device.

    With `train`, train it instead (docs/runtimes.md#training), by the options `schedule` ("gpipe", "1f1b",
    "interleaved", "zero-bubble"), `optimizer` ("sgd", "momentum", "adam") and `microbatches`.

    Parameters
    ----------
    plan : Plan or path
        A plan, a plan file or a published split.
    model : as in `place`
        Default: the file that the plan names. A PyTorch module is given here, with its `example_inputs`.
    runtime : {"onnxruntime", "openvino", "torch", "pipelining", "ray", "emulated"}
        Default: by the model's format (docs/runtimes.md).
    ray : str
        Run the stages on the Ray cluster at this address, "auto" or "local", instead of on this machine.
    bind : mapping of str to str
        Where devices are, like ``{"npu": "openvino:NPU", "cpu": "cores:0-3"}``.
    inputs : mapping of str to array
        The model's inputs by name. Default: drawn at random.
    in_flight : int
        Samples in flight: 1 for latency, more for a pipeline. Default: by the plan's objective.
    rounds : int
        Rounds, in which every placement is timed once. Default: 10.
    measure_time : float or str
        Stop measuring after this long. Default: "60s".
    options : mapping of str to value
        Options of the runtime.
    train : bool
        Train the plan, of a PyTorch program, in a process per device. Default: False.
    steps : int
        Training steps. Default: 20.
    learning_rate : float
        Of the optimizer. Default: 0.001.
    checkpoint : path
        The folder of checkpoints, from which training restarts where a process dies. Default: none.
    checkpoint_every : int
        Steps per checkpoint. Default: 10.
    resume : bool
        Go on from the checkpoint. Default: False.
    restarts : int
        The most restarts. Default: 3.
    compare_steps : int
        Steps that the whole program repeats in one process, to compare losses and gradients. Default: 2.
    trust_model : bool
        Load a .pt2 file also if that runs code that the file holds (SECURITY.md). Default: False.
    seed : int
        Of the random inputs. Default: 0.
    example_inputs, **problem_options
        As in `place`, such as the `costs` by which the plan is predicted.

    Returns
    -------
    RunResult or TrainingRun
        A plan that fails while it runs is an answer with a `failure`. With `train`: losses, and seconds per step and
        memory beside those predicted; then failures are errors.

    Raises
    ------
    PlacewiseError
        If a device is not here, or the model cannot run here.

    Examples
    --------
    >>> import placewise as pw
    >>> result = pw.run("plan.json", bind={"cpu": "cores:0-1"})  # doctest: +SKIP

    """
    live = None if isinstance(model, (str, os.PathLike)) else model
    if not train and (checkpoint is not None or resume):
        raise InputError("checkpoints are those of a training run", remedy="add --train")
    if train:
        wished = options_from(problem_options)
        unpriced = without_training(wished)
        keywords = {f.name: getattr(unpriced, f.name) for f in fields(unpriced) if f.name != "spare"}
        problem, placement = _problem_of(plan, model, example_inputs, keywords)
        setting = TrainingRunSetting(dict(bind or {}), inputs, live, example_inputs, trust_model=trust_model)
        source = model if model is not None else find_model(plan_of(plan.result) if isinstance(plan, Plan) else plan)
        return TrainingRun(
            run_training(
                problem, placement, source, wished, setting, runtime=runtime, steps=steps, learning_rate=learning_rate,
                checkpoint=None if checkpoint is None else Path(checkpoint), every=checkpoint_every, resume=resume,
                restarts=restarts, compared=compare_steps, seed=seed,
            )
        )  # fmt: skip
    problem, placement = _problem_of(plan, model, example_inputs, problem_options)
    protocol = choose_protocol(problem, in_flight, rounds, parse_seconds(measure_time))
    texts = {name: str(value) for name, value in (options or {}).items()}
    runtime, given = choose_ray(runtime, ray, texts)
    measured = Setting(
        runtime, dict(bind or {}), inputs, protocol, live, example_inputs, given, seed, trust_model=trust_model
    )
    return RunResult(measure_placements(problem, {PLAN: placement}, measured))


def export(
    plan: PlanLike,
    to: str | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    model: Model = None,
    options: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    **problem_options: Unpack[ProblemKeywords],
) -> Export:
    """Write a plan in the form that another tool loads, read it back and judge it again.

    Parameters
    ----------
    plan : Plan or path
        A plan, a plan file or a published split.
    to : str
        The target (docs/export.md), such as "onnx", "vllm" or "device-map". Default: the one that the plan is for.
    path : path
        Where the files are written, if anywhere. A projected plan is written beside them.
    model, example_inputs, **problem_options
        As in `run`.
    options : mapping of str to value
        Options of the target.

    Returns
    -------
    Export
        `exported` has the files and their placement; `asked` and `said` are the judge's figures of the plan and of the
        files; `loss` is how much slower the files are.

    Raises
    ------
    ExportError
        If there is no such target, it cannot take the model, or the files would break a rule.

    Examples
    --------
    >>> import placewise as pw
    >>> plan = pw.place("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, placer="heft")
    >>> pw.export(plan, "dot").loss
    0.0

    """
    if to is None:
        to = plan.result.target if isinstance(plan, Plan) else target_of(plan)
    if not to:
        raise InputError("the plan is for no target", remedy="name one, such as 'onnx'")
    problem, placement = _problem_of(plan, model, example_inputs, problem_options)
    if not isinstance(plan, Plan) and model is None:
        require_same_file(plan, problem.graph)
    made = export_fastest(problem, placement, to, options)
    if path is not None:
        broken = "; ".join(f"{violation.kind}: {violation.message}" for violation in made.said.violations)
        if broken:
            raise ExportError(f"what {to} can say of this plan breaks a rule: {broken}", remedy="choose another target")
        write_files(made.exported, made.info, path)
        if made.projected:
            save_plan(result_of(made, made.problem), plan_path(made.info, path))
    return made


def explain(
    plan: PlanLike,
    op: str | None = None,
    why_not: str | Sequence[str] = (),
    *,
    model: Model = None,
    placer: str = "auto",
    time_limit: float | str = "10s",
    gap: float | str = 0.0,
    seed: int = 0,
    threads: int | None = None,
    budget: Budget | None = None,
    example_inputs: Any = None,
    on_progress: OnProgress | None = None,
    **problem_options: Unpack[ProblemKeywords],
) -> Explanation:
    """Explain why an op is where it is: its compute, copies and memory there and elsewhere.

    Parameters
    ----------
    plan : Plan or path
        A plan, a plan file or a published split.
    op : str
        An op's name, a module, or a regular expression that finds one op. Choices for the whole plan need none.
    why_not : str or sequence of str
        Devices: the op is forced there, and the rest placed anew. Where ops may be split: "tp=4", "recompute",
        "no-recompute", and for the whole plan "sequence-parallel" or "no-sequence-parallel". Default: none; all of the
        latter that the plan has.
    model, example_inputs, on_progress, **problem_options
        As in `run`.
    placer, gap, seed, threads, budget
        Of the search for each device of `why_not`, as in `place`.
    time_limit : float or str
        Seconds of that search. Default: "10s".

    Returns
    -------
    Explanation
        `explanation` with a row per device, and the `plans` with the op elsewhere.

    Raises
    ------
    InputError
        If `op` finds no op, or several in different places, or is missing.

    Examples
    --------
    >>> import placewise as pw
    >>> plan = pw.place("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, placer="heft")
    >>> name = plan.problem.graph.ops.name[0]
    >>> pw.explain(plan, name).explanation.device == plan.assignment[name]
    True

    """
    problem, placement = _problem_of(plan, model, example_inputs, problem_options)
    several = isinstance(why_not, Sequence) and not isinstance(why_not, str)
    devices: tuple[str, ...] = tuple(why_not) if several else (why_not,)  # type: ignore[assignment]
    if not all(isinstance(device, str) for device in devices):
        raise InputError(f"why_not is {reprlib.repr(why_not)}", remedy="give a device, or a list of them")
    limits = budget_from(None if budget is not None else time_limit, gap, seed, threads, budget)
    with listening(on_progress, limits.seconds * len(devices)) as listener:
        explained = explain_op(problem, placement, op, devices, limits, placer=placer, on_progress=listener)
    return Explanation(explained.explanation, tuple(Plan(result) for result in explained.results))


def diff(
    before: PlanLike,
    after: PlanLike,
    *,
    model: Model = None,
    example_inputs: Any = None,
    **problem_options: Unpack[ProblemKeywords],
) -> PlanDiff:
    """Compare two plans of one model: values, where their seconds go, what moved.

    Parameters
    ----------
    before, after : Plan or path
        Plans, plan files or published splits.
    model, example_inputs, **problem_options
        As in `run`.

    Returns
    -------
    PlanDiff
        `difference` with both values and their parts, and the ops that moved.

    Raises
    ------
    PlanError
        If the plans are of different models.

    Examples
    --------
    >>> import placewise as pw
    >>> problem = pw.build("zoo:random-layered", "2xL4,cpu", pw.ProblemOptions(dims={"n_ops": 20}))
    >>> pw.diff(pw.place(problem, placer="single"), pw.place(problem, placer="single")).difference.moved
    0

    """
    for plan in (before, after):
        if isinstance(plan, Plan):
            _of_same_model(plan, model)
    first, second = (plan.result if isinstance(plan, Plan) else plan for plan in (before, after))
    return PlanDiff(compare_plans(first, second, model, options_from(problem_options), inputs=example_inputs))


def report(
    plan: PlanLike,
    path: str | os.PathLike[str] | None = None,
    *,
    model: Model = None,
    example_inputs: Any = None,
    **problem_options: Unpack[ProblemKeywords],
) -> str:
    """Show a plan as one HTML page that opens offline (docs/report.md).

    Parameters
    ----------
    plan : Plan or path
        A plan, a plan file or a published split.
    path : path
        Where the page is written, if anywhere.
    model, example_inputs, **problem_options
        As in `run`. Without the model, the page says what is missing.

    Returns
    -------
    str
        The page.

    Raises
    ------
    OutputError
        If the page cannot be written.

    Examples
    --------
    >>> import placewise as pw
    >>> plan = pw.place("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, placer="heft")
    >>> "<html" in pw.report(plan)[:200]
    True

    """
    if isinstance(plan, Plan):
        if plan.placement is not None:
            _of_same_model(plan, model)
        return plan.report(path)
    return write_report(open_plan(plan, model, None, options_from(problem_options), inputs=example_inputs), path)


def _problem_of(
    plan: PlanLike,
    model: Model,
    example_inputs: Any,
    problem_options: Mapping[str, Any],
    devices: Devices | None = None,
) -> tuple[Problem, Placement]:
    """The problem and the placement of a plan, or of a plan file and the model that it was made from."""
    options = options_from(problem_options)
    if not isinstance(plan, Plan):
        source = find_model(plan, None) if model is None else model
        return build_for_plan(source, plan, devices, options, example_inputs=example_inputs)
    if plan.placement is None:
        raise InputError(f"this plan holds no placement: it is {plan.status}", remedy="place the model again")
    if options == NO_OPTIONS and devices is None and (model is plan.problem or not isinstance(model, Problem)):
        return _of_same_model(plan, model), plan.placement
    file = plan_of(plan.result)
    return build_for_plan(
        find_model(file) if model is None else model, file, devices, options, example_inputs=example_inputs
    )


def _of_same_model(plan: Plan, model: Model) -> Problem:
    """The problem of a plan, read again from the file of a model that is named. Raises PlanError for another model."""
    if not isinstance(model, (str, os.PathLike)):
        return plan.problem
    again, _ = build_for_plan(model, plan_of(plan.result))
    return plan.problem.with_(graph=again.graph)
