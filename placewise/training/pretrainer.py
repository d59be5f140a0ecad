"""Training on many problems: an update averages the gradients of a few of them, computed by any number of workers.

Synchronous: the problems of an update, their random seeds and the order in which gradients are added depend only on the
seed and the number of the update, so that one process and many end with the same parameters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from placewise.model.columns import offsets_of
from placewise.model.result import Reason
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.learned.objectives import Diverged, Learner, TrainStats
from placewise.training.workers.messages import BestKnown, CorpusResult, CorpusTask, CorpusWorkerSpec
from placewise.training.workers.pools import WorkerPool

SEARCH_BATCH = 32
"""Problems searched between two progress reports."""
NO_STATS = TrainStats(math.nan, math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The number of problems, and how training uses them. Shares are those of `LearningRecord`.

    Training uses `problems`; `validated` more are priced `every` so many updates. One of the `updates` takes `batch`
    problems. For the share `imitated` the expert is only imitated, and afterwards with weight `held`; then rewards
    count too if `rewarded`. `patience`: stop after that many validations without a better one (0: never).
    """

    problems: int
    updates: int
    batch: int = 8
    imitated: float = 0.5
    held: float = 0.1
    rewarded: bool = True
    validated: int = 0
    every: int = 100
    patience: int = 0


@dataclass(frozen=True, slots=True)
class PretrainUpdate:
    """Progress after an update: mean statistics, distance to what is imitated, the last validation.

    `searched` counts the problems searched so far. `score` is the time of the policy's own choices on validation
    problems over the best known one, as a geometric mean (NaN: not validated yet).
    """

    number: int
    stats: TrainStats
    distance: float
    score: float
    searched: int
    asked: int
    seconds: float


