"""A controller: rolls out a copy of the policy, lets its workers measure, and says how the parameters should change."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate
from placewise.placers.learned.objectives import Learner, tensors
from placewise.placers.learned.policy import Rollout
from placewise.placers.learned.pricing import LOST, Pricing, Spent
from placewise.placers.learned.workers.measuring import Alone, Measuring
from placewise.placers.learned.workers.messages import Brief, Drawn, Errand, Report
from placewise.simulate import Evaluator


class RecordingPricing(Pricing):
    """Pricing that keeps what it priced until it is taken, and counts what was lost."""

    def __init__(self, problem: Problem, evaluate: Evaluate) -> None:
        super().__init__(problem, evaluate)
        self.lost = 0
        self._fresh: list[tuple[Ints, Floats]] = []

    def __call__(self, placements: Ints) -> Floats:
        found = super().__call__(placements)
        self.lost += int((found == LOST).sum())
        return found

    def record(self, rows: Ints, seconds: Floats) -> None:
        super().record(rows, seconds)
        self._fresh.append((rows, seconds))

    def taken(self) -> Report:
        """The account since the last."""
        rows = np.concatenate([np.zeros((0, self.problem.n_ops), np.int32), *(rows for rows, _ in self._fresh)])
        seconds = np.concatenate([np.zeros(0), *(seconds for _, seconds in self._fresh)])
        report = Report(rows, seconds, self.asked, self.lost, failure=self.failure)
        self.asked, self.lost, self._fresh = 0, 0, []
        return report


class Controller:
    """One controller, with chance from a seed of its own; `number` is for the names of its workers."""

    def __init__(self, brief: Brief, seed: int, number: int) -> None:
        torch.set_num_threads(1)
        policy, crew, make = brief.make_policy(), brief.crew, brief.make_evaluate
        problem = policy.view.problem
        self._dice = torch.Generator().manual_seed(seed)
        self._learner = Learner(policy, brief.options, 1.0)
        made = make or partial(Evaluator, problem, threads=1)
        self._team: Alone | Measuring = (
            Measuring(crew.house(), made, crew.workers, crew.limit, f"worker {number}.")
            if crew.workers
            else Alone(made())
        )
        self._pricing = RecordingPricing(problem, self._team)

    def price(self, rows: Ints, reference: float) -> Report:
        """The seconds of placements that keep the rules, `LOST` where a worker died."""
        self._refer(reference)
        seconds = self._team(rows)
        return self._told(Report(rows, seconds, failure=self._team.failure))

    def learn(self, errand: Errand) -> Report:
        """Roll out, price, and say how the parameters should change."""
        learner, pricing = self._learner, self._pricing
        learner.policy.load_state_dict(tensors(errand.parameters, ""))
        learner.scale, learner.baseline, learner.steps = errand.scale, errand.baseline, errand.steps
        learner.updates, learner.policy.unrest = errand.updates, errand.unrest
        self._refer(errand.reference)
        pricing.know(errand.keys, errand.values)
        rollout: Rollout | None = None
        with suppress(Spent), pricing.within(pricing.evaluations + errand.most, errand.seconds):
            rollout = learner.policy.rollout(errand.count, self._dice, pricing)
            if errand.greedy:
                pricing(learner.policy.greedy(pricing))
        learned = {} if rollout is None else self._learned(told(rollout), errand.progress)
        return self._told(pricing.taken(), spent=rollout is None, **learned)

    def _learned(self, rollout: Rollout | None, progress: float) -> dict[str, Any]:
        if rollout is None:
            return {}
        learner, policy = self._learner, self._learner.policy
        if learner.options.algorithm == "ppo":
            with torch.no_grad():
                old = policy.log_prob(rollout.choices)[0].numpy()
            choices = {name: value.numpy() for name, value in rollout.choices.items()}
            return {"drawn": Drawn(choices, rollout.seconds, rollout.path, rollout.weight, old)}
        lesson, _ = learner.descend(rollout, None, progress)
        named = policy.named_parameters()
        gradients = {name: value.grad.numpy() for name, value in named if value.grad is not None}
        return {"lesson": lesson, "gradients": gradients}

    def _refer(self, reference: float) -> None:
        if np.isfinite(reference):
            self._team.reference = reference

    def _told(self, report: Report, **more: Any) -> Report:
        """The report, with what became of the workers since the last one."""
        team = self._team
        counts: dict[str, Any] = {"deaths": team.deaths, "row": team.row, "results": team.results}
        team.deaths = team.results = 0
        return replace(report, reference=team.reference, **counts, **more)


def told(rollout: Rollout) -> Rollout | None:
    """A rollout without the episodes in which something was lost; None where nothing remains."""
    lost = rollout.seconds == LOST
    if rollout.path is not None:
        lost |= (rollout.path == LOST).any(axis=1)
    if lost.all():
        return None
    kept = np.flatnonzero(~lost)
    choices = {name: value[torch.from_numpy(kept)] for name, value in rollout.choices.items()}
    path, weight = (None if part is None else part[kept] for part in (rollout.path, rollout.weight))
    return Rollout(choices, rollout.seconds[kept], path, weight)
