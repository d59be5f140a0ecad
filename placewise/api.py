"""The Python interface: a model file and devices in, a plan out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placewise._util.units import parse_seconds
from placewise.analysis.compare import LeaderboardEntry, best_bound, best_plan, parse_placers, tabulate_entries
from placewise.analysis.compare import compare as run_all
from placewise.analysis.diff import diff as compare_plans
from placewise.analysis.explain import explain as explain_op
from placewise.analysis.measure_placements import (
    PLAN,
    MeasuredPlacements,
    Setting,
    choose_protocol,
    measure_placements,
    measured_verdict,
    tabulate_measurements,
)
from placewise.analysis.report import open_plan, open_result, render_page, write_page
from placewise.core.build import Devices, build, build_for_plan, start_of
from placewise.core.open_model import Model
from placewise.core.options import ProblemOptions, Rules
from placewise.core.place import place as place_problem
from placewise.errors import ExportError, InputError, PlanError
from placewise.export.writing import Export, export_placement, plan_path, result_of, write_files
from placewise.files.atomic import atomic_write
from placewise.files.plan_file import model_behind, same_file, save_plan
from placewise.files.profile_file import ProfileFile, save_profile
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Result
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, ignore
from placewise.profiling.profile import Profiling
from placewise.profiling.profile import profile as measure
from placewise.profiling.profile_cache import Shelf
from placewise.report.console import result_view
from placewise.report.difference import Difference, difference_view
from placewise.report.explanation import OpExplanation, explanation_view
from placewise.report.gantt import Gantt
from placewise.report.leaderboard import board_view, format_for, render_leaderboard
from placewise.report.measured import measurement_view
from placewise.report.notebook import text_html
from placewise.report.page.plan_view import PlanView
from placewise.report.plain import plain
from placewise.training.pretrain_result import Pretrained
from placewise.training.train_result import Trained
from placewise.training.train_result import lines as training_lines


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The answer of `place`: the result, and what people do with it."""

    result: Result

    @property
    def problem(self) -> Problem:
        return self.result.problem

    @property
    def placement(self) -> Placement | None:
        return self.result.placement

    @property
    def assignment(self) -> dict[str, str]:
        """Op name → device name; empty if there is no placement."""
        result = self.result
        if result.placement is None:
            return {}
        return result.placement.assignment(result.problem.graph, result.problem.cluster)

    @property
    def value(self) -> float:
        """Seconds: latency, or time per sample."""
        return self.result.value

    @property
    def lower_bound(self) -> float:
        """Seconds that no placement can beat."""
        return self.result.lower_bound

    @property
    def gap(self) -> float:
        """(value − lower_bound) / value."""
        return self.result.gap

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible`` or ``unknown``."""
        return str(self.result.status.outcome)

    def summary(self) -> str:
        """What `placewise place` prints, as text."""
        return plain(result_view(self.result))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file (docs/formats.md), atomically. Raises OutputError."""
        save_plan(self.result, path)

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """The plan as one HTML page (docs/report.md), written if `path` is given, atomically. Raises OutputError."""
        return _page(open_result(self.result), path)

    @property
    def timeline(self) -> Gantt | None:
        """What runs when: printed, a line per device and link; in a notebook, a picture. None without a placement."""
        result = self.result
        if result.placement is None or result.judgement is None:
            return None
        return Gantt(result.problem, result.placement, result.judgement)

    def _repr_html_(self) -> str:
        drawn = "" if self.timeline is None else self.timeline._repr_html_()
        return text_html(result_view(self.result, gantt=False)) + drawn

    def __repr__(self) -> str:
        return f"Plan({self.status}, {self.value:.6g} s, gap {self.gap:.2%}, {self.result.placer})"


