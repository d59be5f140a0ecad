"""Training: roll out, price and learn until the budget is exhausted. The best placement is always kept."""

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
from placewise.placers.learned.objectives import Diverged, Learner, TrainStats, to_tensors
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy, copy_parameters
from placewise.placers.learned.pricing import CACHE_SIZE, BudgetExhausted, Pricing, single_device_rows
from placewise.placers.shared.repair import repair

MAX_FAILURES = 64
"""Training ends if none of the first 64 measured placements could run."""
MIN_UNSEEN = 0.25
"""An update with a smaller share of unseen samples is stale."""
MAX_SEEN_UPDATES = 200
"""A budget of evaluations ends after this many updates in a row without an unseen placement."""
COUNTERS = {"last_better": 0, "last_unseen": 0, "last_base": 0, "base_value": math.inf, "best_run": math.inf,
            "space": math.inf, "taught": 0}  # fmt: skip
"""Counters and values of a training by their keys in its state, where infinity is written as None."""
RENAMED_KEYS = {"dice": "generator", "elder": "best_run", "last_fresh": "last_unseen", "unrest": "extra_decisions"}
"""Keys of the state in older checkpoints, and what they are called now."""

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Update:
    """Progress after an update: best seconds so far, statistics, placements asked and priced, seconds spent."""

    number: int
    best: float
    stats: TrainStats
    asked: int
    evaluations: int
    seconds: float