@dataclass(slots=True, eq=False)
class Pretrainer:
    """Trains one policy on many problems. The caller closes the pool."""

    learner: Learner
    pool: WorkerPool
    plan: TrainingPlan
    seed: int = 0
    known: dict[int, BestKnown] = field(default_factory=dict)
    trials: list[tuple[int, float, float]] = field(default_factory=list)
    asked: int = 0
    diverged: bool = False
    began: float = field(default_factory=time.monotonic)
    _parameters: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The score of the last validation."""
        return self.trials[-1][2] if self.trials else math.nan

    def run(self, budget: Budget, on_step: Callable[[PretrainUpdate], None] = lambda _: None) -> Reason:
        """Train until the plan or the budget ends. Ctrl-C ends training like a budget. Raises RunError, PlacerError."""
        watch = Stopwatch(budget)
        most = self.plan.updates if budget.iterations is None else budget.iterations
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._search(watch, on_step)
            if not self.trials and not watch.out:
                self._validate()
            while self.learner.updates < most:
                if watch.out:
                    return Reason.TIME_LIMIT
                if self._is_stale():
                    break
                step = self._update(self._progress(watch, most))
                if self.learner.updates % self.plan.every == 0 or self.learner.updates == most:
                    self._validate()
                on_step(replace(step, score=self.score, asked=self.asked))
        except KeyboardInterrupt:
            return Reason.INTERRUPTED
        except Diverged:
            self.diverged = True
        finally:
            torch.set_num_threads(threads)
        return Reason.FINISHED

    def problem_numbers(self, update: int) -> Sequence[int]:
        """The problems of an update. Every round takes all problems once, in a new random order."""
        batch, n = min(self.plan.batch, self.plan.problems), self.plan.problems
        places = range(update * batch, (update + 1) * batch)
        orders = {turn: np.random.default_rng([self.seed, turn]).permutation(n) for turn in {p // n for p in places}}
        return [int(orders[place // n][place % n]) for place in places]

    def _progress(self, watch: Stopwatch, most: int) -> float:
        """The spent share of updates or of time, from 0 to 1. Earlier runs count."""
        spent = time.monotonic() - self.began
        return min(max(self.learner.updates / max(most, 1), spent / max(spent + watch.left, 1e-9)), 1.0)

    def _search(self, watch: Stopwatch, on_step: Callable[[PretrainUpdate], None]) -> None:
        """Search the problems without a known placement, a few at a time."""
        missing = [n for n in range(self.plan.problems + self.plan.validated) if n not in self.known]
        for first in range(0, len(missing), SEARCH_BATCH):
            if watch.out:
                return
            some = missing[first : first + SEARCH_BATCH]
            self._run_tasks([CorpusTask(n, "search", use_expert=self._use_expert(n)) for n in some], {})
            on_step(self._report(NO_STATS, math.nan))

    def _run_tasks(
        self, tasks: Sequence[CorpusTask], parameters: Mapping[str, npt.NDArray[Any]]
    ) -> list[tuple[CorpusTask, CorpusResult]]:
        """Run tasks, and record the best known placements. One update may take a problem twice."""
        results = self.pool.run(tasks, parameters)
        for task, result in results:
            known, before = result.known, self.known.get(task.number)
            if before is not None and before.value < known.value:
                known = replace(known, best=before.best, value=before.value)
            self.known[task.number] = known
            self.asked += result.asked
        return results

    def _use_expert(self, number: int) -> bool:
        """Whether a problem needs the expert: for imitation, or for validation."""
        return number >= self.plan.problems or self.plan.imitated > 0 or self.plan.held > 0

    def _update(self, progress: float) -> PretrainUpdate:
        """One update, with a step per epoch. Raises Diverged."""
        plan, options, update = self.plan, self.learner.options, self.learner.updates
        imitation_over = progress >= plan.imitated
        explore = imitation_over and plan.rewarded
        weight = plan.held if imitation_over else 1.0
        epochs = options.epochs if explore and options.algorithm == "ppo" else 1
        tasks = [
            CorpusTask(number, "learn", self.known.get(number), use_expert=self._use_expert(number),
                 seed=_task_seed(self.seed, update, place), updates=update, progress=progress,
                 explore=explore, imitate=weight)
            for place, number in enumerate(self.problem_numbers(update))
        ]  # fmt: skip
        step = self._report(NO_STATS, math.nan)
        applied = 0
        try:
            for _ in range(epochs):
                results = self._run_tasks(tasks, self.parameters())
                if not results:
                    break
                stats = self._apply([result for _, result in results], progress)
                if not applied:
                    step = self._report(stats, _mean([result.distance for _, result in results]))
                applied += 1
                tasks = [_next_epoch(task, result) for task, result in results]
        finally:
            # All epochs together are one update.
            self.learner.updates = update + bool(applied)
        # An update whose tasks were all lost counts too.
        self.learner.updates = update + 1
        return replace(step, number=update + 1)

    def _apply(self, results: Sequence[CorpusResult], progress: float) -> TrainStats:
        """Apply the mean of the gradients."""
        total: dict[str, torch.Tensor] = {}
        for result in results:
            for name, value in (result.gradients or {}).items():
                part = torch.from_numpy(np.array(value)) / len(results)
                total[name] = total[name] + part if name in total else part
        all_stats = [result.stats for result in results if result.stats is not None]
        distance = _mean([result.distance for result in results])
        loss = _mean([stats.loss for stats in all_stats]) if all_stats else distance
        loss = 0.0 if math.isnan(distance) and not all_stats else loss
        mean = TrainStats(
            _mean([stats.reward for stats in all_stats]), _mean([stats.baseline for stats in all_stats]),
            _mean([stats.entropy for stats in all_stats]), math.nan, loss,
        )  # fmt: skip
        self._parameters = {}
        return self.learner.apply(total, mean, progress)

    def parameters(self) -> Mapping[str, npt.NDArray[Any]]:
        """The current parameters. The same object until they change."""
        if not self._parameters:
            self._parameters = {name: p.detach().numpy().copy() for name, p in self.learner.policy.named_parameters()}
        return self._parameters

    def _validate(self) -> None:
        """Price the policy's own choices on problems that training does not use. Better placements are recorded."""
        plan = self.plan
        problem_numbers = range(plan.problems, plan.problems + plan.validated)
        tasks = [CorpusTask(n, "validate", self.known.get(n), use_expert=self._use_expert(n)) for n in problem_numbers]
        results = self._run_tasks(tasks, self.parameters()) if tasks else []
        if not results:
            return
        ratios = [result.seconds / result.known.value for _, result in results]
        score = math.exp(sum(map(math.log, ratios)) / len(ratios))
        self.trials.append((self.learner.updates, time.monotonic() - self.began, score))

    def _is_stale(self) -> bool:
        patience, trials = self.plan.patience, [score for _, _, score in self.trials]
        return bool(patience) and len(trials) > patience and min(trials[-patience:]) >= min(trials[:-patience])

    def _report(self, stats: TrainStats, distance: float) -> PretrainUpdate:
        spent = time.monotonic() - self.began
        return PretrainUpdate(self.learner.updates, stats, distance, self.score, len(self.known), self.asked, spent)

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """The complete state of training: figures and arrays. Their keys are part of the checkpoint format."""
        problem_numbers = sorted(self.known)
        known = [self.known[number] for number in problem_numbers]
        sizes = np.repeat(np.arange(len(known)), [len(one.best) for one in known])
        arrays = self.learner.arrays() | {
            "known/number": np.array(problem_numbers, np.int64),
            "known/offsets": offsets_of(sizes, len(known)),
            "known/device": np.concatenate([np.zeros(0, np.int16), *(one.best.astype(np.int16) for one in known)]),
            "known/value": np.array([one.value for one in known], np.float64),
            "known/scale": np.array([one.scale for one in known], np.float64),
            "known/baseline": np.array([math.nan if one.baseline is None else one.baseline for one in known]),
        }
        return {"asked": self.asked, "trials": [list(trial) for trial in self.trials],
                "updates": self.learner.updates, "baseline": self.learner.baseline}, arrays  # fmt: skip

    def restore(self, figures: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`."""
        self.learner.restore(arrays)
        self._parameters = {}
        self.learner.updates, self.learner.baseline = int(figures["updates"]), figures["baseline"]
        self.asked = int(figures["asked"])
        # JSON has no infinity, which is the score of choices that cannot run.
        self.trials = [(int(number), float(seconds), math.inf if score is None else float(score))
                       for number, seconds, score in figures["trials"]]  # fmt: skip
        self.known = restore_known(arrays)


def _next_epoch(task: CorpusTask, result: CorpusResult) -> CorpusTask:
    """The task of the next epoch: the same episodes and the same baseline."""
    baseline = None if task.known is None else task.known.baseline
    return replace(task, known=replace(result.known, baseline=baseline), rollout=result.rollout)


def restore_known(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[int, BestKnown]:
    """The best known placements in the arrays of `Pretrainer.state`."""
    offsets, device = arrays["known/offsets"].tolist(), arrays["known/device"].astype(np.int32)
    known = {}
    for place, number in enumerate(arrays["known/number"].tolist()):
        baseline = float(arrays["known/baseline"][place])
        known[int(number)] = BestKnown(
            device[offsets[place] : offsets[place + 1]], float(arrays["known/value"][place]),
            float(arrays["known/scale"][place]), None if math.isnan(baseline) else baseline,
        )  # fmt: skip
    return known


def build_learner(spec: CorpusWorkerSpec) -> Learner:
    """A learner with an untrained policy for the first problem. Passes on the errors of creating that."""
    return Learner(spec.make_policy(spec.problem(0)), spec.options, 1.0)


def _task_seed(seed: int, update: int, place: int) -> int:
    return int(np.random.SeedSequence([seed, update, place]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan
