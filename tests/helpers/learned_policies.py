"""The smallest policy: a table of logits, one row per unit. What the engine of training is tested with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.base import Budget, PlacerInfo, Stopwatch
from placewise.placers.learned.features import build_features
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, Price, Rollout, draw, mask_logits, score_choices, untrained_policy
from placewise.placers.learned.view import build_view


class TablePolicy(Policy):
    """Every unit is decided alone; nothing is known of the graph."""

    def __init__(self, problem: Problem, options: LearningOptions) -> None:
        super().__init__()
        view = build_view(problem, np.arange(problem.n_ops))
        self.view, self.options, self.features = view, options, build_features(view, ("kind", "fractal"))
        self.logits = nn.Parameter(torch.zeros(view.n, view.n_devices))
        self.register_buffer("allowed", torch.from_numpy(view.allowed.copy()), persistent=False)

    def _rows(self, count: int) -> Tensor:
        return mask_logits(self.logits, self.get_buffer("allowed")).expand(count, -1, -1)

    @torch.no_grad()
    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        device = draw(self._rows(count), generator)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return score_choices(self._rows(len(choices["device"])), choices["device"])

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        return self.view.placements(self._rows(1).argmax(dim=-1).numpy())


def table(problem: Problem, options: LearningOptions, seed: int) -> TablePolicy:
    """A table over the ops of a problem; `options` and `seed` change nothing in it."""
    return untrained_policy(TablePolicy, problem, options, seed)


class TablePlacer(LearnedPlacer):
    """The table as a placer."""

    info = PlacerInfo("table", "a table of logits", "the tests of the engine")
    network = TablePolicy


def assert_goes_on(placer: LearnedPlacer, problem: Problem) -> None:
    """Three updates by one trainer, three more by it or by another from its state: the same to the last bit."""
    watch = Stopwatch(Budget(iterations=6))
    whole = placer.trainer(problem, None, 4)
    whole.begin()
    for _ in range(3):
        whole.update(watch)
    rest = placer.trainer(problem, None, 9)
    rest.restore(*whole.state())
    for trainer in (whole, rest):
        for _ in range(3):
            trainer.update(watch)
    (_, expected), (_, found) = whole.state(), rest.state()
    assert set(expected) == set(found) and len(found) > 20
    assert all(np.array_equal(found[key], value, equal_nan=True) for key, value in expected.items())
