"""Trains a plan on this machine: its forward ops are run, its backward ops checked, its step predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewise.analysis.predict_training import TrainingPrediction, predict_training
from placewise.core.build import build
from placewise.core.open_model import Model
from placewise.core.options import ProblemOptions
from placewise.core.precision import TRAINING_TOLERANCES, product_precision
from placewise.costing.measured.load import split_device
from placewise.errors import InputError, RunError
from placewise.files.profile_file import is_profile, load_profile
from placewise.model.cost_error import describe_estimates
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.stages.replicated_stages import build_replica_column
from placewise.reporting.training_run import TrainingRow, TrainingTable
from placewise.runtimes.base import Job, require_as_written
from placewise.runtimes.binding import bind
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.training import (
    OnStep,
    TrainingJob,
    TrainingOptions,
    TrainingRecord,
    plan_training,
    require_whole_placement,
    schedule_name,
    train_plan,
)
from placewise.simulate.step.judge import find_schedule
from placewise.transform.training import is_training, planned_optimizer

WAIT = 0.05
"""The share of a step by which threads may wait longer for a processor than in the calmest."""
PROFILE_OPTIONS = "--graph training --runtime pipelining --loaded"
"""How `placewise profile` measures the ops of a training step."""
ALL_MICROBATCHES = 2
"""Micro-batches per process, where their number is not given."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRunSetting:
    """Where and on what to train: bound devices, inputs and a target, the live model, and limits as in `Setting`."""

    binding: Mapping[str, str] = field(default_factory=dict)
    inputs: Arrays | None = None
    model: Any = None
    example: Any = None
    seconds: float = 300.0
    trust_model: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TrainedPlan:
    """A training run beside its prediction."""

    training: TrainingJob
    record: TrainingRecord
    prediction: TrainingPrediction

    @property
    def seconds(self) -> float:
        """The median of the calm steps; inf if none ran."""
        return float(np.median(self.calm_steps)) if self.calm_steps else math.inf

    @property
    def calm_steps(self) -> tuple[float, ...]:
        """The seconds of the steps but the first, which prepares buffers, and but those in which threads waited longer
        for a processor, by `WAIT` of the step, than in the calmest: other programs ran. Under a quota, they all count.
        """
        job, seconds = self.training.job, self.record.seconds
        known = self.record.waited and all(job.places[device].quota == 1 for device in self.training.devices)
        waited = self.record.waited if known else (0.0,) * len(seconds)
        shares = [wait / step for wait, step in zip(waited, seconds, strict=True)][1:] or [0.0] * len(seconds)
        steps = seconds[1:] or seconds
        return tuple(step for step, share in zip(steps, shares, strict=True) if share <= min(shares) + WAIT)


def run_training(
    problem: Problem,
    placement: Placement,
    model: Model,
    options: ProblemOptions,
    setting: TrainingRunSetting,
    *,
    runtime: str | None = None,
    on_step: OnStep = lambda *_: None,
    **wished: Any,
) -> TrainedPlan:
    """Train a plan, whose `problem` was built without the costs in `options`; `wished` are fields of `TrainingOptions`.

    Raises RunError where it cannot train, or differs from one process; InputError and its kin.
    """
    if runtime not in (None, "torch", "pipelining"):
        raise InputError(f"the runtime {runtime!r} does not train", remedy="leave out --runtime: PyTorch trains")
    if placement.way is not None:
        require_whole_placement(placement)
    own = {"schedule": options.schedule, "optimizer": options.optimizer, "microbatches": options.microbatches}
    given = {name: value for name, value in own.items() if value is not None}
    training = training_options(problem, placement, given, **wished)
    frozen = frozen_weights(problem, options)
    priced, others = price_training(problem, options.costs)
    forward, whole = forward_part(
        problem, placement, model, replace(options, costs=others), example_inputs=setting.example
    )
    return train_placement(forward, whole, training, setting, frozen=frozen, priced=priced, on_step=on_step)