@dataclass(slots=True, eq=False)
class Trainer:
    """Trains one policy in one process. `curve`: (evaluations, seconds, best) at every improvement.

    `stalled` is the reason why training ended before its budget, or empty.
    """

    policy: Policy
    options: LearningOptions
    pricing: Pricing
    seed: int = 0
    measured: bool = False
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    learner: Learner = field(init=False)
    generator: torch.Generator = field(init=False)
    began: float = field(init=False)
    diverged: bool = False
    stalled: str = ""
    _counts: dict[str, float] = field(default_factory=COUNTERS.copy)
    _initial: dict[str, torch.Tensor] = field(init=False)
    _best_run: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learner = Learner(self.policy, self.options, math.nan)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.began = time.monotonic()
        self._initial = copy_parameters(self.policy)

    def begin(self, starts: Ints | None = None) -> None:
        """Price the single devices and `starts` [n, n_ops]. The best single device sets the scale of rewards."""
        problem = self.policy.view.problem
        self.pricing(self.policy.suggestions())
        self.pricing.reset_base()
        single = single_device_rows(problem)
        seconds = self.pricing(single) if len(single) else np.zeros(0)
        if starts is not None and len(starts):
            self.pricing(starts)
        else:
            space = math.prod(self.policy.view.allowed.sum(axis=1).tolist())
            self._counts["space"] = space if space <= CACHE_SIZE else math.inf
        if not np.isfinite(seconds).any() and self.pricing.best is None:
            fitted = repair(problem, np.zeros(problem.n_ops, np.int32), seed=self.seed)
            if fitted is not None:
                self.pricing(fitted[None])
        finite = seconds[np.isfinite(seconds)]
        scale = float(finite.min()) if len(finite) else self.pricing.value
        if not (math.isfinite(scale) and scale > 0):
            fastest = np.where(problem.allowed, problem.costs.op_seconds, np.inf).min(axis=1)
            scale = float(fastest[np.isfinite(fastest)].sum())
        self.learner.scale = scale if scale > 0 else 1.0
        self._record_improvement()

    @property
    def early_stop(self) -> str:
        """The reason why training ended before its budget; empty if it did not."""
        return self.stalled

    def close(self) -> None:
        """Release workers. There are none here."""

    def run(self, budget: Budget, on_update: Callable[[Update], None] = lambda _: None) -> Reason:
        """Train until the budget is exhausted. Ctrl-C ends training like a budget."""
        watch, self.stalled = Stopwatch(budget), ""
        try:
            with one_thread(self.policy):
                try:
                    with self.pricing.limit_to(budget.evaluations, budget.seconds):
                        while (reason := self._end_reason(watch)) is None:
                            on_update(self.update(watch))
                except BudgetExhausted:
                    reason = self._end_reason(watch) or Reason.FINISHED
                    self._record_improvement()
                self._record_stall(budget)
                trained = self.pricing.base, self.pricing.base_value
                self._price_greedy(budget)
        except KeyboardInterrupt:
            return Reason.INTERRUPTED
        except Diverged:
            self.diverged = True
            return Reason.FINISHED
        finally:
            if self._best_run and self._counts["best_run"] <= self.pricing.base_value:
                self.learner.restart(self._best_run)
        self.pricing.base, self.pricing.base_value = trained
        return reason

    def update(self, watch: Stopwatch) -> Update:
        """One update: roll out, price and learn. Raises Diverged."""
        self.teach(watch)
        evaluations, left = self.pricing.evaluations, watch.budget.evaluations
        self.policy.progress = self.progress(watch)
        count = self.options.samples
        if left is not None and self._counts["last_unseen"] == self.learner.updates:
            count = min(count, left - evaluations)
        rollout = self.policy.rollout(max(count, 1), self.generator, self.pricing)
        stats = self.learner.learn(rollout, self.policy.progress)
        number = self.learner.updates
        unseen = self.pricing.evaluations - evaluations
        self._adjust_exploration(unseen)
        if left is not None:
            self._restart_if_stale(unseen)
        if self.greedy_after(number):
            self._price_greedy(watch.budget)
        self._record_improvement()
        spent = time.monotonic() - self.began
        return Update(number, self.pricing.value, stats, self.pricing.asked, self.pricing.evaluations, spent)

    def teach(self, watch: Stopwatch) -> None:
        """Let the policy imitate its teacher, unless it did, or has the weights of a checkpoint."""
        known = self._counts["taught"] or self.options.checkpoint
        for lesson in () if known else self.policy.lessons(self.generator):
            self.learner.imitate(lesson)
            if watch.out:
                break
        self._counts["taught"] = 1

    def progress(self, watch: Stopwatch) -> float:
        """The spent share of the budget, from 0 to 1, by the limit that is nearest."""
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
        """The updates that a budget allows; those of the options if it has no limit at all."""
        if budget.iterations is not None or not self.options.updates:
            return budget.iterations if self.options.updates else 0
        unlimited = budget.evaluations is None and not math.isfinite(budget.seconds)
        return self.options.updates if unlimited else None

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """The complete state of training: figures and arrays. Their keys are part of the checkpoint format."""
        arrays: Arrays = self.learner.arrays()
        arrays |= {f"pricing/{name}": value for name, value in self.pricing.state().items()}
        arrays |= {f"best_run/{name}": value.numpy().copy() for name, value in self._best_run.items()}
        arrays["generator"] = self.generator.get_state().numpy()
        figures = {
            "updates": self.learner.updates, "baseline": self.learner.baseline, "scale": self.learner.scale,
            "steps": None if self.learner.steps is None else self.learner.steps.tolist(),
            "curve": [list(step) for step in self.curve], "extra_decisions": self.policy.extra_decisions,
            **{name: None if math.isinf(value) else value for name, value in self._counts.items()},
        }  # fmt: skip
        return figures, arrays

    def restore(self, figures: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`, also that of an older checkpoint."""
        figures, arrays = _rename_keys(figures), _rename_keys(arrays)
        self.learner.restore(arrays)
        self.pricing.restore(
            {key.removeprefix("pricing/"): value for key, value in arrays.items() if "pricing/" in key}
        )
        self.generator.set_state(torch.from_numpy(np.array(arrays["generator"], np.uint8)))
        self.learner.updates, self.learner.baseline = int(figures["updates"]), figures["baseline"]
        self.learner.scale = float(figures["scale"])
        self.learner.steps = None if figures.get("steps") is None else np.array(figures["steps"], np.float64)
        self.curve = [(int(count), float(seconds), float(best)) for count, seconds, best in figures["curve"]]
        known = {name: value for name in COUNTERS if (value := figures.get(name)) is not None}
        self._counts = {**COUNTERS, **known}
        self._best_run = to_tensors(arrays, "best_run/")
        self.policy.extra_decisions = float(figures.get("extra_decisions", 0.0))

    def _end_reason(self, watch: Stopwatch) -> Reason | None:
        budget, updates = watch.budget, self.learner.updates
        if watch.out:
            return Reason.TIME_LIMIT
        most = self.most_updates(budget)
        if most is not None and updates >= most:
            return Reason.FINISHED
        if budget.evaluations is not None and self.pricing.evaluations >= budget.evaluations:
            return Reason.FINISHED
        if self.pricing.evaluations >= self._counts["space"]:
            return Reason.FINISHED
        if self.measured and self.pricing.best is None and self.pricing.evaluations >= MAX_FAILURES:
            return Reason.FINISHED
        return Reason.FINISHED if self._stall_reason(budget) else None

    def _stall_reason(self, budget: Budget) -> str:
        """Why training has stalled; empty if it has not."""
        updates, patience = self.learner.updates, self.options.patience
        if budget.evaluations is not None and updates - self._counts["last_unseen"] >= MAX_SEEN_UPDATES:
            return f"{MAX_SEEN_UPDATES} updates in a row brought no unseen placement"
        if patience and updates - self._counts["last_better"] >= patience:
            return f"{patience} update{'s in a row' * (patience > 1)} brought nothing better"
        return ""

    def _record_stall(self, budget: Budget) -> None:
        """Record whether training has stalled, and reset the counters for a training that continues later."""
        self.stalled = self._stall_reason(budget)
        if self.stalled:
            self._counts["last_unseen"] = self._counts["last_better"] = self.learner.updates

    def _adjust_exploration(self, unseen: int) -> None:
        """Explore more after a stale update, and less after any other."""
        if unseen:
            self._counts["last_unseen"] = self.learner.updates
        step = self.options.extra_exploration if self._is_stale(unseen) else -self.options.extra_exploration
        extra = max(self.policy.extra_decisions + step, 0.0)
        self.policy.extra_decisions = min(extra, float(self.policy.view.n))

    def _is_stale(self, unseen: int) -> bool:
        return unseen < MIN_UNSEEN * self.options.samples

    def _restart_if_stale(self, unseen: int) -> None:
        """Restart after a stale update, if the last `restart_after` updates brought nothing better.

        The parameters of the run with the best placement are kept, and restored at the end of training.
        """
        updates, counts = self.learner.updates, self._counts
        if self.pricing.base_value < counts["base_value"]:
            counts["last_base"], counts["base_value"] = updates, self.pricing.base_value
            return
        patience = self.options.restart_after
        if patience and self._is_stale(unseen) and updates - counts["last_base"] >= patience:
            if counts["base_value"] < counts["best_run"]:
                self._best_run, counts["best_run"] = copy_parameters(self.policy), counts["base_value"]
            self.learner.restart(self._initial)
            self.pricing.reset_base()
            self.policy.extra_decisions = 0.0
            counts["last_base"], counts["base_value"], counts["taught"] = updates, math.inf, 0

    def greedy_after(self, updates: int) -> bool:
        """Whether the policy's preferred placement is priced after so many updates."""
        return self.options.greedy_every > 0 and updates % self.options.greedy_every == 0

    def _price_greedy(self, budget: Budget) -> None:
        if self.learner.updates and not self.options.greedy_every:
            return
        left = None if budget.evaluations is None else budget.evaluations - self.pricing.evaluations
        if left is None or left > 0:
            with self.pricing.limit_to(budget.evaluations, math.inf):
                rows = self.policy.greedy(self.pricing)
            self.pricing(rows[:left])
            self._record_improvement()

    def _record_improvement(self) -> None:
        if self.pricing.best is not None and (not self.curve or self.pricing.value < self.curve[-1][2]):
            self.curve.append((self.pricing.evaluations, time.monotonic() - self.began, self.pricing.value))
            self._counts["last_better"] = self.learner.updates


def _rename_keys(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state by its present keys; of a key like "elder/name", the part before the slash is renamed."""
    keys = (key.partition("/") for key in state)
    return {RENAMED_KEYS.get(head, head) + slash + rest: state[head + slash + rest] for head, slash, rest in keys}


@contextmanager
def one_thread(policy: Policy) -> Iterator[None]:
    """Run torch on one thread for small networks, where threads would only wait for each other."""
    before = torch.get_num_threads()
    if policy.view.n < 5000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