def place(
    model: Model,
    devices: Devices | None = None,
    *,
    placer: str = "auto",
    objective: str | None = None,
    execution: str | None = None,
    communication: str | None = None,
    memory: str | None = None,
    contiguous: bool | None = None,
    headroom: float | str | Mapping[str, float | str] | Sequence[str] | None = None,
    pins: Rules | None = None,
    forbidden: Rules | None = None,
    dims: Mapping[str, int] | None = None,
    costs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    graph: str | None = None,
    convex: bool | None = None,
    schedule: str | None = None,
    replicas: int | str | None = None,
    step_samples: int | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    frozen: str | Sequence[str] = (),
    together: Sequence[str | Sequence[str]] | None = None,
    max_memory: Mapping[Any, float | str] | None = None,
    exclude: str | Sequence[str] = (),
    offload: bool | None = None,
    unsupported: Rules | None = None,
    ordered: bool | None = None,
    inputs: Any = None,
    start: str | os.PathLike[str] | Placement | None = None,
    budget: Budget | float | str | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = ignore,
) -> Plan:
    """Place a model on devices.

    `model` is a path (ONNX, torch.export, OpenVINO, TensorFlow, a Hugging Face configuration, a published workload, a
    PipeDream profile, a graph or problem file), "zoo:NAME", "hf:NAME", a Graph, a Problem, or a PyTorch module with
    example `inputs` (a tuple, or a mapping of arguments by name); `devices` a line such as ``"2xA100-80GB,cpu"``,
    ``"this"``, a TOML path, a mapping of device to memory, or a Cluster. `start` is where to start
    from: a plan, a published split or a Placement. `budget` may be seconds, also as "60s"; up to `threads` search at a
    time (default: one per core). The other options are those of `placewise.core.options.ProblemOptions`.
    Raises PlacewiseError; an infeasible problem is a plan whose status says so.
    """
    wished: dict[str, Any] = {
        "objective": objective, "execution": execution, "communication": communication, "memory": memory,
        "contiguous": contiguous, "headroom": headroom, "pins": pins, "forbidden": forbidden,
        "dims": {} if dims is None else dims, "costs": costs, "graph": graph, "convex": convex, "schedule": schedule,
        "replicas": replicas, "step_samples": step_samples, "dtype": dtype, "optimizer": optimizer,
        "frozen": frozen, "together": together, "max_memory": {} if max_memory is None else max_memory,
        "exclude": exclude, "offload": offload, "unsupported": unsupported,
        "ordered": ordered,
    }  # fmt: skip
    given = _budget(budget, threads)
    problem = build(model, devices, ProblemOptions(**wished), inputs=inputs)
    hints = NO_HINTS if start is None else Hints((start_of(start, problem),))
    return Plan(place_problem(problem, placer, given, options=options, hints=hints, on_progress=on_progress))


@dataclass(frozen=True, slots=True, eq=False)
class Leaderboard:
    """The answer of `compare`: an entry per placer, the best first, and the same as a text or a file."""

    entries: tuple[LeaderboardEntry, ...]

    @property
    def best(self) -> Plan | None:
        """The best plan; None if no placer found one."""
        first = next(iter(self.entries), None)
        return None if first is None or first.result is None or first.result.placement is None else Plan(first.result)

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the best plan, with the leaderboard in it, atomically. Raises PlanError, OutputError."""
        plan = best_plan(self.entries)
        if plan is None:
            raise PlanError("no placer found a placement", remedy="see the leaderboard for the reasons")
        save_plan(plan, path)

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """The best plan as one HTML page with the leaderboard (docs/report.md). Raises PlanError, OutputError."""
        best = self.best
        if best is None:
            raise PlanError("no placer found a placement", remedy="see the leaderboard for the reasons")
        return _page(open_result(best.result, best_plan(self.entries)), path)

    @property
    def lower_bound(self) -> float:
        """Seconds that no placement can beat: the best bound that any of them proved."""
        return best_bound(self.entries)

    def text(self, form: str = "table") -> str:
        """The leaderboard as `table`, `json`, `csv` or `markdown`. Raises InputError."""
        return render_leaderboard(tabulate_entries(self.entries), format_for(None, form))

    def save(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write it, atomically, in that format or in that of the file's suffix. Raises InputError, OutputError."""
        written = render_leaderboard(tabulate_entries(self.entries), format_for(path, form))
        with atomic_write(path) as file:
            file.write(written)

    def _repr_html_(self) -> str:
        return text_html(board_view(tabulate_entries(self.entries)))

    def __repr__(self) -> str:
        found = sum(entry.value < float("inf") for entry in self.entries)
        return f"Leaderboard({found} of {len(self.entries)} placers have a placement; the best: {self.best!r})"


