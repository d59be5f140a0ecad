"""Training: roll out, price, learn, again, until a budget ends; the best placement is never lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from placewise.model.columns import Ints
from placewise.model.result import Reason
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.learned.objectives import Diverged, Learner, TrainStats
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy, parameters_of
from placewise.placers.learned.pricing import REMEMBERED, Pricing, Spent, alone
from placewise.placers.shared.repair import repair

GREEDY_EVERY = 10
"""After so many updates the policy's own favourite is priced."""
HOPELESS = 64
"""Where none of so many measured placements could run, none will."""
UNSEEN = 0.25
"""The share of an update's samples that must be unseen for a policy not to grow restless."""
STALE = 200
"""So many updates that bring nothing unseen end a budget of evaluations."""

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Update:
    """A sign of life after an update: the best seconds so far, the lesson, what was asked and priced, time spent."""

    number: int
    best: float
    lesson: TrainStats
    asked: int
    evaluations: int
    seconds: float


@dataclass(slots=True, eq=False)
class Trainer:
    """One policy in training, in one process. `curve`: (evaluations, seconds, best) at every improvement."""

    policy: Policy
    options: LearningOptions
    pricing: Pricing
    seed: int = 0
    measured: bool = False
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    learner: Learner = field(init=False)
    dice: torch.Generator = field(init=False)
    began: float = field(init=False)
    diverged: bool = False
    weary: str = ""
    _last_better: int = 0
    _last_fresh: int = 0
    _last_base: int = 0
    _base_value: float = math.inf
    _space: float = math.inf
    _initial: dict[str, torch.Tensor] = field(init=False)
    _elder: dict[str, torch.Tensor] = field(default_factory=dict)
    _elder_value: float = math.inf

    def __post_init__(self) -> None:
        self.learner = Learner(self.policy, self.options, math.nan)
        self.dice = torch.Generator().manual_seed(self.seed)
        self.began = time.monotonic()
        self._initial = parameters_of(self.policy)

    def begin(self, starts: Ints | None = None) -> None:
        """Price every device alone, and `starts` [n, n_ops]; the best single device sets the scale of rewards."""
        problem = self.policy.view.problem
        self.pricing(self.policy.advised())
        self.pricing.leave()
        single = alone(problem)
        found = self.pricing(single) if len(single) else np.zeros(0)
        if starts is not None and len(starts):
            self.pricing(starts)
        else:
            space = math.prod(self.policy.view.allowed.sum(axis=1).tolist())
            self._space = space if space <= REMEMBERED else math.inf
        if not np.isfinite(found).any() and self.pricing.best is None:
            fitted = repair(problem, np.zeros(problem.n_ops, np.int32), seed=self.seed)
            if fitted is not None:
                self.pricing(fitted[None])
        finite = found[np.isfinite(found)]
        scale = float(finite.min()) if len(finite) else self.pricing.value
        if not (math.isfinite(scale) and scale > 0):
            fastest = np.where(problem.allowed, problem.costs.op_seconds, np.inf).min(axis=1)
            scale = float(fastest[np.isfinite(fastest)].sum())
        self.learner.scale = scale if scale > 0 else 1.0
        self._note()

    @property
    def trouble(self) -> str:
        """Why training ended before its budget did; "" where it did not."""
        return self.weary

    def close(self) -> None:
        """Let go of who helped; nobody here."""

    def run(self, budget: Budget, on_update: Callable[[Update], None] = lambda _: None) -> Reason:
        """Train until the budget ends. Ctrl-C is the end of a budget."""
        watch, self.weary = Stopwatch(budget), ""
        try:
            with one_thread(self.policy):
                try:
                    with self.pricing.within(budget.evaluations, budget.seconds):
                        while (reason := self._over(watch)) is None:
                            on_update(self.update(watch))
                except Spent:
                    reason = self._over(watch) or Reason.FINISHED
                    self._note()
                self._rest(budget)
                self._greedy(budget)
        except KeyboardInterrupt:
            return Reason.INTERRUPTED
        except Diverged:
            self.diverged = True
            return Reason.FINISHED
        finally:
            if self._elder and self._elder_value <= self.pricing.base_value:
                self.learner.renew(self._elder)
        return reason

    def update(self, watch: Stopwatch) -> Update:
        """One update: episodes, priced and learned from. Raises Diverged."""
        evaluations, left = self.pricing.evaluations, watch.budget.evaluations
        count = self.options.samples
        if left is not None and self._last_fresh == self.learner.updates:
            count = min(count, left - evaluations)
        rollout = self.policy.rollout(max(count, 1), self.dice, self.pricing)
        lesson = self.learner.learn(rollout, self.progress(watch))
        number = self.learner.updates
        unseen = self.pricing.evaluations - evaluations
        self._stir(unseen)
        if left is not None:
            self._renew(unseen)
        if number % GREEDY_EVERY == 0:
            self._greedy(watch.budget)
        self._note()
        spent = time.monotonic() - self.began
        return Update(number, self.pricing.value, lesson, self.pricing.asked, self.pricing.evaluations, spent)

    def progress(self, watch: Stopwatch) -> float:
        """How much of the budget is spent, from 0 to 1: of whichever limit is nearest."""
        budget, shares = watch.budget, [0.0]
        if math.isfinite(budget.seconds):
            shares.append(watch.elapsed / budget.seconds if budget.seconds else 1.0)
        if budget.evaluations is not None:
            shares.append(self.pricing.evaluations / max(budget.evaluations, 1))
        most = self.most_updates(budget)
        if most is not None:
            shares.append(self.learner.updates / max(most, 1))
        return min(max(shares), 1.0)

    def most_updates(self, budget: Budget) -> int | None:
        """The updates that a budget allows; those of the options where it has no limit at all."""
        if budget.iterations is not None or not self.options.updates:
            return budget.iterations if self.options.updates else 0
        unlimited = budget.evaluations is None and not math.isfinite(budget.seconds)
        return self.options.updates if unlimited else None

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Everything that training goes on from: figures, and arrays."""
        arrays: Arrays = self.learner.arrays()
        arrays |= {f"pricing/{name}": value for name, value in self.pricing.state().items()}
        arrays |= {f"elder/{name}": value.numpy().copy() for name, value in self._elder.items()}
        arrays["dice"] = self.dice.get_state().numpy()
        figures = {
            "updates": self.learner.updates, "baseline": self.learner.baseline, "scale": self.learner.scale,
            "steps": None if self.learner.steps is None else self.learner.steps.tolist(),
            "curve": [list(step) for step in self.curve], "last_better": self._last_better,
            "last_fresh": self._last_fresh, "last_base": self._last_base, "unrest": self.policy.unrest,
            "space": None if math.isinf(self._space) else self._space,
            "base_value": None if math.isinf(self._base_value) else self._base_value,
            "elder": None if math.isinf(self._elder_value) else self._elder_value,
        }  # fmt: skip
        return figures, arrays

    def restore(self, figures: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on where `state` was taken."""
        self.learner.restore(arrays)
        self.pricing.restore(
            {key.removeprefix("pricing/"): value for key, value in arrays.items() if "pricing/" in key}
        )
        self.dice.set_state(torch.from_numpy(np.array(arrays["dice"], np.uint8)))
        self.learner.updates, self.learner.baseline = int(figures["updates"]), figures["baseline"]
        self.learner.scale = float(figures["scale"])
        self.learner.steps = None if figures.get("steps") is None else np.array(figures["steps"], np.float64)
        self.curve = [(int(count), float(seconds), float(best)) for count, seconds, best in figures["curve"]]
        self._last_better, self._last_fresh = int(figures["last_better"]), int(figures["last_fresh"])
        self._last_base = int(figures.get("last_base", 0))
        self._base_value = math.inf if figures.get("base_value") is None else float(figures["base_value"])
        self._elder = {
            name.removeprefix("elder/"): torch.from_numpy(np.array(value))
            for name, value in arrays.items()
            if name.startswith("elder/")
        }
        self._elder_value = math.inf if figures.get("elder") is None else float(figures["elder"])
        self.policy.unrest = float(figures.get("unrest", 0.0))
        self._space = math.inf if figures.get("space") is None else int(figures["space"])

    def _over(self, watch: Stopwatch) -> Reason | None:
        budget, updates = watch.budget, self.learner.updates
        if watch.out:
            return Reason.TIME_LIMIT
        most = self.most_updates(budget)
        if most is not None and updates >= most:
            return Reason.FINISHED
        if budget.evaluations is not None and self.pricing.evaluations >= budget.evaluations:
            return Reason.FINISHED
        if self.pricing.evaluations >= self._space:
            return Reason.FINISHED
        if self.measured and self.pricing.best is None and self.pricing.evaluations >= HOPELESS:
            return Reason.FINISHED
        return Reason.FINISHED if self._weariness(budget) else None

    def _weariness(self, budget: Budget) -> str:
        """Why no more is to be hoped for, in words."""
        updates, patience = self.learner.updates, self.options.patience
        if budget.evaluations is not None and updates - self._last_fresh >= STALE:
            return f"{STALE} updates in a row brought no placement that was unseen"
        if patience and updates - self._last_better >= patience:
            return f"{patience} update{'s in a row' * (patience > 1)} brought nothing better"
        return ""

    def _rest(self, budget: Budget) -> None:
        """Remember whether training ended because it was weary; who goes on later begins with new patience."""
        self.weary = self._weariness(budget)
        if self.weary:
            self._last_fresh = self._last_better = self.learner.updates

    def _stir(self, unseen: int) -> None:
        """Leave more to chance after an update that brought little that was unseen, and less after any other."""
        if unseen:
            self._last_fresh = self.learner.updates
        step = self.options.restless if self._stale(unseen) else -self.options.restless
        self.policy.unrest = min(max(self.policy.unrest + step, 0.0), float(self.policy.view.n))

    def _stale(self, unseen: int) -> bool:
        return unseen < UNSEEN * self.options.samples

    def _renew(self, unseen: int) -> None:
        """Begin anew where an update that brought little ends so many that brought nothing better.

        The parameters with which the best was found are kept, and are those of the policy in the end.
        """
        updates = self.learner.updates
        if self.pricing.base_value < self._base_value:
            self._last_base, self._base_value = updates, self.pricing.base_value
        elif self.options.renewed and self._stale(unseen) and updates - self._last_base >= self.options.renewed:
            if self._base_value < self._elder_value:
                self._elder, self._elder_value = parameters_of(self.policy), self._base_value
            self.learner.renew(self._initial)
            self.pricing.leave()
            self.policy.unrest = 0.0
            self._last_base, self._base_value = updates, math.inf

    def _greedy(self, budget: Budget) -> None:
        left = None if budget.evaluations is None else budget.evaluations - self.pricing.evaluations
        if left is None or left > 0:
            with self.pricing.within(budget.evaluations, math.inf):
                favourites = self.policy.greedy(self.pricing)
            self.pricing(favourites[:left])
            self._note()

    def _note(self) -> None:
        if self.pricing.best is not None and (not self.curve or self.pricing.value < self.curve[-1][2]):
            self.curve.append((self.pricing.evaluations, time.monotonic() - self.began, self.pricing.value))
            self._last_better = self.learner.updates


@contextmanager
def one_thread(policy: Policy) -> Iterator[None]:
    """Torch on one thread while networks are small: more would wait for each other."""
    before = torch.get_num_threads()
    if policy.view.n < 5000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
