"""Training on many problems: an update is the mean of what a few of them say, worked out by any number of pupils.

Synchronous: the problems of an update, their chance and the order in which gradients are added follow from the seed
and the number of the update, so that one process and many end in the same parameters.
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
from placewise.placers.learned.corpus.evolution import children, portfolio
from placewise.placers.learned.corpus.messages import Answer, Brief, Known, Task
from placewise.placers.learned.corpus.worker_pool import WorkerPool
from placewise.placers.learned.objectives import Diverged, Learner, TrainStats

SEARCHED = 32
"""Problems searched between two signs of life."""


@dataclass(frozen=True, slots=True)
class Course:
    """How many problems there are, and how they are gone through; the shares are those of `LearningRecord`.

    `problems` to train on, `validated` more behind them, tried `every` so many updates; `batch` problems per update,
    of `updates`. The teacher is imitated alone for the share `imitated`, and with the weight `held` afterwards; then
    `climbed` moves are tried from its favourites, and rewards count if it is `rewarded`. Where some ways are `bred`,
    an update is no step along gradients: so many new rows of the parameters `only` are compared with those that there
    are, by how much they vary (`jitter`), and those that together are best stay.
    """

    problems: int
    updates: int
    batch: int = 8
    imitated: float = 0.5
    held: float = 0.1
    climbed: int = 0
    bred: int = 0
    jitter: float = 0.35
    only: tuple[str, ...] = ()
    rewarded: bool = True
    validated: int = 0
    every: int = 100
    patience: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A sign of life: the mean lesson of an update, how far decisions are from what is imitated, and the last trial.

    `searched` problems so far; `score`: what the favourite is worth on problems for validation, over the best known
    there, as a geometric mean (NaN: not tried yet).
    """

    number: int
    lesson: TrainStats
    distance: float
    score: float
    searched: int
    asked: int
    seconds: float