def compare(
    model: Model,
    devices: Devices | None = None,
    *,
    placers: str | Sequence[str] = "all",
    expert: str | os.PathLike[str] | Placement | None = None,
    inputs: Any = None,
    budget: Budget | float | str | None = None,
    threads: int | None = None,
    on_progress: OnProgress = ignore,
    **problem_options: Any,
) -> Leaderboard:
    """Run several placers (names, or "all") on one problem, each with the whole `budget` and all `threads` for itself.

    `model`, `devices`, `inputs` and the options (`objective`, `dims`, …) are those of `place`. `expert` is a human's
    placement, a plan or a published split: the placer `expert` takes it, and no other. Raises PlacewiseError.
    """
    names, given = parse_placers(placers if isinstance(placers, str) else ",".join(placers)), _budget(budget, threads)
    problem = build(model, devices, ProblemOptions(**problem_options), inputs=inputs)
    human = None if expert is None else start_of(expert, problem)
    return Leaderboard(run_all(problem, names, given, expert=human, on_progress=on_progress))


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The answer of `run`: what a plan really took, beside the best single device."""

    placements: MeasuredPlacements

    @property
    def seconds(self) -> float:
        """The median of the rounds, per sample; inf if the plan failed."""
        return self.placements.of(PLAN).seconds

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the rounds, as a share of the median."""
        return self.placements.of(PLAN).measurement.spread

    @property
    def predicted(self) -> float:
        """What the judge says of the plan under the runtime's execution, in seconds."""
        return self.placements.of(PLAN).predicted

    @property
    def single(self) -> float:
        """Seconds of the best single device."""
        return self.placements.single.seconds

    @property
    def failure(self) -> str:
        """Why the plan does not run, or gives other outputs; "" if it runs."""
        return self.placements.of(PLAN).measurement.failure

    @property
    def verdict(self) -> str:
        """Whether the split is worth it, in one sentence."""
        return measured_verdict(self.placements, PLAN)

    def summary(self) -> str:
        """What `placewise run` prints, as text."""
        return plain(measurement_view(tabulate_measurements(self.placements, PLAN)))

    def _repr_html_(self) -> str:
        return text_html(measurement_view(tabulate_measurements(self.placements, PLAN)))

    def __repr__(self) -> str:
        took = f"failed: {self.failure}" if self.failure else f"{self.seconds:.6g} s"
        return f"Measured({took}, best single device {self.single:.6g} s, {self.placements.runtime.name})"


