"""Pre-train one policy on a whole corpus, with checkpoints and a log; it can then place any problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from os import PathLike
from typing import Any

import numpy.typing as npt

from placewise.errors import InputError, MissingExtraError, ModelFileError, PlacerError, locate_errors
from placewise.files.corpus_file import CorpusFile
from placewise.files.policy_file import PolicyFile, header_path, save_policy
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers import registry
from placewise.placers.base import Budget, OnProgress, Progress, ignore
from placewise.placers.learned.options import LearningOptions
from placewise.training.corpus import Corpus, open_corpus
from placewise.training.pretrain_result import Learned, Pretrained
from placewise.training.training_log import TrainingLog
from placewise.training.workers.config import WorkerConfig

try:
    from placewise.placers.learned.checkpoint import Checkpoint, read_checkpoint
    from placewise.placers.learned.placer import LearnedPlacer
    from placewise.placers.learned.policy import Policy, untrained_policy
    from placewise.training.pretrainer import Pretrainer, PretrainUpdate, TrainingPlan, build_learner
    from placewise.training.resume import budget_record, build_checkpoint, find_checkpoint, require_same_policy
    from placewise.training.search_cache import FOLDER, SearchCache
    from placewise.training.workers.messages import CorpusWorkerSpec
    from placewise.training.workers.pools import DistributedPool, LocalPool, WorkerPool
except ModuleNotFoundError as error:
    if (error.name or "").startswith("placewise"):
        raise
    raise MissingExtraError(f"training ({error.name})", "learn") from error

EVERY = 50
"""Updates between checkpoints."""
CHECKPOINT_SECONDS = 60.0
"""Seconds after which a checkpoint is written in any case."""
SINGLE_PROBLEM_OPTIONS = {
    "checkpoint": "begin with its weights by --from",
    "patience": "give training.patience in the corpus file, in trials",
    "updates": "give training.updates in the corpus file, or --updates",
}
"""Options of a policy that do not apply to a corpus, and what to use instead."""
CHANGEABLE = ("updates", "validated", "every", "patience")
"""Fields of `training` that may change when a training is resumed."""


@dataclass(frozen=True, slots=True, eq=False)
class PretrainSetting:
    """What to train on (`corpus`, a file), and for how long: the updates of the file, or those of `budget`.

    `policy`, `options` and the seed of the budget override the file. `checkpoint` is a folder or a .json file, written
    at least every `every` updates; with `resume`, training continues from it. `weights`: a checkpoint whose weights
    training starts from. `log` is a folder for TensorBoard. `workers`: the processes that train at the same time.
    """

    corpus: str | PathLike[str]
    policy: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    checkpoint: str | PathLike[str] | None = None
    every: int = EVERY
    resume: bool = False
    weights: str | PathLike[str] | None = None
    log: str | PathLike[str] | None = None
    workers: WorkerConfig | None = None


def pretrain(setting: PretrainSetting, *, on_progress: OnProgress = ignore) -> Pretrained:
    """Train a policy on a corpus.

    Ctrl-C ends the budget, and the policy is saved. Raises InputError, or a subclass of it, for a wrong corpus, policy
    or checkpoint, RunError if workers keep dying, and MissingExtraError.
    """
    if setting.budget.evaluations is not None:
        raise InputError("a limit of evaluations does not go with a corpus", remedy="limit updates or seconds")
    corpus = open_corpus(setting.corpus)
    before = find_checkpoint(setting.checkpoint, setting.every, resume=setting.resume)
    placer = _create_policy(setting, corpus.recipe)
    if before is not None:
        _require_same(before, corpus.recipe, placer, setting)
    training = corpus.recipe.training
    if training.teacher:
        registry.placer_class(training.teacher)
    if not (training.rewarded or training.imitated or training.held):
        raise PlacerError("nothing is learned", where="training", remedy="set rewarded = true, or imitate (held = 0.1)")
    make_policy = partial(_untrained_policy, placer.network, placer.options)
    cache = _search_cache(setting, training.teacher)
    spec = CorpusWorkerSpec(corpus.problem, make_policy, placer.options, training.teacher, cache)
    names = {one.name for one in fields(TrainingPlan)} & set(type(training).model_fields)
    plan = TrainingPlan(
        problems=corpus.recipe.problems, batch=training.problems,
        **{name: getattr(training, name) for name in names - {"problems"}},
    )  # fmt: skip
    learner = build_learner(spec)
    if not learner.policy.any_devices:
        raise PlacerError(
            f"the policy {placer.info.name!r} fits single problems", remedy="choose doppler, gdp or placeto"
        )
    pretrainer = Pretrainer(learner, create_pool(spec, setting.workers), plan, setting.budget.seed)
    callback = PretrainCheckpointCallback(setting, corpus, placer, pretrainer)
    try:
        if before is not None:
            callback.resume(before)
        else:
            callback.begin()
        reason = pretrainer.run(callback.remaining_budget(), callback.listener(on_progress))
        callback.save()
    finally:
        callback.close()
        pretrainer.pool.close()
    return callback.summarize(reason)


def _search_cache(setting: PretrainSetting, expert: str) -> SearchCache | None:
    """The search cache beside the checkpoint."""
    if setting.checkpoint is None:
        return None
    folder = header_path(setting.checkpoint).parent / FOLDER
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return SearchCache(str(folder.resolve()), expert)


def create_pool(spec: CorpusWorkerSpec, workers: WorkerConfig | None) -> WorkerPool:
    """A pool of workers, or one worker in this process."""
    return LocalPool(spec) if workers is None else DistributedPool(spec, workers)


def _untrained_policy(network: Callable[..., Policy], options: LearningOptions, problem: Problem) -> Policy:
    """An untrained policy, in any process."""
    return untrained_policy(network, problem, options, 0)


def _create_policy(setting: PretrainSetting, recipe: CorpusFile) -> LearnedPlacer:
    """The policy to train, as a placer. Raises PlacerError for a placer or options that do not go with a corpus."""
    name = setting.policy or recipe.policy
    kind = registry.placer_class(name)
    if not issubclass(kind, LearnedPlacer):
        raise PlacerError(f"the placer {name!r} learns nothing", remedy="choose doppler, gdp or placeto")
    options = dict(recipe.options) | dict(setting.options)
    unsuitable = next((name for name in SINGLE_PROBLEM_OPTIONS if name in options), None)
    if unsuitable is not None:
        remedy = SINGLE_PROBLEM_OPTIONS[unsuitable]
        raise PlacerError(f"the option {unsuitable!r} does not go with a corpus", remedy=remedy)
    placer = registry.create(name, options)
    assert isinstance(placer, LearnedPlacer)
    return placer


def _require_same(before: Checkpoint, recipe: CorpusFile, placer: LearnedPlacer, setting: PretrainSetting) -> None:
    """Raise PlacerError if the setting differs from the training that is to be resumed."""
    header, where = before.header, str(header_path(before.path))
    if header.corpus is None:
        raise PlacerError("was trained on one graph", where=where, remedy="its weights are taken with --from PATH")
    if setting.weights is not None:
        raise PlacerError("a resumed training has weights already", where=where, remedy="leave out --from")
    require_same_policy(before, placer.info.name, setting.budget.seed)
    there, here = dict(header.corpus), recipe.model_dump(mode="json")
    kept = {name: value for name, value in header.options.items() if name != "checkpoint"}
    mine = {name: value for name, value in asdict(placer.options).items() if name != "checkpoint"}
    for name in sorted(there.keys() | here.keys()):
        old, new = there.get(name), here.get(name)
        if name == "training" and isinstance(old, dict) and isinstance(new, dict):
            old, new = ({k: v for k, v in table.items() if k not in CHANGEABLE} for table in (old, new))
        if name not in ("policy", "options") and old != new:
            remedy = "resume with the original corpus file, or start from its weights with --from PATH"
            raise PlacerError(f"was trained on another corpus: {name!r} differs", where=where, remedy=remedy)
    other = next((name for name in kept if name in mine and kept[name] != mine[name]), None)
    if other is not None:
        raise PlacerError(f"was trained with {other}={kept[other]}, not {mine[other]}", where=where,
                          remedy=f"give the option {other}={kept[other]}")  # fmt: skip


class PretrainCheckpointCallback:
    """Writes the checkpoints and the log of a pre-training, and reports its progress."""

    def __init__(self, setting: PretrainSetting, corpus: Corpus, placer: LearnedPlacer, pretrainer: Pretrainer) -> None:
        self._setting, self._corpus, self._placer, self._pretrainer = setting, corpus, placer, pretrainer
        self._log: TrainingLog | None = None
        self._spent, self._resumed = 0.0, 0
        self._saved = time.monotonic()

    def begin(self) -> None:
        """Start from the weights of the setting, if there are any."""
        pretrainer, weights = self._pretrainer, self._setting.weights
        if weights is not None:
            read_checkpoint(weights).load_weights(pretrainer.learner.policy, self._placer.info.name)
        self._open_log(0)

    def resume(self, before: Checkpoint) -> None:
        """Continue from a checkpoint. Raises PlacerError, ModelFileError."""
        header, pretrainer = before.header, self._pretrainer
        before.load_weights(pretrainer.learner.policy, self._placer.info.name)
        with locate_errors(header_path(before.path)):
            try:
                pretrainer.restore({**header.figures, "updates": header.updates}, before.arrays)
            except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
                raise ModelFileError(f"lacks the state to resume from ({error})", remedy="train again") from None
        pretrainer.seed, pretrainer.began = header.seed, time.monotonic() - header.seconds
        self._spent, self._resumed = header.seconds, header.updates
        self._open_log(header.updates)

    def _open_log(self, updates: int) -> None:
        if self._setting.log is not None:
            self._log = TrainingLog(self._setting.log, updates)

    def remaining_budget(self) -> Budget:
        """The budget without the seconds of earlier runs."""
        budget = self._setting.budget
        return replace(budget, seconds=max(budget.seconds - self._spent, 0.0))

    def listener(self, on_progress: OnProgress) -> Any:
        """A function to call after every update."""

        def on_update(step: PretrainUpdate) -> None:
            if self._log is not None:
                self._log.scalars(_scalars(step), step.number)
            overdue = time.monotonic() - self._saved > CHECKPOINT_SECONDS
            if step.number and (overdue or step.number % self._setting.every == 0):
                self.save()
            on_progress(Progress(self._placer.info.name, step.seconds, describe_update(step, self._pretrainer.plan)))

        return on_update

    def save(self) -> None:
        """Write a checkpoint."""
        self._saved = time.monotonic()
        if self._setting.checkpoint is not None:
            save_policy(*self._checkpoint(), self._setting.checkpoint)

    def _checkpoint(self) -> tuple[PolicyFile, dict[str, npt.NDArray[Any]]]:
        pretrainer, placer = self._pretrainer, self._placer
        kept = asdict(placer.options).items()
        return build_checkpoint(
            pretrainer.learner.policy,
            *pretrainer.state(),
            policy=placer.info.name,
            options={key: value for key, value in kept if key != "checkpoint"},
            devices=(),
            corpus=self._corpus.recipe.model_dump(mode="json"),
            score=pretrainer.score,
            seed=pretrainer.seed,
            budget=budget_record(replace(self._setting.budget, evaluations=None)),
            asked=pretrainer.asked,
            seconds=time.monotonic() - pretrainer.began,
            diverged=pretrainer.diverged,
        )

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()

    def summarize(self, reason: Reason) -> Pretrained:
        """The result of the training."""
        pretrainer = self._pretrainer
        problems = tuple(
            Learned(number, self._corpus.title(number) if number < TITLES else "", one.value, one.scale)
            for number, one in sorted(pretrainer.known.items())
        )
        return Pretrained(
            policy=self._placer.info.name,
            reason=str(reason),
            updates=pretrainer.learner.updates,
            resumed=self._resumed,
            asked=pretrainer.asked,
            seconds=time.monotonic() - pretrainer.began,
            score=pretrainer.score,
            trials=tuple(pretrainer.trials),
            problems=problems,
            diverged=pretrainer.diverged,
            checkpoint="" if self._setting.checkpoint is None else str(header_path(self._setting.checkpoint)),
        )


TITLES = 100
"""Problems that have a title in the result."""


def describe_update(step: PretrainUpdate, plan: TrainingPlan) -> str:
    """The progress message of an update."""
    if not step.number:
        return f"searched {step.searched} of {plan.problems + plan.validated} problems"
    stats = step.stats
    learned = "" if math.isnan(stats.reward) else f"reward {stats.reward:.3f}, entropy {stats.entropy:.3f}, "
    tried = "" if math.isnan(step.score) else f" · unseen {step.score:.3f} × best known"
    return f"update {step.number} · {learned}distance {step.distance:.3f}{tried}"


def _scalars(step: PretrainUpdate) -> Mapping[str, float]:
    stats = asdict(step.stats)
    figures = {f"corpus/{name}": stats[name] for name in ("reward", "entropy", "norm", "loss")}
    return figures | {"corpus/distance": step.distance, "corpus/unseen": step.score}
