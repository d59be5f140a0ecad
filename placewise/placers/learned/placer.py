"""The base of all learned placers: create a policy for the problem, train it within the budget, return the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placewise.errors import PlacerError
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Improvement, Proposal, Reason
from placewise.placers.base import (
    NO_HINTS,
    Evaluate,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
)
from placewise.placers.learned.options import LearningOptions
from placewise.placers.shared.interchangeable import relabel

if TYPE_CHECKING:
    from placewise.placers.learned.checkpoint import Checkpoint
    from placewise.placers.learned.policy import Policy
    from placewise.placers.learned.trainer import Trainer, Update
    from placewise.placers.learned.workers.config import WorkerConfig


class Observer:
    """Callbacks around a training. These do nothing."""

    def begin(self, trainer: Trainer) -> bool:
        """Called before the first update. Returns whether it restored the trainer, which then must not begin anew."""
        return False

    def update(self, trainer: Trainer, update: Update) -> None:
        """Called after every update."""

    def end(self, trainer: Trainer, reason: Reason) -> None:
        """Called after the last update."""


class LearnedPlacer:
    """A placer that trains a policy. `network` is ``module:function``, with (problem, options, seed) → Policy.

    The function is imported on use, so that the list of placers does not need torch.
    """

    info: ClassVar[PlacerInfo]
    Options: ClassVar[type[LearningOptions]] = LearningOptions
    network: ClassVar[str]

    def __init__(self, options: LearningOptions | None = None, observer: Observer | None = None) -> None:
        self.options, self.observer = options or self.Options(), observer or Observer()
        self.trained: Checkpoint | None = None
        self._workers: WorkerConfig | None = None
        self._make_evaluate: Callable[[], Evaluate] | None = None
        if self.options.checkpoint:
            checkpoints = import_module("placewise.placers.learned.checkpoint")
            self.trained = checkpoints.read_checkpoint(self.options.checkpoint)
            self.options = self.trained.merge_options(self.options)

    def use_workers(self, config: WorkerConfig, make_evaluate: Callable[[], Evaluate] | None = None) -> None:
        """Train with many workers, each of which measures with an `Evaluate` of its own.

        `make_evaluate` must be picklable. It replaces the `evaluate` of `propose`; None means the judge.
        """
        self._workers, self._make_evaluate = config, make_evaluate

    def supports(self, problem: Problem) -> str | None:
        if problem.constraints.shaped:
            return "a policy places freely: it keeps no stages in line, and no convex sets"
        return None

    def policy(self, problem: Problem, seed: int) -> Policy:
        """Create the policy for a problem: untrained, or with the weights of a checkpoint. Raises PlacerError."""
        module, function = self.network.split(":")
        policy: Policy = getattr(import_module(module), function)(problem, self.options, seed)
        if self.trained is not None:
            self.trained.load_weights(policy, self.info.name)
        return policy

    def trainer(self, problem: Problem, evaluate: Evaluate | None, seed: int, threads: int | None = None) -> Trainer:
        """Create a trainer. The caller begins, runs and closes it."""
        if self._workers is not None:
            return self._distributed_trainer(self._workers, problem, seed)
        training = import_module("placewise.placers.learned.trainer")
        pricing = import_module("placewise.placers.learned.pricing").Pricing(problem, evaluate, threads)
        trainer: Trainer = training.Trainer(
            self.policy(problem, seed), self.options, pricing, seed, measured=evaluate is not None
        )
        return trainer

    def _distributed_trainer(self, config: WorkerConfig, problem: Problem, seed: int) -> Trainer:
        messages = import_module("placewise.placers.learned.workers.messages")
        server = import_module("placewise.placers.learned.workers.server")
        untrained = partial(_create_policy, type(self), replace(self.options, checkpoint=""), problem, seed)
        spec = messages.ControllerSpec(untrained, self.options, config, self._make_evaluate)
        trainer: Trainer = server.distributed_trainer(spec, self.policy(problem, seed), seed)
        return trainer

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement that training priced, or the reason why there is none."""
        problem, watch = search.problem, search.watch
        trainer: Trainer | None = None
        reason = Reason.INTERRUPTED
        try:
            trainer = self.trainer(problem, search.evaluate, search.budget.seed, search.budget.threads)
            if not self.observer.begin(trainer):
                trainer.begin(self.starts(problem, search.hints))
            reason = trainer.run(watch.rest(), self._listener(trainer, watch, search.on_progress))
        except KeyboardInterrupt:
            pass
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            raise PlacerError(f"memory ran out while {self.info.name} was trained",
                              remedy="take a smaller network (hidden) or fewer samples") from None  # fmt: skip
        finally:
            if trainer is not None:
                trainer.close()
        if trainer is None:
            return Proposal(None, reason=reason)
        self.observer.end(trainer, reason)
        return build_proposal(problem, trainer, self.info.name, reason)

    def starts(self, problem: Problem, hints: Hints = NO_HINTS) -> Ints:
        """Placements [n, n_ops] to price first: hints, and the best one of a checkpoint of this very problem."""
        rows = [hint.device for hint in hints.placements if hint.replicas is None]
        best = None if self.trained is None else self.trained.best(problem)
        return np.array([*rows, *([] if best is None else [best])], np.int32).reshape(-1, problem.n_ops)

    def _listener(self, trainer: Trainer, watch: Stopwatch, on_progress: OnProgress) -> Callable[[Update], None]:
        def report(update: Update) -> None:
            self.observer.update(trainer, update)
            on_progress(Progress(self.info.name, watch.elapsed, format_update(update), update.best, None))

        return report


def _create_policy(kind: type[LearnedPlacer], options: LearningOptions, problem: Problem, seed: int) -> Policy:
    """Create an untrained policy, in another process."""
    return kind(options).policy(problem, seed)


def format_update(update: Update) -> str:
    """The progress line of an update."""
    stats, rate = update.stats, update.asked / update.seconds if update.seconds > 0 else 0.0
    return (
        f"update {update.number} · reward {stats.reward:.3f}, baseline {stats.baseline:.3f}, "
        f"entropy {stats.entropy:.3f} · {rate:.3g} samples/s"
    )


def build_proposal(problem: Problem, trainer: Trainer, name: str, reason: Reason) -> Proposal:
    """The proposal of a finished training, with notes on what went wrong."""
    pricing = trainer.pricing
    notes = trainer.policy.notes
    if trainer.diverged:
        kept = f"the parameters are those after update {trainer.learner.updates}"
        notes = (*notes, f"{name} diverged: the next update was not finite, so training stopped; {kept}")
    if trainer.early_stop:
        notes = (*notes, f"{name} stopped early: {trainer.early_stop}")
    if pricing.best is None:
        why = f"none of {pricing.evaluations} placements could be used: {pricing.failure}"
        return Proposal(None, reason=reason, notes=(*notes, why))
    if trainer.measured and pricing.failures:
        counts = f"{pricing.failures} of {pricing.evaluations} placements could not be used"
        notes = (*notes, f"{counts}; why the last of them: {pricing.failure}")
    best = relabel(problem, pricing.best) if not trainer.measured else pricing.best
    history = tuple(Improvement(seconds, value, name) for _, seconds, value in trainer.curve)
    return Proposal(Placement(best), reason=reason, notes=notes, history=history)


def option_values(options: LearningOptions) -> dict[str, Any]:
    """Options as plain values, by name."""
    return {field.name: getattr(options, field.name) for field in fields(options)}