def run(
    plan: Plan | str | os.PathLike[str],
    model: Model = None,
    *,
    inputs: Any = None,
    runtime: str | None = None,
    bind: Mapping[str, str] | None = None,
    feeds: Mapping[str, Any] | None = None,
    in_flight: int | None = None,
    rounds: int = 10,
    measure_time: float | str = "60s",
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    **problem_options: Any,
) -> Measured:
    """Run a plan (or plan file) on this machine, check its outputs against one device, and time it.

    `model` is needed where the plan does not say its file: a PyTorch module, with its example `inputs`. `runtime` is
    a name (docs/runtimes.md; default: by the model's format), `bind` says where devices are
    (``{"npu": "openvino:NPU", "cpu": "cores:0-3"}``), `feeds` gives the model's inputs by name instead of random ones,
    `in_flight` above 1 measures a pipeline's time per sample (default: by the plan's objective), `options` are those of
    the runtime. `problem_options` are those of `place`, such as the `costs` by which the plan is predicted. Raises
    PlacewiseError; a plan that fails while it runs is an answer with a `failure`.
    """
    problem, placement = _behind(plan, model, inputs, problem_options)
    live = None if isinstance(model, (str, os.PathLike)) else model
    protocol = choose_protocol(problem, in_flight, rounds, parse_seconds(measure_time))
    said = {name: str(value) for name, value in (options or {}).items()}
    setting = Setting(runtime, dict(bind or {}), feeds, protocol, live, inputs, said, seed)
    return Measured(measure_placements(problem, {PLAN: placement}, setting))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Training(Plan):
    """The answer of `train`: the plan of the best placement, and the figures of the training."""

    trained: Trained

    @property
    def updates(self) -> int:
        return self.trained.updates

    @property
    def evaluations(self) -> int:
        """How many different placements were priced."""
        return self.trained.evaluations

    @property
    def learned(self) -> float:
        """The best that the reward said, in seconds: measured, or simulated."""
        return self.trained.learned

    def summary(self) -> str:
        """What `placewise train` prints, as text."""
        return plain(result_view(self.result), *training_lines(self.trained))


def train(
    model: Model,
    devices: Devices | None = None,
    *,
    policy: str | None = None,
    reward: str | None = None,
    options: Mapping[str, Any] | None = None,
    updates: int | None = None,
    evaluations: int | None = None,
    budget: Budget | float | str | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 50,
    resume: bool = False,
    weights: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    controllers: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    start: str | os.PathLike[str] | Placement | None = None,
    inputs: Any = None,
    feeds: Mapping[str, Any] | None = None,
    bind: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore,
    **problem_options: Any,
) -> Training:
    """Train a policy to place a model (docs/learning.md); the best placement that it came by is the plan.

    `policy` is a placer that learns (default: hsdag), with its `options`; `reward` is simulated (the default) or a
    runtime, which then runs every placement on this machine: `bind` and `feeds` are those of `run`. Training ends
    after `updates` (default: 100, without a limit), `evaluations` of different placements or the seconds of
    `budget`. It is kept in `checkpoint` at least `every` so many updates, from where `resume` goes on. `weights` is
    a checkpoint whose weights (and policy) it begins with: fine-tuning. `log` is a folder for TensorBoard. Many
    work at it where `controllers`, `workers` of each that measure, or the address of a Ray cluster (`ray`) are
    given. `model`, `devices`, `inputs`, `start` and the options are those of `place`. Raises PlacewiseError.
    """
    from placewise.training.resume import with_weights
    from placewise.training.train import TrainingSetting, crew_of
    from placewise.training.train import train as learn

    problem = build(model, devices, ProblemOptions(**{"dims": {}, **problem_options}), inputs=inputs)
    hints = NO_HINTS if start is None else Hints((start_of(start, problem),))
    given = _budget(budget) or Budget(seed=seed)
    limits: dict[str, Any] = {"iterations": updates, "evaluations": evaluations, "seed": seed or None}
    given = replace(given, **{name: value for name, value in limits.items() if value is not None})
    live = None if isinstance(model, (str, os.PathLike)) else model
    measuring = Setting(binding=dict(bind or {}), inputs=feeds, model=live, example=inputs, seed=given.seed)
    policy, settings = with_weights(weights, policy, options or {})
    setting = TrainingSetting(
        policy,
        settings,
        given,
        reward,
        checkpoint,
        every,
        resume,
        log,
        measuring=measuring,
        crew=crew_of(controllers, workers, ray, reward),
    )
    trained = learn(problem, setting, hints=hints, on_progress=on_progress)
    return Training(trained.result, trained)


