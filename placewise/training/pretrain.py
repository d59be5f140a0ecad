"""Pre-training: one policy learns on a whole corpus, is kept and logged as it goes, and then serves any problem."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib.metadata import version
from os import PathLike
from typing import Any

import numpy.typing as npt

from placewise.errors import InputError, MissingExtraError, ModelFileError, PlacerError
from placewise.files.corpus_file import CorpusFile, LearningRecord
from placewise.files.plan_file import ToolRecord
from placewise.files.policy_file import PolicyFile, header_of, save_policy
from placewise.files.records import naming
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers import registry
from placewise.placers.base import Budget, OnProgress, Progress, ignore
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import LearnedPlacer, option_values
from placewise.placers.learned.workers.backend import WorkerConfig
from placewise.training.corpus import Corpus, open_corpus
from placewise.training.pretrain_result import Learned, Pretrained
from placewise.training.training_log import TrainingLog

try:
    from placewise.placers.learned.checkpoint import Checkpoint, read_checkpoint
    from placewise.placers.learned.corpus.messages import CorpusWorkerSpec
    from placewise.placers.learned.corpus.pretrainer import Pretrainer, PretrainUpdate, TrainingPlan, build_learner
    from placewise.placers.learned.corpus.worker_pool import DistributedPool, LocalPool, WorkerPool
    from placewise.placers.learned.policy import Policy
    from placewise.training.resume import begun
    from placewise.training.search_cache import FOLDER, Answered
except ModuleNotFoundError as error:
    if (error.name or "").startswith("placewise"):
        raise
    raise MissingExtraError(f"training ({error.name})", "learn") from error

EVERY = 50
"""Updates between checkpoints; one is also written now and then."""
NOW_AND_THEN = 60.0
"""Seconds."""
OF_ONE = {
    "checkpoint": "begin with its weights by --from",
    "patience": "give training.patience in the corpus file, in trials",
    "updates": "give training.updates in the corpus file, or --updates",
}
"""Options of a policy that say nothing of a corpus, and what does."""
OF_A_RUN = ("updates", "validated", "every", "patience")
"""What of `training` may be otherwise when a training goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class PretrainSetting:
    """What to train on (`corpus`, a file), and until when: the updates that the file says, or those of `budget`.

    `policy`, `options` and the seed of the budget stand in for what the file says. `checkpoint` is where to keep the
    training (a folder, or a .json file), at least `every` so many updates; with `resume` it goes on from what is there.
    `weights`: a checkpoint whose weights it begins with. `log` is a folder for TensorBoard. `crew`: so many controllers
    learn at the same time.
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
    crew: WorkerConfig | None = None


def pretrain(setting: PretrainSetting, *, on_progress: OnProgress = ignore) -> Pretrained:
    """Train a policy on a corpus.

    Ctrl-C is the end of the budget: what was learned is kept. Raises InputError and its kin for what is wrong with
    corpus, policy or checkpoint, RunError where pupils keep dying, and MissingExtraError.
    """
    if setting.budget.evaluations is not None:
        raise InputError("a limit of evaluations does not go with a corpus", remedy="limit updates or seconds")
    corpus = open_corpus(setting.corpus)
    before = begun(setting.checkpoint, setting.every, resume=setting.resume)
    placer = _placer(setting, corpus.recipe)
    if before is not None:
        _require_same(before, corpus.recipe, placer, setting)
    training = corpus.recipe.training
    if training.teacher:
        registry.placer_class(training.teacher)
    make_policy = partial(_policy, type(placer), placer.options)
    shelf = _shelf(setting, training.teacher)
    brief = CorpusWorkerSpec(corpus.problem, make_policy, placer.options, training.teacher, shelf, training.only)
    names = {one.name for one in fields(TrainingPlan)} & set(type(training).model_fields)
    course = TrainingPlan(
        problems=corpus.recipe.problems, batch=training.problems,
        **{name: getattr(training, name) for name in names - {"problems"}},
    )  # fmt: skip
    learner = build_learner(brief)
    if not learner.policy.any_devices:
        raise PlacerError(f"the policy {placer.info.name!r} fits single problems", remedy="choose gdp or placeto")
    _require_parameters(learner.policy, training)
    made = Pretrainer(learner, school_of(brief, setting.crew), course, setting.budget.seed)
    keeper = Keeper(setting, corpus, placer, made)
    try:
        if before is not None:
            keeper.go_on(before)
        else:
            keeper.begin()
        reason = made.run(keeper.rest(), keeper.listener(on_progress))
        keeper.keep()
    finally:
        keeper.close()
        made.pool.close()
    return keeper.figures(reason)


def _require_parameters(policy: Policy, training: LearningRecord) -> None:
    """Raise PlacerError unless the policy has all parameters of `only`, and as many ways in each that are bred."""
    sizes = {name: len(value) for name, value in policy.named_parameters() if value.ndim}
    stranger = next((name for name in training.only if name not in sizes), None)
    if stranger is not None:
        raise PlacerError(f"the policy has no parameter {stranger!r}", where="training.only", remedy="leave it out")
    if training.bred and len({sizes[name] for name in training.only}) != 1:
        raise PlacerError("ways are rows of some parameters of equal length", where="training.bred",
                          remedy='give only = ["lean_pair.weight", "lean_belief.weight"] with gdp')  # fmt: skip


def _shelf(setting: PretrainSetting, teacher: str) -> Answered | None:
    """Where what was searched is kept: beside the checkpoint."""
    if setting.checkpoint is None:
        return None
    folder = header_of(setting.checkpoint).parent / FOLDER
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return Answered(str(folder.resolve()), teacher)


def school_of(brief: CorpusWorkerSpec, crew: WorkerConfig | None) -> WorkerPool:
    """Pupils in a crew, or one in this process."""
    return LocalPool(brief) if crew is None else DistributedPool(brief, crew)


def _policy(kind: type[LearnedPlacer], options: LearningOptions, problem: Problem) -> Policy:
    """An untrained policy, in whatever process."""
    return kind(options).policy(problem, 0)


def _placer(setting: PretrainSetting, recipe: CorpusFile) -> LearnedPlacer:
    """The policy that shall learn, as a placer. Raises PlacerError for one that fits single problems alone."""
    name = setting.policy or recipe.policy
    kind = registry.placer_class(name)
    if not issubclass(kind, LearnedPlacer):
        raise PlacerError(f"the placer {name!r} learns nothing", remedy="choose gdp or placeto")
    options = dict(recipe.options) | dict(setting.options)
    stranger = next((name for name in OF_ONE if name in options), None)
    if stranger is not None:
        raise PlacerError(f"the option {stranger!r} does not go with a corpus", remedy=OF_ONE[stranger])
    if "pretrained" in kind.Options.__dataclass_fields__:
        options["pretrained"] = False
    placer = registry.create(name, options)
    assert isinstance(placer, LearnedPlacer)
    return placer


def _require_same(before: Checkpoint, recipe: CorpusFile, placer: LearnedPlacer, setting: PretrainSetting) -> None:
    """Raise PlacerError where a training would go on with something else."""
    header, where = before.header, str(header_of(before.path))
    if header.corpus is None:
        raise PlacerError("was trained on one graph", where=where, remedy="its weights are taken with --from PATH")
    if setting.weights is not None:
        raise PlacerError("a training that goes on has weights", where=where, remedy="leave out --from")
    if header.policy != placer.info.name:
        raise PlacerError(f"is of the policy {header.policy!r}, not {placer.info.name!r}", where=where,
                          remedy="go on with that one")  # fmt: skip
    if setting.budget.seed not in (0, header.seed):
        raise PlacerError(f"was trained with the seed {header.seed}, not {setting.budget.seed}", where=where,
                          remedy="leave out the seed")  # fmt: skip
    there, here = dict(header.corpus), recipe.model_dump(mode="json")
    kept = {name: value for name, value in header.options.items() if name != "checkpoint"}
    mine = {name: value for name, value in option_values(placer.options).items() if name != "checkpoint"}
    for name in sorted(there.keys() | here.keys()):
        old, new = there.get(name), here.get(name)
        if name == "training" and isinstance(old, dict) and isinstance(new, dict):
            old, new = ({k: v for k, v in table.items() if k not in OF_A_RUN} for table in (old, new))
        if name not in ("policy", "options") and old != new:
            raise PlacerError(f"was trained on another corpus: {name!r} is not the same", where=where,
                              remedy="go on with the corpus file of then, or begin with --from PATH")  # fmt: skip
    other = next((name for name in kept if name in mine and kept[name] != mine[name]), None)
    if other is not None:
        raise PlacerError(f"was trained with {other}={kept[other]}, not {mine[other]}", where=where,
                          remedy=f"give the option {other}={kept[other]}")  # fmt: skip


class Keeper:
    """Keeps a training: checkpoints, the log, and what is said of it."""

    def __init__(self, setting: PretrainSetting, corpus: Corpus, placer: LearnedPlacer, made: Pretrainer) -> None:
        self._setting, self._corpus, self._placer, self._made = setting, corpus, placer, made
        self._log: TrainingLog | None = None
        self._spent, self._resumed = 0.0, 0
        self._began = self._when = time.monotonic()

    def begin(self) -> None:
        """From the beginning, with the weights that are given."""
        made, weights = self._made, self._setting.weights
        if weights is not None:
            read_checkpoint(weights).load_weights(made.learner.policy, self._placer.info.name)
        self._open_log(0)

    def go_on(self, before: Checkpoint) -> None:
        """From where a checkpoint was written. Raises PlacerError, ModelFileError."""
        header, made = before.header, self._made
        before.load_weights(made.learner.policy, self._placer.info.name)
        with naming(header_of(before.path)):
            try:
                made.restore({**header.figures, "updates": header.updates}, before.arrays)
            except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
                raise ModelFileError(f"lacks what training goes on from ({error})", remedy="train again") from None
        made.seed, made.began = header.seed, time.monotonic() - header.seconds
        self._spent, self._resumed = header.seconds, header.updates
        self._open_log(header.updates)

    def _open_log(self, updates: int) -> None:
        if self._setting.log is not None:
            self._log = TrainingLog(self._setting.log, updates)

    def rest(self) -> Budget:
        """What is left of the budget."""
        budget = self._setting.budget
        return replace(budget, seconds=max(budget.seconds - self._spent, 0.0))

    def listener(self, on_progress: OnProgress) -> Any:
        """What is done after every update."""

        def tell(step: PretrainUpdate) -> None:
            if self._log is not None:
                self._log.scalars(_scalars(step), step.number)
            late = time.monotonic() - self._when > NOW_AND_THEN
            if step.number and (late or step.number % self._setting.every == 0):
                self.keep()
            on_progress(Progress(self._placer.info.name, step.seconds, said(step, self._made.plan)))

        return tell

    def keep(self) -> None:
        """Write a checkpoint."""
        self._when = time.monotonic()
        if self._setting.checkpoint is not None:
            save_policy(*self._written(), self._setting.checkpoint)

    def _written(self) -> tuple[PolicyFile, dict[str, npt.NDArray[Any]]]:
        made, placer, budget = self._made, self._placer, self._setting.budget
        figures, arrays = made.state()
        if made.diverged:
            arrays = {key: array for key, array in arrays.items() if not key.startswith("adam/")}
        document = {
            "policy": placer.info.name,
            "options": {key: value for key, value in option_values(placer.options).items()
                        if key not in ("checkpoint", "pretrained")},
            "network": made.learner.policy.version,
            "features": [{"name": key, "columns": width} for key, width in made.learner.policy.features.layout],
            "devices": (),
            "corpus": self._corpus.recipe.model_dump(mode="json"),
            "score": made.score,
            "seed": made.seed,
            "budget": {"seconds": budget.seconds, "updates": budget.iterations, "evaluations": None},
            "updates": figures.pop("updates"),
            "asked": made.asked,
            "seconds": time.monotonic() - made.began,
            "figures": figures,
            "diverged": made.diverged,
            "tool": ToolRecord(name="placewise", version=version("placewise")),
        }  # fmt: skip
        return PolicyFile.model_validate(document), arrays

    def close(self) -> None:
        """No more is logged."""
        if self._log is not None:
            self._log.close()

    def figures(self, reason: Reason) -> Pretrained:
        """What the training came to."""
        made = self._made
        problems = tuple(
            Learned(number, self._corpus.title(number) if number < TITLES else "", one.value, one.scale)
            for number, one in sorted(made.known.items())
        )
        return Pretrained(
            policy=self._placer.info.name,
            reason=str(reason),
            updates=made.learner.updates,
            resumed=self._resumed,
            asked=made.asked,
            seconds=time.monotonic() - made.began,
            score=made.score,
            trials=tuple(made.trials),
            problems=problems,
            diverged=made.diverged,
            checkpoint="" if self._setting.checkpoint is None else str(header_of(self._setting.checkpoint)),
        )


TITLES = 100
"""So many problems are named when a training ends."""


def said(step: PretrainUpdate, course: TrainingPlan) -> str:
    """The figures of an update that a person watches."""
    if not step.number:
        return f"searched {step.searched} of {course.problems + course.validated} problems"
    stats = step.stats
    learned = "" if math.isnan(stats.reward) else f"reward {stats.reward:.3f}, entropy {stats.entropy:.3f}, "
    tried = "" if math.isnan(step.score) else f" · unseen {step.score:.3f} × best known"
    return f"update {step.number} · {learned}distance {step.distance:.3f}{tried}"


def _scalars(step: PretrainUpdate) -> Mapping[str, float]:
    stats = asdict(step.stats)
    figures = {f"corpus/{name}": stats[name] for name in ("reward", "entropy", "norm", "loss")}
    return figures | {"corpus/distance": step.distance, "corpus/unseen": step.score}