@dataclass(slots=True, eq=False)
class Pretrainer:
    """One policy in training on many problems. Close its school in the end."""

    learner: Learner
    school: WorkerPool
    course: Course
    seed: int = 0
    known: dict[int, Known] = field(default_factory=dict)
    trials: list[tuple[int, float, float]] = field(default_factory=list)
    asked: int = 0
    diverged: bool = False
    began: float = field(default_factory=time.monotonic)
    _parameters: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The last trial's."""
        return self.trials[-1][2] if self.trials else math.nan

    def run(self, budget: Budget, on_step: Callable[[Step], None] = lambda _: None) -> Reason:
        """Train until the course or the budget ends. Ctrl-C is the end of a budget. Raises RunError, PlacerError."""
        watch = Stopwatch(budget)
        most = self.course.updates if budget.iterations is None else budget.iterations
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._search(watch, on_step)
            if not self.trials and not watch.out:
                self._try()
            while self.learner.updates < most:
                if watch.out:
                    return Reason.TIME_LIMIT
                if self._stale():
                    break
                step = self._update(self._progress(watch, most))
                if self.learner.updates % self.course.every == 0 or self.learner.updates == most:
                    self._try()
                on_step(replace(step, score=self.score, asked=self.asked))
        except KeyboardInterrupt:
            return Reason.INTERRUPTED
        except Diverged:
            self.diverged = True
        finally:
            torch.set_num_threads(threads)
        return Reason.FINISHED

    def numbers(self, update: int) -> Sequence[int]:
        """The problems of an update: all of them, in a new order every time round."""
        batch, n = min(self.course.batch, self.course.problems), self.course.problems
        places = range(update * batch, (update + 1) * batch)
        orders = {turn: np.random.default_rng([self.seed, turn]).permutation(n) for turn in {p // n for p in places}}
        return [int(orders[place // n][place % n]) for place in places]

    def _progress(self, watch: Stopwatch, most: int) -> float:
        """From 0 to 1, of updates or of time; what an earlier run spent counts."""
        spent = time.monotonic() - self.began
        return min(max(self.learner.updates / max(most, 1), spent / max(spent + watch.left, 1e-9)), 1.0)

    def _search(self, watch: Stopwatch, on_step: Callable[[Step], None]) -> None:
        """Know something of every problem, a few at a time."""
        missing = [n for n in range(self.course.problems + self.course.validated) if n not in self.known]
        for first in range(0, len(missing), SEARCHED):
            if watch.out:
                return
            some = missing[first : first + SEARCHED]
            answers = self.school.answers([Task(n, "search", taught=self._taught(n)) for n in some], {})
            self._note(answers)
            on_step(self._step(TrainStats(math.nan, math.nan, math.nan, math.nan, math.nan), math.nan))

    def _note(self, answers: Sequence[tuple[Task, Answer]]) -> None:
        """Keep what is known now: where a problem had two turns in an update, the better placement of the two."""
        for task, answer in answers:
            found, before = answer.known, self.known.get(task.number)
            if before is not None and before.value < found.value:
                found = replace(found, best=before.best, value=before.value)
            self.known[task.number] = found
            self.asked += answer.asked

    def _taught(self, number: int) -> bool:
        """Whether the teacher is asked: where it is imitated, and where others are compared with it."""
        return number >= self.course.problems or self.course.imitated > 0 or self.course.held > 0

    def _update(self, progress: float) -> Step:
        """One update: as many steps as there are epochs. Raises Diverged."""
        course, options, update = self.course, self.learner.options, self.learner.updates
        begun = progress >= course.imitated
        if begun and course.bred:
            return self._bred()
        explore, climb = begun and course.rewarded, begun * course.climbed
        weight = course.held if begun else 1.0
        epochs = options.epochs if explore and options.algorithm == "ppo" else 1
        tasks = [
            Task(number, "learn", self.known.get(number), taught=self._taught(number),
                 seed=_chance(self.seed, update, place), updates=update, progress=progress,
                 explore=explore, imitate=weight, climb=climb)
            for place, number in enumerate(self.numbers(update))
        ]  # fmt: skip
        step = self._step(TrainStats(math.nan, math.nan, math.nan, math.nan, math.nan), math.nan)
        applied = 0
        try:
            for _ in range(epochs):
                answers = self.school.answers(tasks, self.parameters())
                if not answers:
                    break
                lesson = self._apply([answer for _, answer in answers], progress)
                if not applied:
                    step = self._step(lesson, _mean([answer.distance for _, answer in answers]))
                applied += 1
                self._note(answers)
                tasks = [_again(task, answer) for task, answer in answers]
        finally:
            # Epochs are steps of one update.
            self.learner.updates = update + bool(applied)
        # An update from which nothing came back is one as well.
        self.learner.updates = update + 1
        return replace(step, number=update + 1)

    def _bred(self) -> Step:
        """An update without gradients: new ways of scoring beside those that there are; what serves best stays."""
        update, course, parameters = self.learner.updates, self.course, self.parameters()
        ways = {name: parameters[name] for name in course.only}
        size, chance = len(next(iter(ways.values()))), np.random.default_rng([self.seed, update])
        more = children(ways, course.bred, course.jitter, chance)
        every = {name: np.concatenate((rows, more[name])) for name, rows in ways.items()}
        tasks = [Task(n, "compare", self.known.get(n), taught=self._taught(n), ways=every)
                 for n in self.numbers(update)]  # fmt: skip
        answers = self.school.answers(tasks, parameters)
        self._note(answers)
        step = self._step(TrainStats(math.nan, math.nan, math.nan, math.nan, math.nan), math.nan)
        self.learner.updates = update + 1
        worth = np.array([answer.worth for _, answer in answers if answer.worth is not None])
        if not len(worth):
            return replace(step, number=update + 1)
        chosen = portfolio(worth, size)
        values = dict(self.learner.policy.named_parameters())
        with torch.no_grad():
            for name, rows in every.items():
                values[name].copy_(torch.from_numpy(rows[chosen]))
        self._parameters = {}
        return replace(step, number=update + 1, distance=float(worth[:, chosen].min(axis=1).mean()))

    def _apply(self, answers: Sequence[Answer], progress: float) -> TrainStats:
        total: dict[str, torch.Tensor] = {}
        for answer in answers:
            for name, value in (answer.gradients or {}).items():
                part = torch.from_numpy(np.array(value)) / len(answers)
                total[name] = total[name] + part if name in total else part
        lessons = [answer.lesson for answer in answers if answer.lesson is not None]
        distance = _mean([answer.distance for answer in answers])
        loss = _mean([lesson.loss for lesson in lessons]) if lessons else distance
        loss = 0.0 if math.isnan(distance) and not lessons else loss
        mean = TrainStats(
            _mean([lesson.reward for lesson in lessons]), _mean([lesson.baseline for lesson in lessons]),
            _mean([lesson.entropy for lesson in lessons]), math.nan, loss,
        )  # fmt: skip
        self._parameters = {}
        return self.learner.apply(total, mean, progress)

    def parameters(self) -> Mapping[str, npt.NDArray[Any]]:
        """The parameters as they are now; the same object until they change."""
        if not self._parameters:
            self._parameters = {name: p.detach().numpy().copy() for name, p in self.learner.policy.named_parameters()}
        return self._parameters

    def _try(self) -> None:
        """Try the policy where it is not trained; better placements that it finds there count from then on."""
        course = self.course
        numbers = range(course.problems, course.problems + course.validated)
        tasks = [Task(n, "try", self.known.get(n), taught=self._taught(n)) for n in numbers]
        answers = self.school.answers(tasks, self.parameters()) if tasks else []
        if not answers:
            return
        self._note(answers)
        ratios = [answer.seconds / answer.known.value for _, answer in answers]
        score = math.exp(sum(map(math.log, ratios)) / len(ratios))
        self.trials.append((self.learner.updates, time.monotonic() - self.began, score))

    def _stale(self) -> bool:
        patience, trials = self.course.patience, [score for _, _, score in self.trials]
        return bool(patience) and len(trials) > patience and min(trials[-patience:]) >= min(trials[:-patience])

    def _step(self, lesson: TrainStats, distance: float) -> Step:
        spent = time.monotonic() - self.began
        return Step(self.learner.updates, lesson, distance, self.score, len(self.known), self.asked, spent)

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Everything that training goes on from: figures, and arrays."""
        numbers = sorted(self.known)
        known = [self.known[number] for number in numbers]
        sizes = np.repeat(np.arange(len(known)), [len(one.best) for one in known])
        arrays = self.learner.arrays() | {
            "known/number": np.array(numbers, np.int64),
            "known/offsets": offsets_of(sizes, len(known)),
            "known/device": np.concatenate([np.zeros(0, np.int16), *(one.best.astype(np.int16) for one in known)]),
            "known/value": np.array([one.value for one in known], np.float64),
            "known/scale": np.array([one.scale for one in known], np.float64),
            "known/baseline": np.array([math.nan if one.baseline is None else one.baseline for one in known]),
        }
        return {"asked": self.asked, "trials": [list(trial) for trial in self.trials],
                "updates": self.learner.updates, "baseline": self.learner.baseline}, arrays  # fmt: skip

    def restore(self, figures: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on where `state` was taken."""
        self.learner.restore(arrays)
        self._parameters = {}
        self.learner.updates, self.learner.baseline = int(figures["updates"]), figures["baseline"]
        self.asked = int(figures["asked"])
        # JSON knows no infinity: the score of favourites that cannot run.
        self.trials = [(int(number), float(seconds), math.inf if score is None else float(score))
                       for number, seconds, score in figures["trials"]]  # fmt: skip
        self.known = known_of(arrays)


def _again(task: Task, answer: Answer) -> Task:
    """A task in the next epoch of its update: the same episodes, against the same baseline."""
    baseline = None if task.known is None else task.known.baseline
    return replace(task, known=replace(answer.known, baseline=baseline), drawn=answer.drawn, climb=0)


def known_of(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[int, Known]:
    """What `Pretrainer.state` keeps of every problem."""
    offsets, device = arrays["known/offsets"].tolist(), arrays["known/device"].astype(np.int32)
    found = {}
    for place, number in enumerate(arrays["known/number"].tolist()):
        baseline = float(arrays["known/baseline"][place])
        found[int(number)] = Known(
            device[offsets[place] : offsets[place + 1]], float(arrays["known/value"][place]),
            float(arrays["known/scale"][place]), None if math.isnan(baseline) else baseline,
        )  # fmt: skip
    return found


def learner_of(brief: Brief) -> Learner:
    """An untrained policy, and what changes it. Raises what making the first problem raises."""
    return Learner(brief.make_policy(brief.problem(0)), brief.options, 1.0)


def _chance(seed: int, update: int, place: int) -> int:
    return int(np.random.SeedSequence([seed, update, place]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan
