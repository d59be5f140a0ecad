"""The server: the parameters, the optimizer, the best placement and the budget; controllers do the rest.

Asynchronous as in Mirhoseini et al., ICML 2017 (controllers, workers and a parameter server): gradients are applied as
they come, also to parameters that are newer than those which they were computed from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from placewise.model.result import Reason
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.learned.objectives import Diverged, TrainStats, tensors
from placewise.placers.learned.policy import Policy, Rollout
from placewise.placers.learned.pricing import REMEMBERED, Pricing, digests
from placewise.placers.learned.trainer import GREEDY_EVERY, Trainer, Update, one_thread
from placewise.placers.learned.workers.backend import require_sizes
from placewise.placers.learned.workers.controller_pool import ControllerPool
from placewise.placers.learned.workers.messages import Brief, Errand, Report

BREATH = 1.0
"""Seconds between looks at the clock."""
UNLIMITED = 1 << 40


@dataclass(eq=False)
class CrewTrainer(Trainer):
    """A trainer whose updates come from a crew. Close it when it is done.

    `trouble` says why it ended early, if it did. One seed does not mean one result: what comes first is chance.
    """

    staff: ControllerPool = field(kw_only=True)
    _news: list[tuple[bytes, float]] = field(default_factory=list)
    _old_news: int = 0
    _largest: int = 0
    _need: int = 1

    @property
    def trouble(self) -> str:
        return self.staff.trouble or self.weary

    def close(self) -> None:
        self.staff.close()

    def run(self, budget: Budget, on_update: Callable[[Update], None] = lambda _: None) -> Reason:
        """Train until the budget, which is that of the whole crew, ends. Ctrl-C is the end of a budget."""
        watch, state, self.weary = Stopwatch(budget), self.pricing.state(), ""
        self._news = list(zip((row.tobytes() for row in state["seen"]), state["values"].tolist(), strict=True))
        try:
            with one_thread(self.policy):
                while (reason := self._over(watch)) is None:
                    self._hand_out(watch)
                    for errand, report in self.staff.reports(min(watch.left, BREATH)):
                        self._take(errand, report, watch, on_update)
                self._rest(budget)
                if not self.staff.trouble and not (self.measured and reason is Reason.TIME_LIMIT):
                    self._greedy(budget)
        except KeyboardInterrupt:
            return Reason.INTERRUPTED
        except Diverged:
            self.diverged = True
            return Reason.FINISHED
        return reason

    def _over(self, watch: Stopwatch) -> Reason | None:
        if self.staff.trouble:
            self.pricing.failure = self.staff.trouble
            return Reason.FINISHED
        if not self.staff.errands() and self._free(watch.budget) < self._need:
            return Reason.FINISHED
        return super()._over(watch)

    def _free(self, budget: Budget) -> int:
        """How many placements may still be priced, and are not given to anybody yet."""
        if budget.evaluations is None:
            return UNLIMITED
        return budget.evaluations - self.pricing.evaluations - sum(errand.most for errand in self.staff.errands())

    def _hand_out(self, watch: Stopwatch) -> None:
        """Send out whoever is idle, as far as updates and evaluations reach for all of them."""
        most = self.most_updates(watch.budget)
        for member in self.staff.idle():
            free = self._free(watch.budget)
            if free < self._need or (most is not None and self.learner.updates + len(self.staff.errands()) >= most):
                return
            share = 2 * self._largest if self._largest else -(-free // self.staff.size)
            allowed = free if free == UNLIMITED else min(free, max(share, self.options.samples + 1, self._need))
            news = self._news[max(member.told - self._old_news, 0) :]
            member.told = self._old_news + len(self._news)
            self.staff.send(member, self._errand(watch, allowed, news))

    def _errand(self, watch: Stopwatch, most: int, news: list[tuple[bytes, float]]) -> Errand:
        learner = self.learner
        return Errand(
            parameters={name: value.numpy() for name, value in self.policy.state_dict().items()},
            scale=learner.scale,
            baseline=learner.baseline,
            steps=learner.steps,
            updates=learner.updates,
            unrest=self.policy.unrest,
            progress=self.progress(watch),
            count=min(self.options.samples, most),
            most=most,
            seconds=watch.left,
            greedy=(learner.updates + 1) % GREEDY_EVERY == 0,
            keys=tuple(key for key, _ in news),
            values=np.array([value for _, value in news]),
            reference=self.staff.reference,
        )

    def _take(self, errand: Errand, report: Report, watch: Stopwatch, on_update: Callable[[Update], None]) -> None:
        """Count what a controller priced, and learn what it learned."""
        pricing = self.pricing
        pricing.record(report.rows, report.seconds)
        pricing.forget()
        pricing.asked += report.asked
        pricing.failure = report.failure or pricing.failure
        self._news += zip(digests(report.rows), report.seconds.tolist(), strict=True)
        if len(self._news) > REMEMBERED:
            self._old_news += len(self._news) // 2
            del self._news[: len(self._news) // 2]
        self._largest = max(self._largest, len(report.rows))
        self._need = errand.most + 1 if report.spent else self._need
        self._note()
        lesson = self._learn(report, self.progress(watch))
        if lesson is not None:
            self._stir(len(report.rows))
            spent = time.monotonic() - self.began
            number = self.learner.updates
            on_update(Update(number, pricing.value, lesson, pricing.asked, pricing.evaluations, spent))

    def _learn(self, report: Report, progress: float) -> TrainStats | None:
        if report.drawn is not None:
            drawn = report.drawn
            rollout = Rollout(tensors(drawn.choices, ""), drawn.seconds, drawn.path, drawn.weight)
            return self.learner.learn(rollout, progress, torch.from_numpy(np.array(drawn.old)))
        if report.lesson is None or report.gradients is None:
            return None
        return self.learner.apply(tensors(report.gradients, ""), report.lesson, progress)


def crew_trainer(brief: Brief, policy: Policy | None = None, seed: int = 0) -> CrewTrainer:
    """A trainer with the crew of a brief, which begins to gather at once; `policy` is where it starts.

    Raises PlacerError for sizes that make no sense, MissingExtraError, and RunError where there is no such cluster.
    """
    require_sizes(brief.crew)
    policy = policy or brief.make_policy()
    staff = ControllerPool(brief, seed)
    measured = brief.make_evaluate is not None
    pricing = Pricing(policy.view.problem, staff if measured else None)
    return CrewTrainer(policy, brief.options, pricing, seed, measured=measured, staff=staff)
