"""Measuring with workers that may die: an `Evaluate` that may lose samples, and never waits for ever."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.placers.base import Evaluate
from placewise.placers.learned.pricing import LOST, digests
from placewise.placers.learned.workers.backend import Backend
from placewise.placers.learned.workers.pool import Outcome, Pool

IN_A_ROW = 5
"""So many deaths without one result between them, and nobody believes in the next one."""
FATAL = 2
"""A placement of which so many workers died has failed."""

MakeEvaluate = Callable[[], Evaluate]


class Measurer:
    """What a worker holds: an `Evaluate`, asked for one placement at a time."""

    def __init__(self, make_evaluate: MakeEvaluate) -> None:
        self._evaluate = make_evaluate()

    def measure(self, row: Ints) -> tuple[float, str, float]:
        """Seconds of a placement [n_ops], NaN where it failed, and why; and those of the single device by this worker.

        That is NaN where the reward compares with none.
        """
        seconds = float(self._evaluate(row[None])[0])
        why = "" if np.isfinite(seconds) else str(getattr(self._evaluate, "failure", ""))
        return seconds, why, _single(self._evaluate)


class Alone:
    """An `Evaluate` in this process, to be used as `Measuring` is."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.reference = _single(evaluate)
        self.results = self.deaths = self.row = 0

    @property
    def failure(self) -> str:
        """Why the last placement failed."""
        return str(getattr(self._evaluate, "failure", ""))

    def __call__(self, placements: Ints) -> Floats:
        self.results += len(placements)
        return self._evaluate(placements) * _rate(_single(self._evaluate), self.reference)


def _single(evaluate: Evaluate) -> float:
    return float(getattr(evaluate, "single", np.nan))


def _rate(single: float, reference: float) -> float:
    """What the seconds count for of a worker whose single device takes `single`, if that is to take `reference`."""
    return reference / single if np.isfinite(reference) and single > 0 else 1.0


class Measuring:
    """An `Evaluate` over `count` workers: seconds [K], NaN where one failed, `LOST` where its worker died.

    A measurement that takes more than `limit` seconds has failed, and its worker is replaced. `failure` says why the
    last one failed. `results` counts what came back, `deaths` the workers that died or could not be made, `row` those
    since the last result; when there are `IN_A_ROW` the rest of a batch is lost. Rewards that compare with a single
    device (`single`) are sure of ratios only: they count as if it took all workers `reference` seconds, which is what
    the first one says where nobody did before.
    """

    def __init__(self, house: Backend, make_evaluate: MakeEvaluate, count: int, limit: float, name: str) -> None:
        made = ("placewise.placers.learned.workers.measuring:Measurer", make_evaluate)
        self._pool = Pool(house, count, lambda _: made, name, worker=True)
        self._limit = limit
        self._fatal: Counter[bytes] = Counter()
        self.failure, self.reference = "", np.nan
        self.results = self.deaths = self.row = 0

    def __call__(self, placements: Ints) -> Floats:
        found = np.full(len(placements), LOST)
        waiting, left = deque(range(len(placements))), len(placements)
        self.row = min(self.row, IN_A_ROW - 1)
        while left and self.row < IN_A_ROW:
            for member in self._pool.idle()[: len(waiting)]:
                k = waiting.popleft()
                self._pool.give(member, k, "measure", placements[k], seconds=self._limit)
            for outcome in self._pool.wait(self._limit):
                if outcome.task is not None:
                    found[outcome.task] = self._seconds(outcome, placements[outcome.task])
                    left -= 1
                elif outcome.fate != "done":
                    self._died(outcome)
        self._abandon()
        return found

    def close(self) -> None:
        self._pool.close()

    def _seconds(self, outcome: Outcome, row: Ints) -> float:
        if outcome.fate == "died":
            self._died(outcome)
            key = digests(row[None])[0]
            self._fatal[key] += 1
            return LOST if self._fatal[key] < FATAL else np.nan
        self.row, self.results = 0, self.results + 1
        if outcome.fate != "done":
            self.failure = outcome.why if outcome.fate == "refused" else f"it took more than {self._limit:g} s"
            return np.nan
        seconds, why, single = outcome.value
        self.failure = why or self.failure
        self.reference = self.reference if np.isfinite(self.reference) else single
        return float(seconds * _rate(single, self.reference)) if np.isfinite(seconds) else np.nan

    def _died(self, outcome: Outcome) -> None:
        self.deaths, self.row, self.failure = self.deaths + 1, self.row + 1, outcome.why

    def _abandon(self) -> None:
        """End who is still at work for a batch that is given up."""
        for member in [member for member in self._pool.members if member.busy and member.made]:
            self._pool.drop(member)
        self._pool.fill()
