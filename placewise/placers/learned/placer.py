"""The base of all learned placers: create a policy for the problem, train it within the budget, return the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from placewise.errors import PlacerError
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Improvement, Proposal, Reason
from placewise.placers.base import NO_HINTS, Evaluate, Hints, PlacerInfo, Progress, SearchContext
from placewise.placers.learned.checkpoint import Checkpoint, read_checkpoint
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy, untrained_policy
from placewise.placers.learned.pricing import Pricing
from placewise.placers.learned.trainer import Trainer, Update
from placewise.placers.shared.interchangeable import relabel


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
    """A placer that trains a policy. `network` is the class of the policy, created from (problem, options).

    `make_trainer` creates another trainer than that of one process, which then ignores the `evaluate` of `propose`.
    """

    info: ClassVar[PlacerInfo]
    Options: ClassVar[type[LearningOptions]] = LearningOptions
    network: ClassVar[Callable[..., Policy]]

    def __init__(self, options: LearningOptions | None = None) -> None:
        self.options, self.observer = options or self.Options(), Observer()
        self.trained: Checkpoint | None = None
        self.make_trainer: MakeTrainer | None = None
        if self.options.checkpoint:
            self.trained = read_checkpoint(self.options.checkpoint)
            self.options = self.trained.merge_options(self.options)

    def supports(self, problem: Problem) -> str | None:
        if problem.constraints.shaped:
            return "a policy places freely: it keeps no stages in line, and no convex sets"
        return None

    def policy(self, problem: Problem, seed: int) -> Policy:
        """Create the policy for a problem: untrained, or with the weights of a checkpoint. Raises PlacerError."""
        policy = untrained_policy(type(self).network, problem, self.options, seed)
        if self.trained is not None:
            self.trained.load_weights(policy, self.info.name)
        return policy

    def trainer(self, problem: Problem, evaluate: Evaluate | None, seed: int, threads: int | None = None) -> Trainer:
        """Create a trainer. The caller begins, runs and closes it."""
        if self.make_trainer is not None:
            return self.make_trainer(self, problem, seed)
        pricing = Pricing(problem, evaluate, threads)
        return Trainer(self.policy(problem, seed), self.options, pricing, seed, measured=evaluate is not None)

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement that training priced, or the reason why there is none."""
        problem, watch = search.problem, search.watch
        trainer: Trainer | None = None
        reason = Reason.INTERRUPTED
        try:
            trainer = self.trainer(problem, search.evaluate, search.budget.seed, search.budget.threads)
            if not self.observer.begin(trainer):
                trainer.begin(self.starts(problem, search.hints))
            reason = trainer.run(watch.rest(), self._listener(trainer, search))
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

    def _listener(self, trainer: Trainer, search: SearchContext) -> Callable[[Update], None]:
        def report(update: Update) -> None:
            self.observer.update(trainer, update)
            message = format_update(update)
            search.on_progress(Progress(self.info.name, search.watch.elapsed, message, update.best, None))

        return report


MakeTrainer = Callable[[LearnedPlacer, Problem, int], Trainer]


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
