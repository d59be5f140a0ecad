"""Training: a policy learns on a problem, is kept and logged as it goes, and its best is judged by place()."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np

from placewise.analysis.measure_placements import Setting, as_executed
from placewise.core.place import place
from placewise.errors import MissingExtraError, PlacerError
from placewise.files.policy_file import header_of, save_policy
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Reason, Result
from placewise.placers import registry
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, ignore
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import LearnedPlacer, Observer
from placewise.placers.learned.pricing import single_device_rows
from placewise.placers.learned.workers.backend import WorkerConfig
from placewise.placers.learned.workers.processes import Processes
from placewise.placers.learned.workers.ray_cluster import RayCluster
from placewise.runtimes import registry as runtimes
from placewise.simulate import Evaluator
from placewise.training.measured_reward import MeasuredReward, reward_of
from placewise.training.train_result import SIMULATED, Judged, Trained
from placewise.training.training_log import TrainingLog

try:
    from placewise.placers.learned.checkpoint import OF_A_RUN, Checkpoint, dump_checkpoint
    from placewise.placers.learned.trainer import Trainer, Update
    from placewise.training.resume import begun
except ModuleNotFoundError as error:
    if (error.name or "").startswith("placewise"):
        raise
    raise MissingExtraError(f"training ({error.name})", "learn") from error

POLICY = "hsdag"
EVERY = 50
"""Updates between checkpoints; one is also written where something better was found, and now and then."""
NOW_AND_THEN = 30.0
"""Seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSetting:
    """How to train: which policy (a learned placer) with which `options`, on what `reward`, and until when.

    `measuring` is how a measured reward is taken; its runtime and protocol follow from `reward` and the problem.

    `checkpoint` is where to keep the training (a folder, or a .json file), at least `every` so many updates; with
    `resume` it goes on from what is there, with the policy, options, seed and budget of then where they are not given.
    Budgets count from the beginning of the training, not from where it goes on. `log` is a folder for TensorBoard.
    `crew`: many workers instead of this process alone.
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
    crew: WorkerConfig | None = None


def train(
    problem: Problem, setting: TrainingSetting, *, hints: Hints = NO_HINTS, on_progress: OnProgress = ignore
) -> Trained:
    """Train a policy. A measured reward takes the problem as its runtime executes it, whose value is what is measured.

    Ctrl-C is the end of the budget: the best so far is the answer, and what was learned is kept. Raises PlacerError,
    ModelFileError for a checkpoint that does not fit, InputError, OutputError, and MissingExtraError.
    """
    before = begun(setting.checkpoint, setting.every, resume=setting.resume)
    setting = setting if before is None else _as_before(setting, before)
    placer = learner(setting)
    reward = setting.reward or SIMULATED
    make = reward_of(reward, problem, setting.measuring)
    if make is not None:
        pipelined = problem.objective.kind == "throughput"
        problem = as_executed(problem, runtimes.create(reward).info, pipelined=pipelined)
    refusal = placer.supports(problem)
    if refusal is not None:
        raise PlacerError(f"{placer.info.name} cannot be trained on this problem: {refusal}",
                          remedy="give --free, without --contiguous, --convex and --in-order")  # fmt: skip
    keeper = placer.observer = Keeper(placer.info.name, setting, before)
    with ExitStack() as stack:
        stack.callback(keeper.close)
        rated = None
        if setting.crew is not None:
            placer.use_workers(setting.crew, make)
        elif make is not None:
            rated = JudgedReward(problem, stack.enter_context(make()))
        result = place(problem, placer, setting.budget, hints=hints, evaluate=rated, on_progress=on_progress)
    return keeper.figures(result, None if rated is None else rated.best)


def learner(setting: TrainingSetting) -> LearnedPlacer:
    """The policy of a setting, as a placer. Raises PlacerError where it is one that learns nothing."""
    name = setting.policy or POLICY
    if name not in registry.names():
        raise PlacerError(f"there is no policy {name!r}", remedy=f"choose from {', '.join(policies())}")
    kind = registry.placer_class(name)
    if not issubclass(kind, LearnedPlacer):
        raise PlacerError(f"the placer {name!r} learns nothing", remedy=f"choose from {', '.join(policies())}")
    placer = registry.create(name, setting.options)
    assert isinstance(placer, LearnedPlacer)
    return placer


def crew_of(controllers: int | None, workers: int | None, ray: str | None, reward: str | None) -> WorkerConfig | None:
    """The crew that is wished for, on a Ray cluster where its address is given; None where nothing is.

    Two controllers, if not said otherwise, with one worker each for a measured reward; the judge needs none.
    """
    if controllers is None and workers is None and ray is None:
        return None
    many = 2 if controllers is None else controllers
    each = int(reward not in (None, SIMULATED)) if workers is None else workers
    return Processes(many, each) if ray is None else RayCluster(ray, many, each)


def policies() -> tuple[str, ...]:
    """The placers that learn."""
    found = []
    for name in registry.names():
        with suppress(MissingExtraError):
            found += [name] if issubclass(registry.placer_class(name), LearnedPlacer) else []
    return tuple(found)


def _as_before(setting: TrainingSetting, before: Checkpoint) -> TrainingSetting:
    """The setting, with what the checkpoint says where it says nothing. Raises PlacerError where they differ."""
    header, budget, options = before.header, setting.budget, registry.rename_options(setting.options, LearningOptions)
    where = str(header_of(before.path))
    if setting.policy not in (None, header.policy):
        raise PlacerError(f"is of the policy {header.policy!r}, not {setting.policy!r}", where=where,
                          remedy="go on with that one")  # fmt: skip
    for name, value in options.items():
        if name not in OF_A_RUN and name in header.options and header.options[name] != value:
            raise PlacerError(f"was trained with {name}={header.options[name]}, not {value}", where=where,
                              remedy=f"leave out the option {name}")  # fmt: skip
    if budget.seed not in (0, header.seed):
        raise PlacerError(f"was trained with the seed {header.seed}, not {budget.seed}", where=where,
                          remedy="leave out the seed")  # fmt: skip
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
    """A measured reward that also asks the judge, and keeps what that likes best of what could be measured.

    A reward is sure of ratios to the single device only: these count as if that took `reference` seconds, which is what
    it took at the beginning of the training.
    """

    def __init__(self, problem: Problem, measure: MeasuredReward) -> None:
        self._measure, self._judge = measure, Evaluator(problem, threads=1)
        self.best: Judged | None = None
        self.reference = measure.single

    @property
    def failure(self) -> str:
        """Why the last placement failed, in words."""
        return self._measure.failure

    def __call__(self, placements: Ints) -> Floats:
        seconds = self._measure(placements) * (self.reference / self._measure.single)
        values = np.where(np.isfinite(seconds), self._judge(placements), np.nan)
        if not np.isnan(values).all():
            k = int(np.nanargmin(values))
            if self.best is None or values[k] < self.best.value:
                self.best = Judged(Placement(placements[k]), float(values[k]), float(seconds[k]))
        return seconds


class Keeper(Observer):
    """Keeps a training: checkpoints and the log."""

    def __init__(self, name: str, setting: TrainingSetting, before: Checkpoint | None) -> None:
        self._name, self._setting, self._before = name, setting, before
        self._trainer: Trainer | None = None
        self._log = None if setting.log is None else TrainingLog(setting.log, before.header.updates if before else 0)
        self._kept, self._when, self._began, self._spent = math.inf, time.monotonic(), time.monotonic(), 0.0

    def begin(self, trainer: Trainer) -> bool:
        self._trainer, self._began = trainer, time.monotonic()
        if self._before is None:
            return False
        self._before.resume(trainer, self._name, self._setting.reward or SIMULATED)
        self._spent, self._kept = self._before.header.seconds, trainer.pricing.value
        return True

    def update(self, trainer: Trainer, update: Update) -> None:
        if self._log is not None:
            self._log.add(update)
        better = trainer.pricing.value < self._kept
        late = time.monotonic() - self._when > NOW_AND_THEN
        if better or late or update.number % self._setting.every == 0:
            self._keep(trainer)

    def end(self, trainer: Trainer, reason: Reason) -> None:
        self._keep(trainer)

    def close(self) -> None:
        """No more is logged."""
        if self._log is not None:
            self._log.close()

    def figures(self, result: Result, judged: Judged | None = None) -> Trained:
        """The figures of the training that led to a result."""
        trainer, setting = self._trainer, self._setting
        reward = setting.reward or SIMULATED
        if trainer is None:
            return Trained(result=result, policy=self._name, reward=reward)
        pricing, spent = trainer.pricing, self._when - self._began
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
            checkpoint="" if setting.checkpoint is None else str(header_of(setting.checkpoint)),
            judged=judged,
        )

    def _keep(self, trainer: Trainer) -> None:
        self._when, self._kept = time.monotonic(), trainer.pricing.value
        begun = math.isfinite(trainer.learner.scale)
        if self._setting.checkpoint is not None and begun:
            budget = self._setting.budget
            if math.isfinite(budget.seconds):
                budget = replace(budget, seconds=budget.seconds + self._spent)
            spent = self._spent + self._when - self._began
            reward = self._setting.reward or SIMULATED
            save_policy(*dump_checkpoint(trainer, self._name, reward=reward, budget=budget, spent=spent),
                        self._setting.checkpoint)  # fmt: skip