def price_training(problem: Problem, costs: Sequence[str]) -> tuple[Problem | None, tuple[str, ...]]:
    """The problem with the times of those profiles that are of its training graph, if there are any; other costs."""
    if not is_training(problem.graph):
        return None, tuple(costs)
    files = {name: split_device(name)[1] for name in costs}
    digest = problem.graph.digest()
    own = [name for name, file in files.items() if is_profile(file) and load_profile(file).graph_hash == digest]
    priced = build(problem, None, ProblemOptions(costs=tuple(own))) if own else None
    return priced, tuple(name for name in costs if name not in own)


def without_training(options: ProblemOptions) -> ProblemOptions:
    """The options by which a plan is read, without those that say how to train, and without costs."""
    return replace(options, schedule=None, optimizer=None, microbatches=None, costs=())


def forward_part(
    problem: Problem, placement: Placement, model: Model, options: ProblemOptions, *, example_inputs: Any = None
) -> tuple[Problem, Placement]:
    """The problem and the placement of the forward ops of a plan, with the costs that the options name.

    Raises RunError for a plan that puts backward ops elsewhere than their forward ops, and InputError and its kin.
    """
    source = problem.graph.source
    if source is None:
        raise InputError("the model of this plan is not at hand", remedy="give the model as well")
    if is_training(problem.graph):
        require_whole_ops(problem, placement)
    wished = ProblemOptions(
        dims=source.options.get("dims", {}), view=source.view, objective="throughput", costs=options.costs,
        cache=options.cache,
    )  # fmt: skip
    forward = build(model, problem.cluster, wished, example_inputs=example_inputs)
    where = dict(zip(problem.graph.ops.name, placement.device.tolist(), strict=True))
    missing = next((name for name in forward.graph.ops.name if name not in where), None)
    if missing is not None:
        raise RunError(f"the plan places no op {missing!r}, which a training step runs")
    device = np.array([where[name] for name in forward.graph.ops.name], np.int32)
    copies = tuple(group.devices for group in placement.stages if len(group.devices) > 1)
    replicas = build_replica_column(copies, problem.n_devices) if placement.stages else placement.replicas
    if problem.objective.kind != "step" or placement.stage is None:
        return forward, Placement(device, replicas=replicas)
    stage_of = dict(zip(problem.graph.ops.name, placement.stage.tolist(), strict=True))
    stage = np.array([stage_of[name] for name in forward.graph.ops.name], np.int32)
    schedule = find_schedule(problem, placement)
    return forward, Placement(device, replicas=replicas, stages=placement.stages, stage=stage, schedule=schedule)


def require_whole_ops(problem: Problem, placement: Placement) -> None:
    """Raise RunError where a backward op is on another device than its forward op."""
    graph, names = problem.graph, problem.cluster.names
    where = dict(zip(graph.ops.name, placement.device.tolist(), strict=True))
    for op in np.flatnonzero(graph.ops.backward).tolist():
        name, own = graph.ops.name[op], int(placement.device[op])
        forward = where.get(name.rpartition("/grad:")[0])
        if forward is not None and forward != own:
            raise RunError(
                f"the backward op {name!r} is on {names[own]} and its forward op on {names[forward]}, and PyTorch runs "
                "both in one process: place them together"
            )


def train_placement(
    problem: Problem,
    placement: Placement,
    options: TrainingOptions,
    setting: TrainingRunSetting,
    *,
    frozen: tuple[str, ...] = (),
    priced: Problem | None = None,
    on_step: OnStep = lambda *_: None,
) -> TrainedPlan:
    """Train a placement of forward ops; `priced` has the times of the training graph, where they are known.

    Raises RunError where it cannot train, or differs from one process.
    """
    require_as_written(problem.graph)
    job = Job(
        problem, placement, bind(problem.cluster, setting.binding), setting.model, setting.example, {},
        setting.seconds, setting.trust_model,
    )  # fmt: skip
    training = plan_training(job, options, setting.inputs, frozen)
    record = train_plan(training, on_step)
    prediction = predict_training(
        problem, training.stages, record.order, optimizer=options.optimizer, replicas=training.replicas,
        frozen=frozen, priced=priced, blocking=not training.on_gpus,
    )  # fmt: skip
    if priced is None and not prediction.note:
        prediction = replace(prediction, note=describe_estimates(problem, placement, PROFILE_OPTIONS))
    worst = max(record.loss_difference, record.gradient_difference)
    on_gpus = any(place.kind == "cuda" for place in job.places)
    tolerance = TRAINING_TOLERANCES[product_precision(problem.graph, on_gpus=on_gpus)]
    if not worst <= tolerance:
        raise RunError(
            f"losses differ by {record.loss_difference:.2g} and gradients by {record.gradient_difference:.2g} from "
            f"those of one process, which is more than {tolerance:g}"
        )
    return TrainedPlan(training, record, prediction)