def pretrain(
    corpus: str | os.PathLike[str],
    *,
    policy: str | None = None,
    options: Mapping[str, Any] | None = None,
    updates: int | None = None,
    budget: Budget | float | str | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 50,
    resume: bool = False,
    weights: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    controllers: int | None = None,
    ray: str | None = None,
    on_progress: OnProgress = ignore,
) -> Pretrained:
    """Train a policy on the problems of a corpus file (docs/generalizing.md), so that it serves others as well.

    `policy` and `options` stand in for those of the file. Training ends after `updates` (default: the file's) or the
    seconds of `budget`; `checkpoint`, `every`, `resume`, `weights`, `log`, `controllers` and `ray` are those of
    `train`. Raises PlacewiseError.
    """
    from placewise.training.pretrain import PretrainSetting
    from placewise.training.pretrain import pretrain as learn
    from placewise.training.train import crew_of

    given = _budget(budget) or Budget(seed=seed)
    limits: dict[str, Any] = {"iterations": updates, "seed": seed or None}
    given = replace(given, **{name: value for name, value in limits.items() if value is not None})
    crew = crew_of(controllers, None, ray, None)
    setting = PretrainSetting(corpus, policy, dict(options or {}), given, checkpoint, every, resume, weights, log, crew)
    return learn(setting, on_progress=on_progress)


def profile(
    model: Model,
    devices: Devices = "cores",
    path: str | os.PathLike[str] | None = None,
    *,
    runtime: str = "",
    bind: Mapping[str, str] | None = None,
    repeats: int = 20,
    loaded: bool = False,
    cache: bool = True,
    afresh: bool = False,
    seed: int = 0,
    **problem_options: Any,
) -> ProfileFile:
    """Measure every op of a model file on the devices of this machine, and write that to `path`, for `costs`.

    `loaded` measures also while all devices run the same; with `cache`, times are kept for the next profile, and used
    unless all is to be measured `afresh` (docs/measured.md). `runtime` and `bind` are those of `run`, the other
    options those of `place`, such as `dims`. Raises PlacewiseError.
    """
    problem = build(model, devices, ProblemOptions(**{"dims": {}, **problem_options}))
    shelf = Shelf() if cache else None
    made = measure(problem, Profiling(runtime, dict(bind or {}), repeats, loaded, shelf, afresh, seed))
    if path is not None:
        save_profile(made, path)
    return made


def export_plan(
    plan: Plan | str | os.PathLike[str],
    to: str,
    path: str | os.PathLike[str] | None = None,
    *,
    model: Model = None,
    inputs: Any = None,
    options: Mapping[str, Any] | None = None,
    **problem_options: Any,
) -> Export:
    """A plan (or plan file) in the form of the target `to` (docs/export.md), read back, and written if `path` is given.

    What the target cannot say is projected: the answer's `exported` has the files and their placement, `asked` and
    `said` are the judge's word on the plan and on the files, `loss` how much slower that is. A projected plan is
    written beside the files. `model` and `inputs` are those of `run`; `options` those of the target. Raises
    PlacewiseError, also for files that would break a rule.
    """
    problem, placement = _behind(plan, model, inputs, problem_options)
    if not isinstance(plan, Plan) and model is None:
        same_file(plan, problem.graph)
    made = export_placement(problem, placement, to, options)
    if path is not None:
        broken = "; ".join(f"{violation.kind}: {violation.message}" for violation in made.said.violations)
        if broken:
            raise ExportError(f"what {to} can say of this plan breaks a rule: {broken}", remedy="choose another target")
        write_files(made.exported, made.info, path)
        if made.projected:
            save_plan(result_of(made, problem), plan_path(made.info, path))
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """The answer of `explain`: what the op costs on every device, and the best plans with it elsewhere."""

    explanation: OpExplanation
    plans: tuple[Plan, ...]

    def summary(self) -> str:
        """What `placewise explain` prints, as text."""
        return plain(explanation_view(self.explanation))

    def _repr_html_(self) -> str:
        return text_html(explanation_view(self.explanation))

    def __repr__(self) -> str:
        tried = ", ".join(forced.device for forced in self.explanation.forced)
        return (
            f"Explanation({self.explanation.asked!r} on {self.explanation.device}{f', not {tried}' if tried else ''})"
        )


