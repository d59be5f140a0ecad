"""Train a policy on one problem, with checkpoints and a log; place() judges its best placement."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from placewise.analysis.measure_placements import Setting
from placewise.core.place import place
from placewise.errors import MissingExtraError, PlacerError
from placewise.files.policy_file import header_path, save_policy
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Reason, Result
from placewise.placers import registry
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, ignore
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.pricing import single_device_rows
from placewise.runtimes import registry as runtimes
from placewise.runtimes.base import match_execution
from placewise.simulate import Evaluator
from placewise.training.measured_reward import MeasuredReward, reward_of
from placewise.training.train_result import SIMULATED, Judged, Trained
from placewise.training.training_log import TrainingLog
from placewise.training.workers.config import Processes, RayCluster, WorkerConfig

try:
    from placewise.placers.learned.checkpoint import OF_A_RUN, Checkpoint
    from placewise.placers.learned.placer import LearnedPlacer, Observer
    from placewise.placers.learned.trainer import Trainer, Update
    from placewise.training.distributed import train_with_workers
    from placewise.training.resume import dump_checkpoint, find_checkpoint, require_same_policy, restore_trainer
except ModuleNotFoundError as error:
    if (error.name or "").startswith("placewise"):
        raise
    raise MissingExtraError(f"training ({error.name})", "learn") from error

POLICY = "hsdag"
EVERY = 50
"""Updates between checkpoints; a checkpoint is also written after an improvement."""
CHECKPOINT_SECONDS = 30.0
"""Seconds after which a checkpoint is written in any case."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSetting:
    """How to train: the policy (a learned placer) with its `options`, the `reward`, and the budget.

    `measuring` configures a measured reward; its runtime and protocol follow from `reward` and the problem.
    `checkpoint` is a folder or a .json file, written at least every `every` updates. With `resume`, training continues
    from it, with its policy, options, seed and budget unless others are given. Budgets include earlier runs. `log` is a
    folder for TensorBoard. `workers`: train in many workers instead of this process alone.
    """

    policy: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    reward: str | None = None
    checkpoint: str | PathLike[str] | None = None
    every: int = EVERY
    resume: bool = False
    log: str | PathLike[str] | None = None
    measuring: Setting = field(default_factory=Setting)
    workers: WorkerConfig | None = None


def train(
    problem: Problem, setting: TrainingSetting, *, hints: Hints = NO_HINTS, on_progress: OnProgress = ignore
) -> Trained:
    """Train a policy. With a measured reward, the problem takes the execution of the runtime.

    Ctrl-C ends the budget: the best placement so far is the result, and the policy is saved. Raises PlacerError,
    ModelFileError for a checkpoint that does not fit, InputError, OutputError, and MissingExtraError.
    """
    before = find_checkpoint(setting.checkpoint, setting.every, resume=setting.resume)
    setting = setting if before is None else _restore_setting(setting, before)
    placer = create_policy(setting)
    reward = setting.reward or SIMULATED
    make = reward_of(reward, problem, setting.measuring)
    if make is not None:
        pipelined = problem.objective.kind == "throughput"
        problem = match_execution(problem, runtimes.create(reward).info, pipelined=pipelined)
    refusal = placer.supports(problem)
    if refusal is not None:
        raise PlacerError(f"{placer.info.name} cannot be trained on this problem: {refusal}",
                          remedy="give --free, without --contiguous, --convex and --in-order")  # fmt: skip
    callback = placer.observer = TrainCheckpointCallback(placer.info.name, setting, before)
    with ExitStack() as stack:
        stack.callback(callback.close)
        judged = None
        if setting.workers is not None:
            placer.make_trainer = partial(train_with_workers, setting.workers, make)
        elif make is not None:
            judged = JudgedReward(problem, stack.enter_context(make()))
        result = place(problem, placer, setting.budget, hints=hints, evaluate=judged, on_progress=on_progress)
    return callback.summarize(result, None if judged is None else judged.best)


def create_policy(setting: TrainingSetting) -> LearnedPlacer:
    """The policy of a setting, as a placer. Raises PlacerError for a placer that learns nothing."""
    name = setting.policy or POLICY
    if name not in registry.known_names():
        raise PlacerError(f"there is no policy {name!r}", remedy=f"choose from {', '.join(policies())}")
    kind = registry.placer_class(name)
    if not issubclass(kind, LearnedPlacer):
        raise PlacerError(f"the placer {name!r} learns nothing", remedy=f"choose from {', '.join(policies())}")
    placer = registry.create(name, setting.options)
    assert isinstance(placer, LearnedPlacer)
    return placer


def worker_config(
    controllers: int | None, workers: int | None, ray: str | None, reward: str | None
) -> WorkerConfig | None:
    """The workers to train in, on a Ray cluster if its address is given; None if no argument asks for workers.

    By default there are two controllers, with one worker each for a measured reward and none for the simulated one.
    """
    if controllers is None and workers is None and ray is None:
        return None
    many = 2 if controllers is None else controllers
    each = int(reward not in (None, SIMULATED)) if workers is None else workers
    return Processes(many, each) if ray is None else RayCluster(ray, many, each)


def policies() -> tuple[str, ...]:
    """The names of the placers that learn."""
    policies = []
    for name in registry.names():
        with suppress(MissingExtraError):
            policies += [name] if issubclass(registry.placer_class(name), LearnedPlacer) else []
    return tuple(policies)


