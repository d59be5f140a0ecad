"""A controller: rolls out a copy of the policy, lets its workers measure, and returns how to change the parameters."""

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
from placewise.placers.learned.objectives import Learner, to_tensors
from placewise.placers.learned.policy import Rollout
from placewise.placers.learned.pricing import LOST, BudgetExhausted, Pricing
from placewise.simulate import Evaluator
from placewise.training.workers.measuring import LocalMeasuring, Measuring
from placewise.training.workers.messages import ControllerResult, ControllerSpec, ControllerTask, RolloutArrays


class RecordingPricing(Pricing):
    """Pricing that records what it priced until the record is taken, and counts lost placements."""

    def __init__(self, problem: Problem, evaluate: Evaluate) -> None:
        super().__init__(problem, evaluate)
        self.lost = 0
        self._fresh: list[tuple[Ints, Floats]] = []

    def __call__(self, placements: Ints) -> Floats:
        seconds = super().__call__(placements)
        self.lost += int((seconds == LOST).sum())
        return seconds

    def record(self, rows: Ints, seconds: Floats) -> None:
        super().record(rows, seconds)
        self._fresh.append((rows, seconds))

    def take_record(self) -> ControllerResult:
        """Return and clear the record."""
        rows = np.concatenate([np.zeros((0, self.problem.n_ops), np.int32), *(rows for rows, _ in self._fresh)])
        seconds = np.concatenate([np.zeros(0), *(seconds for _, seconds in self._fresh)])
        result = ControllerResult(rows=rows, seconds=seconds, asked=self.asked, lost=self.lost, failure=self.failure)
        self.asked, self.lost, self._fresh = 0, 0, []
        return result


class Controller:
    """One controller with a random seed of its own; `number` names its workers."""

    def __init__(self, spec: ControllerSpec, seed: int, number: int) -> None:
        torch.set_num_threads(1)
        policy, config = spec.make_policy(), spec.config
        problem = policy.view.problem
        self._generator = torch.Generator().manual_seed(seed)
        self._learner = Learner(policy, spec.options, 1.0)
        make_evaluate = spec.make_evaluate or partial(Evaluator, problem, threads=1)
        self._measuring: LocalMeasuring | Measuring = (
            Measuring(config.backend(), make_evaluate, config.workers, config.limit, f"worker {number}.")
            if config.workers
            else LocalMeasuring(make_evaluate())
        )
        self._pricing = RecordingPricing(problem, self._measuring)

    def price(self, rows: Ints, reference: float) -> ControllerResult:
        """Price placements that keep the rules; `LOST` where a worker died."""
        self._set_reference(reference)
        seconds = self._measuring(rows)
        return self._add_worker_counts(ControllerResult(rows=rows, seconds=seconds, failure=self._measuring.failure))

    def learn(self, task: ControllerTask) -> ControllerResult:
        """Roll out, price, and return how to change the parameters."""
        learner, pricing = self._learner, self._pricing
        learner.policy.load_state_dict(to_tensors(task.parameters, ""))
        learner.scale, learner.baseline, learner.steps = task.scale, task.baseline, task.steps
        learner.updates, learner.policy.extra_decisions = task.updates, task.extra_decisions
        learner.policy.progress = task.progress
        self._set_reference(task.reference)
        pricing.remember(task.keys, task.values)
        rollout: Rollout | None = None
        with suppress(BudgetExhausted), pricing.limit_to(pricing.evaluations + task.most, task.seconds):
            rollout = learner.policy.rollout(task.count, self._generator, pricing)
            if task.greedy:
                pricing(learner.policy.greedy(pricing))
        learned = {} if rollout is None else self._learn(drop_lost_episodes(rollout), task.progress)
        return self._add_worker_counts(pricing.take_record(), exhausted=rollout is None, **learned)

    def _learn(self, rollout: Rollout | None, progress: float) -> dict[str, Any]:
        if rollout is None:
            return {}
        learner, policy = self._learner, self._learner.policy
        if learner.options.algorithm == "ppo":
            with torch.no_grad():
                old = policy.log_prob(rollout.choices)[0]
            return {"rollout": RolloutArrays.pack(rollout, old)}
        stats, _ = learner.compute_gradients(rollout, None, progress)
        named = policy.named_parameters()
        gradients = {name: value.grad.numpy() for name, value in named if value.grad is not None}
        return {"stats": stats, "gradients": gradients}

    def _set_reference(self, reference: float) -> None:
        if np.isfinite(reference):
            self._measuring.reference = reference

    def _add_worker_counts(self, result: ControllerResult, **more: Any) -> ControllerResult:
        """Add the deaths and results of workers since the last result."""
        measuring = self._measuring
        counts: dict[str, Any] = {"deaths": measuring.take_deaths(), "row": measuring.row, "results": measuring.results}
        measuring.results = 0
        return replace(result, reference=measuring.reference, **counts, **more)


def drop_lost_episodes(rollout: Rollout) -> Rollout | None:
    """Remove the episodes with lost placements; None if no episode remains."""
    lost = rollout.seconds == LOST
    if rollout.path is not None:
        lost |= (rollout.path == LOST).any(axis=1)
    if lost.all():
        return None
    kept = np.flatnonzero(~lost)
    choices = {name: value[torch.from_numpy(kept)] for name, value in rollout.choices.items()}
    path, weight = (None if part is None else part[kept] for part in (rollout.path, rollout.weight))
    return Rollout(choices, rollout.seconds[kept], path, weight)