def explain(
    plan: Plan | str | os.PathLike[str],
    op: str,
    why_not: str | Sequence[str] = (),
    *,
    model: Model = None,
    inputs: Any = None,
    placer: str = "auto",
    budget: Budget | float | str | None = "10s",
    on_progress: OnProgress = ignore,
    **problem_options: Any,
) -> Explanation:
    """Why an op (a name, a module, or a pattern that finds one op) is where it is in a plan (or plan file).

    For each device of `why_not` the op is forced there and the rest placed anew, within `budget` each. `model` and
    `inputs` are those of `run`, the other options those of `place`. Raises PlacewiseError.
    """
    problem, placement = _behind(plan, model, inputs, problem_options)
    devices = (why_not,) if isinstance(why_not, str) else tuple(why_not)
    found = explain_op(problem, placement, op, devices, _budget(budget), placer=placer, on_progress=on_progress)
    return Explanation(found.explanation, tuple(Plan(result) for result in found.results))


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """The answer of `diff`: the two values and their parts, and what moved."""

    difference: Difference

    def summary(self) -> str:
        """What `placewise diff` prints, as text."""
        return plain(difference_view(self.difference))

    def _repr_html_(self) -> str:
        return text_html(difference_view(self.difference))

    def __repr__(self) -> str:
        found = self.difference
        return f"Changed({found.moved} of {found.ops} ops, {found.before.value:.6g} s → {found.after.value:.6g} s)"


def diff(
    before: Plan | str | os.PathLike[str],
    after: Plan | str | os.PathLike[str],
    *,
    model: Model = None,
    inputs: Any = None,
    **problem_options: Any,
) -> Changed:
    """What differs between two plans (or plan files) of one model: values, where their seconds go, what moved.

    `model` and `inputs` are those of `run`, the other options those of `place`. Raises PlacewiseError.
    """
    first, second = (plan.result if isinstance(plan, Plan) else plan for plan in (before, after))
    return Changed(
        compare_plans(first, second, model, ProblemOptions(**{"dims": {}, **problem_options}), inputs=inputs)
    )


def report_plan(
    plan: Plan | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    model: Model = None,
    inputs: Any = None,
    **problem_options: Any,
) -> str:
    """A plan (or plan file) as one HTML page that opens offline (docs/report.md); written if `path` is given.

    `model`, `inputs` and the options are those of `run`. A plan file whose model is not there makes a page that says
    what is missing. Raises PlacewiseError.
    """
    if isinstance(plan, Plan):
        return plan.report(path)
    return _page(open_plan(plan, model, None, ProblemOptions(**problem_options), inputs=inputs), path)


def _page(shown: PlanView, path: str | os.PathLike[str] | None) -> str:
    html = render_page(shown)
    if path is not None:
        write_page(html, path)
    return html


def _behind(
    plan: Plan | str | os.PathLike[str], model: Model, inputs: Any, problem_options: Mapping[str, Any]
) -> tuple[Problem, Placement]:
    """The problem and the placement of a plan, or of a plan file and the model that it was made from."""
    if not isinstance(plan, Plan):
        source = model_behind(plan, None) if model is None else model
        return build_for_plan(source, Path(plan), None, ProblemOptions(**problem_options), inputs=inputs)
    if plan.placement is None:
        raise InputError(f"this plan holds no placement: it is {plan.status}", remedy="place the model again")
    return plan.problem, plan.placement


def _budget(budget: Budget | float | str | None, threads: int | None = None) -> Budget | None:
    """A budget, also from seconds, with so many threads if they are given. Raises InputError."""
    if threads is not None:
        return replace(_budget(budget) or Budget(), threads=threads)
    if budget is None or isinstance(budget, Budget):
        return budget
    if isinstance(budget, bool) or not isinstance(budget, (int, float, str)):
        raise InputError(f"budget is {budget!r}", remedy="give seconds, a text like '60s', or a Budget")
    return Budget(parse_seconds(budget))