def training_options(
    problem: Problem, placement: Placement, given: Mapping[str, Any], **options: Any
) -> TrainingOptions:
    """How to train a plan: as `given`, else as it was placed. Raises InputError."""
    ways, step = problem.ways, planned_optimizer(problem.graph.source)
    devices = len(np.unique(placement.device))
    if placement.stages:
        devices = len({device for group in placement.stages for device in group.devices})
    elif placement.replicas is not None:
        devices = max(devices, len(set(placement.replicas.tolist()) & set(placement.device.tolist())))
        devices *= max(int((placement.replicas == d).sum()) for d in np.unique(placement.device).tolist())
    schedule: str = problem.objective.schedule if problem.objective.kind == "throughput" else "1f1b"
    if problem.objective.kind == "step":
        schedule = find_schedule(problem, placement)
    planned = ways.microbatches if ways is not None else problem.constraints.microbatches
    wished: dict[str, Any] = {
        "schedule": schedule, "optimizer": step or "adam", "microbatches": planned or ALL_MICROBATCHES * devices,
    } | dict(given)  # fmt: skip
    wished["schedule"] = schedule_name(wished["schedule"])
    return TrainingOptions(**wished, **options)


def frozen_weights(problem: Problem, options: ProblemOptions) -> tuple[str, ...]:
    """The regular expressions of weights that do not train."""
    source = problem.graph.source
    planned = tuple(source.options.get("frozen", ())) if source is not None else ()
    return tuple(options.freeze) or planned


def tabulate_training(trained: TrainedPlan) -> TrainingTable:
    """A training run as a table."""
    training, record, prediction = trained.training, trained.record, trained.prediction
    options, problem, stages = training.options, training.job.problem, training.stages
    ranks = len(stages.devices)
    rows = []
    for process, device in enumerate(training.devices):
        own = [stage for stage, rank in enumerate(stages.ranks) if rank == process % ranks]
        memory = record.memory[process] if record.memory else 0
        runtime = record.runtime[process] if record.runtime else 0
        own_bytes = prediction.memory[process % ranks] + prediction.buffers[process % ranks] if prediction.memory else 0
        predicted = own_bytes + runtime if prediction.memory else math.nan
        place = str(training.job.places[device])
        rows.append(TrainingRow(process, problem.cluster.names[device], place, tuple(own), float(memory), predicted))
    quartiles = np.percentile(trained.calm_steps or (math.nan,), (25, 75))
    notes = [*record.notes, *([prediction.note] if prediction.note else [])]
    if disturbed := len(record.seconds[1:] or record.seconds) - len(trained.calm_steps):
        steps, are = ("step", "is") if disturbed == 1 else ("steps", "are")
        notes.append(f"{disturbed} {steps} in which other programs had the processor {are} not counted")
    if options.schedule == "interleaved" and len(stages.ranks) == ranks:
        notes.append("every device has one stage, so interleaved does what 1f1b does")
    return TrainingTable(
        schedule=options.schedule,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        microbatches=options.microbatches,
        replicas=len(training.replicas),
        first=record.first,
        losses=record.losses,
        seconds=trained.seconds,
        spread=float(quartiles[1] - quartiles[0]) / trained.seconds if len(trained.calm_steps) > 1 else math.nan,
        predicted=prediction.seconds,
        alone=float(np.median(record.alone[1:] or record.alone)) if record.alone else math.nan,
        predicted_alone=prediction.alone,
        compared=len(record.compared),
        loss_difference=record.loss_difference,
        gradient_difference=record.gradient_difference,
        rows=tuple(rows),
        restarts=record.restarts,
        checkpoint="" if options.checkpoint is None else str(options.checkpoint),
        notes=tuple(notes),
    )