def _restore_setting(setting: TrainingSetting, before: Checkpoint) -> TrainingSetting:
    """The setting, completed from the checkpoint. Raises PlacerError if they contradict each other."""
    header, budget, options = before.header, setting.budget, registry.rename_options(setting.options, LearningOptions)
    where = str(header_path(before.path))
    require_same_policy(before, setting.policy, budget.seed)
    for name, value in options.items():
        if name not in OF_A_RUN and name in header.options and header.options[name] != value:
            raise PlacerError(f"was trained with {name}={header.options[name]}, not {value}", where=where,
                              remedy=f"leave out the option {name}")  # fmt: skip
    known = registry.placer_class(header.policy).Options.__dataclass_fields__
    kept = {name: value for name, value in header.options.items() if name in known}
    seconds = budget.seconds if math.isfinite(budget.seconds) else header.budget.seconds
    return replace(
        setting,
        policy=header.policy,
        reward=setting.reward or header.reward,
        options={**kept, **options},
        budget=replace(
            budget,
            seconds=max(seconds - header.seconds, 0.0),
            iterations=header.budget.updates if budget.iterations is None else budget.iterations,
            evaluations=header.budget.evaluations if budget.evaluations is None else budget.evaluations,
            seed=header.seed,
        ),
    )


class JudgedReward:
    """A measured reward that also asks the judge, and keeps the placement with the best prediction in `best`.

    Only ratios to the single device are reliable: they are scaled as if the single device took `reference` seconds, as
    it did at the start of the training.
    """

    def __init__(self, problem: Problem, measure: MeasuredReward) -> None:
        self._measure, self._judge = measure, Evaluator(problem, threads=1)
        self.best: Judged | None = None
        self.reference = measure.single

    @property
    def failure(self) -> str:
        """The reason why the last placement failed."""
        return self._measure.failure

    def __call__(self, placements: Ints) -> Floats:
        seconds = self._measure(placements) * (self.reference / self._measure.single)
        values = np.where(np.isfinite(seconds), self._judge(placements), np.nan)
        if not np.isnan(values).all():
            k = int(np.nanargmin(values))
            if self.best is None or values[k] < self.best.value:
                self.best = Judged(Placement(placements[k]), float(values[k]), float(seconds[k]))
        return seconds


class TrainCheckpointCallback(Observer):
    """Writes the checkpoints and the log of a training."""

    def __init__(self, name: str, setting: TrainingSetting, before: Checkpoint | None) -> None:
        self._name, self._setting, self._before = name, setting, before
        self._trainer: Trainer | None = None
        self._log = None if setting.log is None else TrainingLog(setting.log, before.header.updates if before else 0)
        self._best, self._written, self._began, self._spent = math.inf, time.monotonic(), time.monotonic(), 0.0

    def begin(self, trainer: Trainer) -> bool:
        self._trainer, self._began = trainer, time.monotonic()
        if self._before is None:
            return False
        restore_trainer(self._before, trainer, self._name, self._setting.reward or SIMULATED)
        self._spent, self._best = self._before.header.seconds, trainer.pricing.value
        return True

    def update(self, trainer: Trainer, update: Update) -> None:
        if self._log is not None:
            self._log.add(update)
        better = trainer.pricing.value < self._best
        overdue = time.monotonic() - self._written > CHECKPOINT_SECONDS
        if better or overdue or update.number % self._setting.every == 0:
            self._save(trainer)

    def end(self, trainer: Trainer, reason: Reason) -> None:
        self._save(trainer)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()

    def summarize(self, result: Result, judged: Judged | None = None) -> Trained:
        """The figures of the training with its result."""
        trainer, setting = self._trainer, self._setting
        reward = setting.reward or SIMULATED
        if trainer is None:
            return Trained(result=result, policy=self._name, reward=reward)
        pricing, spent = trainer.pricing, self._written - self._began
        earlier = None if self._before is None else self._before.header
        asked = pricing.asked - (0 if earlier is None else earlier.asked)
        return Trained(
            result=result,
            policy=self._name,
            reward=reward,
            updates=trainer.learner.updates,
            asked=pricing.asked,
            evaluations=pricing.evaluations,
            seconds=self._spent + spent,
            rate=asked / spent if spent > 0 else 0.0,
            learned=pricing.value,
            alone=trainer.learner.scale if len(single_device_rows(result.problem)) else math.inf,
            resumed=0 if earlier is None else earlier.updates,
            checkpoint="" if setting.checkpoint is None else str(header_path(setting.checkpoint)),
            judged=judged,
        )

    def _save(self, trainer: Trainer) -> None:
        self._written, self._best = time.monotonic(), trainer.pricing.value
        started = math.isfinite(trainer.learner.scale)
        if self._setting.checkpoint is not None and started:
            budget = self._setting.budget
            if math.isfinite(budget.seconds):
                budget = replace(budget, seconds=budget.seconds + self._spent)
            spent = self._spent + self._written - self._began
            reward = self._setting.reward or SIMULATED
            save_policy(*dump_checkpoint(trainer, self._name, reward=reward, budget=budget, spent=spent),
                        self._setting.checkpoint)  # fmt: skip
