"""What all learned placers share: a policy is made for the problem, trained within the budget, and its best is kept."""

from __future__ import annotations

import math
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
from placewise.placers.learned.observer import Observer
from placewise.placers.learned.options import LearningOptions
from placewise.placers.shared.interchangeable import relabel

if TYPE_CHECKING:
    from placewise.placers.learned.checkpoint import Checkpoint
    from placewise.placers.learned.policy import Policy
    from placewise.placers.learned.trainer import Trainer, Update
    from placewise.placers.learned.workers.backend import Crew


class LearnedPlacer:
    """A placer whose `network` is the place of a function (problem, options, seed) → Policy, imported when needed.

    So that a list of placers needs no torch.
    """

    info: ClassVar[PlacerInfo]
    Options: ClassVar[type[LearningOptions]] = LearningOptions
    network: ClassVar[str]

    def __init__(self, options: LearningOptions | None = None, observer: Observer | None = None) -> None:
        self.options, self.observer = options or self.Options(), observer or Observer()
        self.trained: Checkpoint | None = None
        self._crew: Crew | None = None
        self._make_evaluate: Callable[[], Evaluate] | None = None
        if self.options.checkpoint:
            self.trained = import_module("placewise.placers.learned.checkpoint").read(self.options.checkpoint)
            self.options = self.trained.options(self.options)

    def hire(self, crew: Crew, make_evaluate: Callable[[], Evaluate] | None = None) -> None:
        """Train with many workers from now on, who measure with what `make_evaluate` gives each of them.

        It can be pickled, and replaces the `evaluate` of `propose`; None: the judge.
        """
        self._crew, self._make_evaluate = crew, make_evaluate

    def supports(self, problem: Problem) -> str | None:
        if problem.constraints.shaped:
            return "a policy places freely: it keeps no stages in line, and no convex sets"
        return None

    def policy(self, problem: Problem, seed: int) -> Policy:
        """A policy for a problem: untrained, or with the weights of a checkpoint. Raises PlacerError."""
        module, function = self.network.split(":")
        made: Policy = getattr(import_module(module), function)(problem, self.options, seed)
        if self.trained is not None:
            self.trained.fill(made, self.info.name)
        return made

    def trainer(self, problem: Problem, evaluate: Evaluate | None, seed: int, threads: int | None = None) -> Trainer:
        """A trainer that has not begun. Close it in the end."""
        if self._crew is not None:
            return self._crewed(self._crew, problem, seed)
        training = import_module("placewise.placers.learned.trainer")
        pricing = import_module("placewise.placers.learned.pricing").Pricing(problem, evaluate, threads)
        made: Trainer = training.Trainer(
            self.policy(problem, seed), self.options, pricing, seed, measured=evaluate is not None
        )
        return made

    def _crewed(self, crew: Crew, problem: Problem, seed: int) -> Trainer:
        messages = import_module("placewise.placers.learned.workers.messages")
        server = import_module("placewise.placers.learned.workers.server")
        untrained = partial(_policy, type(self), replace(self.options, checkpoint=""), problem, seed)
        brief = messages.Brief(untrained, self.options, crew, self._make_evaluate)
        made: Trainer = server.crew_trainer(brief, self.policy(problem, seed), seed)
        return made

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement that training saw, or words that say why there is none."""
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
        return proposal_of(problem, trainer, self.info.name, reason)

    def starts(self, problem: Problem, hints: Hints = NO_HINTS) -> Ints:
        """What is known before training begins [n, n_ops]: hints, and what another training found on this problem."""
        rows = [hint.device for hint in hints.placements if hint.replicas is None]
        best = None if self.trained is None else self.trained.best(problem)
        return np.array([*rows, *([] if best is None else [best])], np.int32).reshape(-1, problem.n_ops)

    def _listener(self, trainer: Trainer, watch: Stopwatch, on_progress: OnProgress) -> Callable[[Update], None]:
        def tell(update: Update) -> None:
            self.observer.update(trainer, update)
            on_progress(Progress(self.info.name, watch.elapsed, said(update), update.best, None))

        return tell


def _policy(kind: type[LearnedPlacer], options: LearningOptions, problem: Problem, seed: int) -> Policy:
    """An untrained policy, in another process."""
    return kind(options).policy(problem, seed)


def said(update: Update) -> str:
    """The figures of an update that a person watches."""
    lesson, rate = update.lesson, update.asked / update.seconds if update.seconds > 0 else 0.0
    return (
        f"update {update.number} · reward {lesson.reward:.3f}, baseline {lesson.baseline:.3f}, "
        f"entropy {lesson.entropy:.3f} · {rate:.3g} samples/s"
    )


def proposal_of(problem: Problem, trainer: Trainer, name: str, reason: Reason) -> Proposal:
    """What a training has found."""
    pricing = trainer.pricing
    notes = trainer.policy.notes
    if trainer.diverged:
        kept = f"the parameters are those after update {trainer.learner.updates}"
        notes = (
            *notes,
            f"{name} diverged: a figure of the next update was not finite; it stopped, and {kept}",
        )
    if trainer.trouble:
        notes = (*notes, f"{name} stopped early: {trainer.trouble}")
    if pricing.best is None:
        why = f"none of {pricing.evaluations} placements could be used: {pricing.failure}"
        return Proposal(None, reason=reason, notes=(*notes, why))
    if trainer.measured and pricing.failures:
        counts = f"{pricing.failures} of {pricing.evaluations} placements could not be used"
        notes = (*notes, f"{counts}; why the last of them: {pricing.failure}")
    best = relabel(problem, pricing.best) if not trainer.measured else pricing.best
    history = tuple(Improvement(seconds, value, name) for _, seconds, value in trainer.curve)
    return Proposal(Placement(best), reason=reason, notes=notes, history=history)


def settings(options: LearningOptions) -> dict[str, Any]:
    """Options as plain values, by name."""
    return {field.name: getattr(options, field.name) for field in fields(options)}


def require_share(name: str, value: float) -> None:
    """Raise PlacerError unless 0 ≤ value < 1."""
    if not (0 <= value < 1 and math.isfinite(value)):
        raise PlacerError(f"{name} is {value}", remedy="give a share from 0 to below 1")
