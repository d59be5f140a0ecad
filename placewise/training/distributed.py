"""The server: owns the parameters, the optimizer, the best placement and the budget.

Asynchronous as in Mirhoseini et al., ICML 2017 (controllers, workers and a parameter server): gradients are applied as
they arrive, even if the parameters have changed since they were computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.learned.objectives import Diverged, TrainStats, to_tensors
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, untrained_policy
from placewise.placers.learned.pricing import CACHE_SIZE, Pricing, digests
from placewise.placers.learned.trainer import Trainer, Update, one_thread
from placewise.training.workers.config import WorkerConfig, require_sizes
from placewise.training.workers.measuring import MakeEvaluate
from placewise.training.workers.messages import ControllerResult, ControllerSpec, ControllerTask
from placewise.training.workers.pools import ControllerPool

POLL_SECONDS = 1.0
"""Longest wait between two checks of the budget."""
UNLIMITED = 1 << 40


@dataclass(eq=False)
class DistributedTrainer(Trainer):
    """A trainer whose updates come from controllers. Call `close` at the end.

    Results arrive in no fixed order, so equal seeds do not give equal results.
    """

    controllers: ControllerPool = field(kw_only=True)
    _news: list[tuple[bytes, float]] = field(default_factory=list)
    _dropped_news: int = 0
    _largest: int = 0
    _need: int = 1

    @property
    def early_stop(self) -> str:
        return self.controllers.stop_reason or self.stalled

    def close(self) -> None:
        self.controllers.close()

    def run(self, budget: Budget, on_update: Callable[[Update], None] = lambda _: None) -> Reason:
        """Train until the budget of all workers together is exhausted. Ctrl-C ends training like a budget."""
        watch, state, self.stalled = Stopwatch(budget), self.pricing.state(), ""
        self._news = list(zip((row.tobytes() for row in state["seen"]), state["values"].tolist(), strict=True))
        try:
            with one_thread(self.policy):
                self.teach(watch)
                while (reason := self._end_reason(watch)) is None:
                    self._send_tasks(watch)
                    for task, result in self.controllers.results(min(watch.left, POLL_SECONDS)):
                        self._apply_result(task, result, watch, on_update)
                self._record_stall(budget)
                if not self.controllers.stop_reason and not (self.measured and reason is Reason.TIME_LIMIT):
                    self._price_greedy(budget)
        except KeyboardInterrupt:
            return Reason.INTERRUPTED
        except Diverged:
            self.diverged = True
            return Reason.FINISHED
        return reason

    def _end_reason(self, watch: Stopwatch) -> Reason | None:
        if self.controllers.stop_reason:
            self.pricing.failure = self.controllers.stop_reason
            return Reason.FINISHED
        if not self.controllers.learning_tasks() and self._unassigned(watch.budget) < self._need:
            return Reason.FINISHED
        return super()._end_reason(watch)

    def _unassigned(self, budget: Budget) -> int:
        """Number of placements that may still be priced and are not assigned to a controller."""
        if budget.evaluations is None:
            return UNLIMITED
        assigned = sum(task.most for task in self.controllers.learning_tasks())
        return budget.evaluations - self.pricing.evaluations - assigned

    def _send_tasks(self, watch: Stopwatch) -> None:
        """Give every idle controller a task, as far as updates and evaluations allow."""
        most = self.most_updates(watch.budget)
        for member in self.controllers.idle():
            free = self._unassigned(watch.budget)
            begun = self.learner.updates + len(self.controllers.learning_tasks())
            if free < self._need or (most is not None and begun >= most):
                return
            share = 2 * self._largest if self._largest else -(-free // self.controllers.size)
            allowed = free if free == UNLIMITED else min(free, max(share, self.options.samples + 1, self._need))
            news = self._news[max(member.sent - self._dropped_news, 0) :]
            member.sent = self._dropped_news + len(self._news)
            self.controllers.send(member, self._create_task(watch, allowed, news))

    def _create_task(self, watch: Stopwatch, most: int, news: list[tuple[bytes, float]]) -> ControllerTask:
        learner = self.learner
        return ControllerTask(
            parameters={name: value.numpy() for name, value in self.policy.state_dict().items()},
            scale=learner.scale,
            baseline=learner.baseline,
            steps=learner.steps,
            updates=learner.updates,
            extra_decisions=self.policy.extra_decisions,
            progress=self.progress(watch),
            count=min(self.options.samples, most),
            most=most,
            seconds=watch.left,
            greedy=self.greedy_after(learner.updates + 1),
            keys=tuple(key for key, _ in news),
            values=np.array([value for _, value in news]),
            reference=self.controllers.reference,
        )

    def _apply_result(
        self, task: ControllerTask, result: ControllerResult, watch: Stopwatch, on_update: Callable[[Update], None]
    ) -> None:
        """Record the placements that a controller priced, and apply what it learned."""
        pricing = self.pricing
        pricing.record(result.rows, result.seconds)
        pricing.evict()
        pricing.asked += result.asked
        pricing.failure = result.failure or pricing.failure
        self._news += zip(digests(result.rows), result.seconds.tolist(), strict=True)
        if len(self._news) > CACHE_SIZE:
            self._dropped_news += len(self._news) // 2
            del self._news[: len(self._news) // 2]
        self._largest = max(self._largest, len(result.rows))
        self._need = task.most + 1 if result.exhausted else self._need
        self._record_improvement()
        stats = self._learn(result, self.progress(watch))
        if stats is not None:
            self._adjust_exploration(len(result.rows))
            spent = time.monotonic() - self.began
            number = self.learner.updates
            on_update(Update(number, pricing.value, stats, pricing.asked, pricing.evaluations, spent))

    def _learn(self, result: ControllerResult, progress: float) -> TrainStats | None:
        if result.rollout is not None:
            rollout, old = result.rollout.unpack()
            return self.learner.learn(rollout, progress, old)
        if result.stats is None or result.gradients is None:
            return None
        return self.learner.apply(to_tensors(result.gradients, ""), result.stats, progress)


def train_with_workers(
    config: WorkerConfig, make_evaluate: MakeEvaluate | None, placer: LearnedPlacer, problem: Problem, seed: int
) -> DistributedTrainer:
    """The trainer of a placer with many workers, each of which measures with an `Evaluate` of its own.

    `make_evaluate` must be picklable; None means the judge.
    """
    untrained = partial(untrained_policy, type(placer).network, problem, placer.options, seed)
    spec = ControllerSpec(untrained, placer.options, config, make_evaluate)
    return distributed_trainer(spec, placer.policy(problem, seed), seed)


def distributed_trainer(spec: ControllerSpec, policy: Policy | None = None, seed: int = 0) -> DistributedTrainer:
    """Start the workers of a spec, and create their trainer; `policy` is the initial one.

    Raises PlacerError for invalid numbers of workers, MissingExtraError, and RunError if the cluster does not answer.
    """
    require_sizes(spec.config)
    policy = policy or spec.make_policy()
    controllers = ControllerPool(spec, seed)
    measured = spec.make_evaluate is not None
    pricing = Pricing(policy.view.problem, controllers if measured else None)
    return DistributedTrainer(policy, spec.options, pricing, seed, measured=measured, controllers=controllers)
